"""Published runs whose parallelism is published, too, each as its source states it.

What a source does not state, and what is taken then, is said where its rows are. A row gives a step
time or, where its source has only FLOP/s or MFU, the time that follows from them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from mfu_torch.calculator.plan import Layout, Machine, Plan, machine_of, plan
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Decoder, flops_per_token
from mfu_torch.flops.formulas.known import model_of

A100 = "a100-sxm-80gb"
H100 = "h100-sxm"
B200 = "b200-sxm"

SC21 = "Narayanan et al. 2021 (SC21), Table 1"
SC21_2 = "Narayanan et al. 2021 (SC21), Table 2"
KORTHIKANTI = "Korthikanti et al. 2022, Tables 3 and 5"
MEGASCALE = "MegaScale (NSDI 2024), Tables 1 and 2"
MEGASCALE_530 = "MegaScale (NSDI 2024), Table 1 and Figure 9"
LLAMA = "Llama 3 (2024), Table 4"
BRIDGE = "NVIDIA Megatron Bridge, 25.11 container"
MIXTURES = "NVIDIA Megatron Bridge, mixtures of experts"

UNFUSED: dict[str, Any] = {"attention": "unfused", "overlap": (), "seq": 2048}


class Row(NamedTuple):
    """A run: what is planned, and what was published of it.

    Attributes:
        published: ``step_s``, ``tflops`` (hardware FLOPs by ``megatron``, for each GPU), ``mfu`` or
            ``tokens_per_s`` (of each GPU).
    """

    name: str
    source: str
    device: str
    model: Decoder
    layout: Layout
    published: tuple[str, float]
    convention: str = "korthikanti"
    dtype: str = "bf16"

    @property
    def machine(self) -> Machine:
        return machine_of(self.device, self.dtype)

    @property
    def step_s(self) -> float:
        """As published, or as it follows."""
        kind, value = self.published
        if kind == "step_s":
            return value
        if kind == "tokens_per_s":
            return self.layout.global_batch * self.layout.seq / (self.layout.gpus * value)
        counted = "megatron" if kind == "tflops" else self.convention
        each = flops_per_token(counted, self.model, self.layout.seq)
        flops = float(each * self.layout.global_batch * self.layout.seq)
        if kind == "tflops":
            return flops / (self.layout.gpus * value * 1e12)
        return flops / (self.layout.gpus * self.machine.peak.flops_per_s * value)

    @property
    def mfu(self) -> float:
        """As it follows from the step, so that only the step is compared."""
        each = flops_per_token(self.convention, self.model, self.layout.seq)
        flops = float(each * Fraction(self.layout.global_batch * self.layout.seq))
        return flops / (self.layout.gpus * self.machine.peak.flops_per_s * self.step_s)

    def planned(self, machine: Machine | None = None) -> Plan:
        return plan(
            self.model,
            self.layout,
            machine or self.machine,
            name=self.name,
            convention=self.convention,
        )


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200) -> Decoder:
    return formulas.dense_decoder(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=vocab,
        is_gated=False,
        is_tied=True,
        learned_positions=2048,
    )


def _korthikanti() -> list[Row]:
    """Layouts, micro-batches and all eight times as calculon-ai/calculon has them
    (validation/seqsel/tab5); times and MFU agree with Megatron-LM's README where both have them."""
    sizes = (
        # name, layers, hidden, heads, pp, v, batch, micro-batch, full, selective
        ("22B", 48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
        ("175B", 96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
        ("530B", 105, 20480, 128, 35, 3, 280, 1, 49.05, 37.83),
        ("1T", 128, 25600, 160, 64, 1, 512, 1, 94.42, 71.49),
    )
    rows = []
    for name, layers, hidden, heads, pp, v, batch, micro, full, selective in sizes:
        for policy, step_s in (("full", full), ("selective", selective)):
            layout = Layout(
                gpus=8 * pp,
                tp=8,
                pp=pp,
                virtual_stages=v,
                micro_batches=batch // micro,
                micro_batch_size=micro,
                recompute=policy,
                sequence_parallel=policy == "selective",
                **UNFUSED,
            )
            rows.append(
                Row(
                    f"{name} {policy}",
                    KORTHIKANTI,
                    A100,
                    gpt(layers, hidden, heads),
                    layout,
                    ("step_s", step_s),
                )
            )
    return rows


def _sc21() -> list[Row]:
    """Neither table states v, the first no micro-batch: 1 is taken for both."""
    sizes = (
        # name, layers, hidden, heads, tp, pp, gpus, batch, TFLOP/s
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
        ("3.6B", 30, 3072, 32, 2, 1, 64, 512, 138),
        ("7.5B", 36, 4096, 32, 4, 1, 128, 512, 142),
        ("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 135),
        ("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 138),
        ("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 140),
        ("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 148),
        ("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, 155),
        ("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, 163),
        ("1008B", 128, 25600, 160, 8, 64, 3072, 3072, 163),
        ("174.6B 384", 96, 12288, 96, 8, 12, 384, 1536, 153),
        ("174.6B 768", 96, 12288, 96, 8, 12, 768, 1536, 149),
        ("174.6B 1536", 96, 12288, 96, 8, 12, 1536, 1536, 141),
        ("529.6B 560", 105, 20480, 128, 8, 35, 560, 2240, 171),
        ("529.6B 1120", 105, 20480, 128, 8, 35, 1120, 2240, 167),
        ("529.6B 2240", 105, 20480, 128, 8, 35, 2240, 2240, 159),
    )
    rows = []
    for name, layers, hidden, heads, tp, pp, gpus, batch, tflops in sizes:
        dp = gpus // (tp * pp)
        layout = Layout(
            gpus=gpus, tp=tp, pp=pp, micro_batches=batch // dp, recompute="full", **UNFUSED
        )
        source = SC21_2 if " " in name else SC21
        model = gpt(layers, hidden, heads)
        rows.append(Row(name, source, A100, model, layout, ("tflops", tflops)))
    return rows


def _megascale() -> list[Row]:
    """Recompute, attention and ZeRO of the Megatron-LM runs are not stated: Korthikanti's are
    taken. MegaScale's own overlap tensor, pipeline and data parallelism and run FlashAttention-2;
    its parallel blocks and its window are not modelled."""
    megatron: dict[str, Any] = {"recompute": "selective", **UNFUSED}
    own: dict[str, Any] = {"overlap": ("tp", "pp", "dp"), "zero": 2, "seq": 2048}
    steps = (
        # gpus, batch, Megatron-LM, MegaScale
        (256, 768, 40.0, 32.0),
        (512, 768, 21.2, 16.5),
        (768, 768, 15.2, 11.5),
        (1024, 768, 11.9, 8.9),
        (3072, 6144, 29.02, 23.66),
        (6144, 6144, 14.78, 12.21),
        (8192, 6144, 12.24, 9.56),
        (12288, 6144, 8.57, 6.34),
    )
    model = gpt(96, 12288, 128, vocab=64000)
    rows = []
    for gpus, batch, theirs, ours in steps:
        spread: dict[str, Any] = {
            "gpus": gpus,
            "tp": 8,
            "pp": 8,
            "virtual_stages": 6,
            "micro_batches": batch // (gpus // 64),
            "sequence_parallel": True,
        }
        for who, options, step_s in (("Megatron-LM", megatron, theirs), ("MegaScale", own, ours)):
            counted = "korthikanti" if who == "Megatron-LM" else "matmul-half"
            layout = Layout(**spread, **options)
            rows.append(
                Row(f"{who} {gpus}", MEGASCALE, A100, model, layout, ("step_s", step_s), counted)
            )
    big = gpt(105, 20480, 160, vocab=64000)
    for gpus, theirs, ours in ((2240, 49.2, 54.3), (4480, 48.8, 54.1), (11200, 48.2, 54.3)):
        spread = {"gpus": gpus, "tp": 8, "pp": 35, "virtual_stages": 3, "sequence_parallel": True}
        for who, options, mfu in (("Megatron-LM", megatron, theirs), ("MegaScale", own, ours)):
            counted = "korthikanti" if who == "Megatron-LM" else "matmul-half"
            layout = Layout(**spread, micro_batches=280, **options)
            rows.append(
                Row(
                    f"{who} 530B {gpus}",
                    MEGASCALE_530,
                    A100,
                    big,
                    layout,
                    ("mfu", mfu / 100),
                    counted,
                )
            )
    return rows


def _llama() -> list[Row]:
    """The source states neither its FLOPs nor v; v follows: the first chunk of the first stage
    holds only the embedding, so a chunk is one layer. Gradients are FSDP's, ZeRO 2 in effect."""
    model = formulas.dense_decoder(
        layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256
    )
    runs = ((8192, 1, 8192, 32, 0.43), (16384, 1, 8192, 16, 0.41), (16384, 16, 131072, 16, 0.38))
    rows = []
    for gpus, cp, seq, micro_batches, mfu in runs:
        layout = Layout(
            gpus=gpus,
            tp=8,
            pp=16,
            cp=cp,
            virtual_stages=8,
            micro_batches=micro_batches,
            seq=seq,
            sequence_parallel=True,
            zero=2,
            overlap=("pp", "dp"),
            ends_as_layers=True,
            order="tp-cp-pp-dp",
        )
        for counted in ("matmul", "matmul-half") if cp > 1 else ("matmul",):
            name = f"405B {gpus} {seq}" + (" half" if counted != "matmul" else "")
            rows.append(Row(name, LLAMA, H100, model, layout, ("mfu", mfu), counted))
    return rows


def _bridge() -> list[Row]:
    """Tokens/s of each GPU in FP8 (per-tensor scaling). Recompute and what overlaps are not stated:
    nothing, and data parallelism, are taken. All products are taken to be in FP8."""
    sizes = {
        "8B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336},
        "70B": {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672},
        "405B": {"layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248},
    }
    runs: tuple[tuple[str, str, int, int, int, dict[str, Any], float], ...] = (
        # model, device, gpus, batch, micro-batch, layout, tokens/s of a GPU
        ("8B", H100, 8, 128, 1, {"zero": 3}, 14451),
        ("70B", H100, 64, 128, 1, {"tp": 4, "pp": 8, "virtual_stages": 5}, 1602),
        ("405B", H100, 1024, 512, 1, {"tp": 8, "pp": 8, "cp": 2, "virtual_stages": 8}, 292),
        ("8B", B200, 8, 128, 2, {}, 30624),
        ("405B", B200, 128, 64, 1, {"tp": 4, "pp": 8, "cp": 2, "virtual_stages": 8}, 661),
    )
    rows = []
    for name, device, gpus, batch, micro, degrees, tokens_per_s in runs:
        ranks = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
        layout = Layout(
            gpus=gpus,
            micro_batches=batch * ranks // (gpus * micro),
            micro_batch_size=micro,
            seq=8192,
            sequence_parallel="tp" in degrees,
            ends_as_layers=name == "405B",
            **{"zero": 1, **degrees},
        )
        model = formulas.dense_decoder(**sizes[name], kv_heads=8, vocab=128256)
        rows.append(
            Row(
                f"{name} {device} {gpus}",
                BRIDGE,
                device,
                model,
                layout,
                ("tokens_per_s", tokens_per_s),
                "matmul",
                "fp8",
            )
        )
    return rows


def _mixtures() -> list[Row]:
    """As the rows before; of GPT OSS the page counts windows, which ``matmul`` does not."""
    runs: tuple[tuple[str, str, str, dict[str, Any], float], ...] = (
        (
            "qwen3-30b-a3b",
            B200,
            "fp8",
            {"gpus": 8, "ep": 8, "micro_batches": 64, "micro_batch_size": 1},
            9299,
        ),
        (
            "qwen3-30b-a3b",
            H100,
            "fp8",
            {
                **{"gpus": 16, "ep": 8, "pp": 2, "virtual_stages": 24},
                **{"micro_batches": 32, "micro_batch_size": 2},
            },
            5275,
        ),
        (
            "gpt-oss-120b",
            B200,
            "bf16",
            {"gpus": 64, "ep": 8, "micro_batches": 2, "micro_batch_size": 4},
            8213,
        ),
    )
    rows = []
    for name, device, dtype, degrees, tokens_per_s in runs:
        layout = Layout(**degrees, seq=4096, zero=1)
        model = model_of(name).model
        assert isinstance(model, Decoder)
        published = ("tokens_per_s", tokens_per_s)
        rows.append(
            Row(
                f"{name} {device} {layout.gpus}",
                MIXTURES,
                device,
                model,
                layout,
                published,
                "matmul",
                dtype,
            )
        )
    return rows


ROWS: tuple[Row, ...] = (
    *_korthikanti(),
    *_sc21(),
    *_megascale(),
    *_llama(),
    *_bridge(),
    *_mixtures(),
)
