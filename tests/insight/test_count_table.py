"""The table of a model's count: which modules stand together, and what is said of unknowns."""

from __future__ import annotations

from mfu_torch.insight.count_table import ModelCount, Parameters, render, summary
from mfu_torch.insight.module_families import families, grouped_modules
from mfu_torch.records import FlopCount, FlopTerm, Phase


def part(
    flops: int, phase: Phase = "forward", op: str = "aten.mm", dtype: str = "bf16"
) -> FlopCount:
    term = FlopTerm(phase=phase, op=op, dtype=dtype, flops=flops, causal_flops=flops, calls=1)
    return FlopCount(terms=(term,))


def found(modules: dict[str, FlopCount], **fields: object) -> ModelCount:
    values: dict[str, object] = {
        "model": "Model",
        "path": "config.json",
        "work": "input_ids 1 x 10",
        "dtype": "bf16",
        "attention": "sdpa",
        "train": True,
        "checkpoint": False,
        "samples": 1,
        "tokens": 10,
        "one_pass": True,
        "parameters": Parameters(total=1000, trainable=1000, embedding=0),
        "count": FlopCount.sum(modules.values()),
        "modules": modules,
    }
    return ModelCount(**{**values, **fields})  # type: ignore[arg-type]


def names(modules: dict[str, FlopCount]) -> list[tuple[str, int, int]]:
    def walk(below: tuple[object, ...]) -> list[tuple[str, int, int]]:
        rows = []
        for family in below:
            rows.append((family.name, family.modules, family.hardware))  # type: ignore[attr-defined]
            rows += walk(family.inside)  # type: ignore[attr-defined]
        return rows

    return walk(families(modules))


def test_modules_of_the_same_place_stand_together() -> None:
    modules = {f"layers.{i}.{name}": part(10) for i in range(3) for name in ("up", "down")}
    assert names(modules | {"head": part(5)}) == [
        *(("layers.*", 3, 60), ("up", 3, 30), ("down", 3, 30)),
        ("head", 1, 5),
    ]


def test_only_whole_names_are_numbers() -> None:
    modules = {"conv1": part(1), "conv2": part(2), "0": part(3), "1": part(4)}
    assert names(modules) == [("conv1", 1, 1), ("conv2", 1, 2), ("*", 2, 7)]


def test_what_runs_in_a_module_itself_has_a_row_of_its_own() -> None:
    modules = {"a.b.q": part(1), "a.b": part(2, op="aten._flash_attention_forward")}
    assert names(modules) == [
        *(("a.b", 1, 3), ("q", 1, 1), ("(attention scores and values)", 1, 2))
    ]
    modules["a.b"] += part(3)
    assert names(modules)[-1] == ("(its own products)", 1, 5)


def test_what_runs_in_the_model_itself_and_outside_of_it() -> None:
    modules = {"": part(1), "head": part(2), "(outside the model)": part(3)}
    assert names(modules) == [
        ("(its own products)", 1, 1),
        ("head", 1, 2),
        ("(outside the model)", 1, 3),
    ]


def test_recomputation_is_in_its_own_column_and_in_the_share() -> None:
    modules = {"a": part(60) + part(25, "recompute") + part(15, "kernel_recompute")}
    (family,) = families(modules | {"b": FlopCount()})
    assert (family.forward, family.recompute, family.kernel_recompute) == (60, 25, 15)
    assert family.hardware == 100
    text = render(found(modules))
    header, row, *_ = text.split("\n\n")[1].splitlines()
    assert header.split()[-4:] == ["recompute", "kernel", "share", "%"]
    assert row.split() == ["a", "1", "60", "-", "25", "15", "100.0"]
    # The numbers of the table are those of the lines below it.
    assert "  recompute                       25 FLOP (25.0 %)" in text
    assert "  recompute in attention kernels  15 FLOP (15.0 %)" in text
    assert "share: of hardware FLOPs; kernel: what attention kernels repeat" in text


def test_the_shares_add_up_to_100() -> None:
    lines = render(found({name: part(1) for name in "abc"})).split("\n\n")[1].splitlines()
    assert [line.split()[-1] for line in lines[1:-1]] == ["33.4", "33.3", "33.3", "100.0"]


def test_a_long_name_keeps_its_end() -> None:
    lines = render(found({"x" * 60 + "tail": part(1)})).splitlines()
    row = next(line for line in lines if "tail" in line)
    assert len(row) <= 100
    assert row.startswith("...x")


def masked(flops: int, kept: int) -> FlopCount:
    term = FlopTerm(
        phase="forward", op="aten.sdpa", dtype="bf16", flops=flops, causal_flops=kept, calls=1
    )
    return FlopCount(terms=(term,))


def test_an_upper_bound_is_called_one() -> None:
    modules = {"a": masked(1000, 900)}
    bound = found(modules, causal_bounds=("a mask was not read",), notes=("a mask was not read",))
    assert "(attention causal: at most 900 FLOP, 10.0 % less, see the notes)" in " ".join(
        render(bound).split()
    )
    flops = summary(bound)["flops"]
    assert (flops["model_causal"], flops["causal_is_upper_bound"]) == (900, True)
    assert flops["causal_bounds"] == ("a mask was not read",)


def test_two_counts_that_print_alike_are_told_apart_by_their_difference() -> None:
    text = render(found({"a": masked(649_000_000_000, 648_900_000_000)}))
    assert "model FLOPs                     649 GFLOP   (attention causal: 649 GFLOP, " in text
    assert ", 0.015 % less)" in text
    assert "(attention causal: the same)" in render(found({"a": part(100)}))


def test_the_tokens_of_two_texts_are_called_that() -> None:
    two = found({"a": part(100)}, one_pass=False, tokens=20)
    assert (
        "per token                       5 FLOP model, of 20 tokens, source and target"
        in render(two)
    )
    assert summary(two)["tokens_are"] == "source and target"
    assert summary(found({"a": part(100)}))["tokens_are"] == "source"


def test_equal_modules_are_one_entry_with_the_flops_of_each() -> None:
    modules = {f"layers.{i}.mlp": part(10) for i in (0, 1, 2, 5)}
    modules |= {"layers.3.mlp": part(11), "layers.4.mlp": part(11), "head": part(7)}
    assert grouped_modules(modules) == {
        "layers.0-2,5.mlp": {"times": 4, "forward": 10},
        "layers.3-4.mlp": {"times": 2, "forward": 11},
        "head": {"times": 1, "forward": 7},
    }


def test_two_numbers_in_a_path_are_two_ranges_or_none() -> None:
    whole = {f"block.{i}.layer.{j}": part(10) for i in range(3) for j in range(2)}
    assert grouped_modules(whole) == {"block.0-2.layer.0-1": {"times": 6, "forward": 10}}
    del whole["block.1.layer.1"]
    assert list(grouped_modules(whole).values()) == [{"times": 1, "forward": 10}] * 5
    assert "block.2.layer.1" in grouped_modules(whole)


def test_experts_that_cannot_be_told_leave_the_rule_of_thumb_out() -> None:
    parameters = Parameters(total=9, trainable=9, embedding=0, active_unknown="routing is odd")
    odd = found({"a": part(100)}, parameters=parameters)
    assert "active per token: not known, routing is odd" in render(odd)
    assert "rule of thumb" not in render(odd)
    assert summary(odd)["rule_of_thumb"] == {"flops": None, "model_over_rule": None}


def test_active_parameters_are_those_of_the_rule() -> None:
    parameters = Parameters(total=9000, trainable=9000, embedding=0, active=2000)
    sparse = found({"a": part(240_000)}, parameters=parameters)
    assert sparse.rule_of_thumb == 6 * 2000 * 10
    text = " ".join(render(sparse).split())
    assert "2 k active per token" in text or "2.00 k active per token" in text
    assert "6 x 2.00 k active parameters x 10 tokens; model FLOPs are 2.000 times that" in text


def test_what_was_not_counted_is_named() -> None:
    count = part(10) + FlopCount(uncounted={"mylib.scores": 4}, notes=("a limit",))
    text = render(found({"a": part(10)}, count=count))
    assert "mylib.scores (4 calls); the count is a lower bound" in " ".join(text.split())
    assert text.endswith("Notes\n  - a limit\n")


def test_a_model_without_contractions_has_no_table() -> None:
    empty = found({}, tokens=None)
    text = render(empty)
    assert "FLOPs by module" not in text
    assert "per sample                      0 FLOP model" in text


def test_frozen_parameters_are_told() -> None:
    parameters = Parameters(total=2_000_000_000, trainable=1_500_000, embedding=0)
    text = render(found({"a": part(1)}, parameters=parameters))
    assert "parameters    2.00 B, 1.50 M trainable, 0 in embeddings" in text
