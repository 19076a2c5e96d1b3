"""An op that contracts and has no formula is named; no other op is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import models
import pytest
import torch
import torch.nn.functional as F
import transformer_models
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.registry import _formulas
from mfu_torch.flops.uncounted import looks_like_contraction

aten = torch.ops.aten


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=100,
    )  # fmt: skip
    ids = torch.randint(0, 100, (2, 16))
    return BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=100)
    ids = torch.randint(0, 100, (2, 16))
    return MambaForCausalLM(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
        vocab_size=100, head_dim=16, pad_token_id=0,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    model.set_experts_implementation("eager")
    ids = torch.randint(0, 100, (2, 16))
    return model, {"input_ids": ids, "labels": ids, "use_cache": False}


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(0, 100, (2, 16))
    return T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def causal(build: Callable[[str], models.Case]) -> Callable[[], Any]:
    def with_labels() -> Any:
        case = build("sdpa")
        return case.model, {"input_ids": case.batch[0], "labels": case.batch[0]}

    return with_labels


BUILDS = {
    "gpt2": causal(transformer_models.gpt2),
    "llama": causal(transformer_models.llama),
    "bert": bert,
    "mamba": mamba,
    "qwen3_moe": qwen3_moe,
    "t5": t5,
}


@pytest.mark.parametrize("name", BUILDS)
def test_training_a_transformer_raises_no_false_alarm(name: str) -> None:
    model, batch = BUILDS[name]()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    count = count_flops(step)
    assert count.uncounted == {}
    assert count.backward > count.forward


class Everyday(nn.Module):
    """What image models use besides convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.norms = nn.Sequential(nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8))
        self.acts = nn.Sequential(nn.SiLU(), nn.PReLU(), nn.Hardswish(), nn.Softplus(), nn.Mish())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.acts(self.norms(self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))))
        x = F.interpolate(F.max_pool2d(x, 2), scale_factor=2, mode="bilinear")
        x = F.pixel_unshuffle(F.avg_pool2d(F.dropout2d(x), 2), 2).unflatten(1, (8, 4)).mean(2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.parametrize(
    "loss", [F.cross_entropy, F.nll_loss, F.multi_margin_loss], ids=lambda loss: loss.__name__
)
def test_training_an_image_model_raises_no_false_alarm(loss: Callable[..., Any]) -> None:
    model, x, y = Everyday(), torch.randn(2, 3, 16, 16), torch.tensor([0, 3])
    count = count_flops(lambda: loss(model(x).log_softmax(1), y).backward())
    assert count.uncounted == {}
    assert count.model > 0


def test_look_ups_sorting_and_scatter_raise_no_false_alarm() -> None:
    bag, table = nn.EmbeddingBag(10, 4), nn.Embedding(10, 4)
    ids = torch.randint(0, 10, (3, 5))

    def step() -> None:
        x = torch.cat([bag(ids), table(ids).mean(1)], dim=1)
        values, order = x.topk(3, dim=1)
        y = torch.zeros_like(x).scatter_add(1, order, values).index_select(0, torch.tensor([2, 0]))
        y = y.gather(1, order[:2]).cumsum(1).sort(1).values.masked_fill(order[:2] > 4, 0)
        (y.logsumexp(1) + y.std(1) + F.normalize(y).norm(dim=1)).sum().backward()

    count = count_flops(step)
    assert (count.uncounted, count.hardware) == ({}, 0)


@pytest.fixture(scope="module")
def library() -> Any:
    @torch.library.custom_op("mfu_test_opaque::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    return torch.ops.mfu_test_opaque.square


X = torch.randn(8, 8)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torch.cdist(X, X), "aten._cdist_forward"),
        (lambda: torch.fft.fft(X), "aten._fft_r2c"),
        (lambda: torch.linalg.solve(X, X), "aten._linalg_solve_ex"),
        (lambda: torch.linalg.svd(X), "aten._linalg_svd"),
        (lambda: torch.linalg.matrix_exp(X), "aten.linalg_matrix_exp"),
    ],
)
def test_an_op_that_contracts_without_a_formula_is_named(
    call: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_formulas, name.replace(".", "::"))
    assert count_flops(call).uncounted.get(name) == 1


def test_an_op_of_a_library_is_named_with_the_number_of_its_calls(library: Any) -> None:
    count = count_flops(lambda: library(library(X)))
    assert count.uncounted == {"mfu_test_opaque.square": 2}


def test_an_op_without_a_float_to_multiply_is_not_suspected(library: Any) -> None:
    op = library.default
    assert looks_like_contraction(op, (X,))
    assert looks_like_contraction(op, ([X.to(torch.float8_e4m3fn)],))
    assert looks_like_contraction(op, (), {"x": X.to(torch.int8)})
    assert not looks_like_contraction(op, (X.long(), 3, None))
    assert not looks_like_contraction(op, (X.byte(),))


@pytest.mark.parametrize(
    "op",
    [
        aten.add.Tensor, aten.softplus_backward.default, aten.view.default, aten.cat.default,
        aten._foreach_add.Scalar, aten.native_layer_norm_backward.default,
        aten._log_softmax_backward_data.default, aten.max_pool2d_with_indices_backward.default,
        aten.embedding_dense_backward.default, aten._thnn_fused_lstm_cell.default,
    ],
)  # fmt: skip
def test_an_op_that_cannot_contract_is_not_suspected(op: Any) -> None:
    assert not looks_like_contraction(op, (X,))
