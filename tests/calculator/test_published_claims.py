"""Claims of one's own: from plain inputs to a verdict, and to the convention that fits."""

from __future__ import annotations

import pytest

from mfu_torch.calculator.claims import Claim, Figures
from mfu_torch.calculator.published import fits, recompute
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas.conventions import conventions_for, flops_per_token
from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.terms import ClosedForm, Linear
from mfu_torch.records import Record

GPT2 = formulas.dense_decoder(
    layers=12,
    hidden=768,
    heads=12,
    ffn=3072,
    vocab=50257,
    is_gated=False,
    is_tied=True,
    learned_positions=1024,
    others=12 * 13 * 768 + 2 * 768,
)
LLAMA = formulas.dense_decoder(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, others=161 * 8192
)


class Convnet(Record, frozen=True, kw_only=True):
    """Counted in samples: one product of 100 positions."""

    @property
    def per(self) -> str:
        return "sample"

    @property
    def parameters(self) -> Parameters:
        return Parameters(weights=6, used=6, embedding=0)

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        product = Linear(name="conv", inputs=2, outputs=3, role="convolution")
        return ClosedForm(terms=(product.term(100 * batch, input_gradient=False),))


def test_nanogpt_prints_what_its_own_code_computes() -> None:
    # estimate_mfu of GPT-2, 124,439,808 parameters less 1024 positions of 768, 40 x 12 sequences of
    # 1024 in 3 s on one A100.
    n = 124439808 - 1024 * 768
    per_token = 6 * n + 12 * 12 * 12 * 64 * 1024
    mfu = per_token * 1024 * 480 / 3 / 312e12
    assert GPT2.parameters.total == 124439808
    assert round(100 * mfu, 2) == 44.91
    found = recompute(
        Claim(
            model=GPT2,
            convention="nanogpt",
            seq=1024,
            batch=480,
            step_s=3.0,
            peak_flops_per_s=312e12,
            stated=Figures(mfu=mfu),
        )
    )
    assert found.found.mfu == pytest.approx(mfu, rel=1e-12)
    assert found.status == "agrees"


def test_the_convention_behind_a_number_is_found() -> None:
    claim = Claim(
        model=LLAMA,
        seq=8192,
        tokens_per_s=866.77,
        peak_flops_per_s=989e12,
        stated=Figures(mfu=0.3937),
    )
    best, *_ = fits(claim)
    assert best.convention == "matmul-half"
    assert best.difference_points == pytest.approx(0, abs=0.01)
    by_name = {fit.convention: fit for fit in fits(claim)}
    assert by_name.keys() == {one.name for one in conventions_for(LLAMA) if not one.presumes_gpt}
    assert "korthikanti" not in by_name  # Llama has grouped keys and a gate
    assert by_name["matmul"].utilization == pytest.approx(0.4219, abs=5e-5)
    assert by_name["full-recompute"].counts == "hardware"


def test_of_a_gpt_the_formulas_for_gpts_are_tried() -> None:
    claim = Claim(
        model=GPT2, seq=1024, tokens_per_s=1e5, peak_flops_per_s=312e12, stated=Figures(hfu=0.3)
    )
    names = [fit.convention for fit in fits(claim)]
    assert sorted(names) == sorted(one.name for one in conventions_for(GPT2))


def test_a_claim_of_parameters_alone_needs_no_sizes() -> None:
    claim = Claim(
        parameters=70e9,
        convention="6n",
        tokens_per_s=1000,
        peak_flops_per_s=1e15,
        stated=Figures(mfu=0.42),
    )
    assert recompute(claim).found.mfu == pytest.approx(0.42)
    assert recompute(claim).status == "agrees"
    assert recompute(claim).ours.mfu is None


def test_a_model_counted_in_samples_takes_samples_per_second() -> None:
    claim = Claim(
        model=Convnet(),
        convention="matmul",
        batch=10,
        step_s=2.0,
        peak_flops_per_s=12000.0,
        stated=Figures(mfu=1.0),
    )
    # 2 * 100 * 2 * 3 forward and the same for its weights: 2400 a sample, 5 samples/s of 12000.
    assert recompute(claim).found.mfu == pytest.approx(1.0)
    assert flops_per_token("6w", Convnet()) == 2400
    assert flops_per_token("matmul", Convnet(), without=("convolution",)) == 0


@pytest.mark.parametrize(
    ("convention", "message"),
    [
        ("palm", r"palm is for decoders \(6N \+ 12LHds\); the model is Convnet; take matmul"),
        ("megatron", "megatron is for decoders"),
        ("6n", "6n is FLOPs for a token .* is counted in samples"),
    ],
)
def test_a_convention_that_is_not_for_such_a_model_says_so(convention: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flops_per_token(convention, Convnet())


def test_only_what_is_a_product_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="palm adds up no products, so router cannot be left out"):
        flops_per_token("palm", LLAMA, 8192, without=("router",))
    with pytest.raises(ValueError, match="seq is missing"):
        flops_per_token("matmul", LLAMA)
    assert flops_per_token("6n", LLAMA) == 6 * LLAMA.parameters.total


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"step_s": 0.0}, "step_s is 0.0; expected a finite number above 0"),
        ({"peak_flops_per_s": float("nan")}, "peak_flops_per_s is nan"),
        ({"tokens_per_s": float("inf")}, "tokens_per_s is inf"),
        ({"devices": -1}, "devices is -1"),
        ({"given_step": -1.0}, "given_step is -1.0"),
        (
            {"stated": Figures(mfu=46.2)},
            r"stated.mfu is 46.2; expected a number above 0, up to 1: 0.462 for 46.2 %",
        ),
        ({"stated": Figures(days=float("nan"))}, "stated.days is nan; expected a number above 0"),
        ({"convention": "chinchilla"}, "convention is 'chinchilla'; expected one of matmul, "),
    ],
)
def test_an_absurd_input_is_refused_in_one_line(inputs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Claim(**inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim(model=LLAMA), "no MFU and no HFU is claimed"),
        (Claim(stated=Figures(mfu=0.4)), "model or peak_flops_per_s is missing"),
        (
            Claim(model=LLAMA, seq=8, peak_flops_per_s=1e15, stated=Figures(mfu=0.4)),
            "no throughput is given",
        ),
    ],
)
def test_what_fits_cannot_do_without_is_named(claim: Claim, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fits(claim)


def test_without_a_peak_flops_are_compared_in_percent() -> None:
    per_token = 6 * LLAMA.parameters.used + 12 * 80 * 8192 * 8192
    claim = Claim(
        model=LLAMA,
        convention="matmul",
        seq=8192,
        tokens_per_s=1000,
        stated=Figures(flops_per_s=1000 * per_token / 1.01),
    )
    (one,) = recompute(claim).differences
    assert one.unit == "%"
    assert one.difference == pytest.approx(1.0)
    assert recompute(claim).status == "disagrees"
