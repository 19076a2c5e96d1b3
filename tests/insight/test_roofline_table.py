"""The roofline on paper: shares of the step, and the ops furthest from their roof."""

from __future__ import annotations

from typing import Any

from breakdowns import MS, breakdown

from mfu_torch.insight.breakdown.roofline import Roof, Roofline
from mfu_torch.insight.roofline_table import lines


def roof(op: str, ms: int, least_ms: int | None, bound: str, **more: Any) -> Roof:
    given: dict[str, Any] = {
        **{"op": op, "family": "gemm", "shapes": "[[8,8],[8,8]]", "dtype": "bf16", "calls": 4},
        **{"time_ns": ms * MS, "flops": 1, "bytes": 1, "intensity": 280.0, "flops_per_s": 1.0},
        **{"attainable_flops_per_s": None, "bytes_per_s": None, "bound": bound},
        "least_ns": None if least_ms is None else least_ms * MS,
    }
    return Roof(**{**given, **more})


def found(*roofs: Roof, **more: Any) -> Roofline:
    sums = {
        f"{name}_ns": sum(one.time_ns for one in roofs if one.bound == name)
        for name in ("compute", "memory", "neither", "unknown")
    }
    given: dict[str, Any] = {"peak_flops_per_s": 1e15, "bytes_per_s": 4e12, "roofs": roofs}
    return Roofline(**{**given, **sums, **more})


ROOFS = (
    roof("aten::mm", 80, 70, "compute"),
    roof("aten::bmm", 40, 6, "neither"),
    roof("aten::add", 20, 18, "memory", intensity=0.0),
    roof("custom", 10, None, "unknown", intensity=None),
)


def text(roofline: Roofline, top: int = 5) -> str:
    return "\n".join(lines(roofline, breakdown(), top))


def test_the_time_near_each_roof_is_a_share_of_the_steps() -> None:
    words = " ".join(text(found(*ROOFS)).split())
    assert (
        "of the time: 40.0 % near the roof of FLOPs, 10.0 % near that of memory, 20.0 % below half "
        "of both, 5.0 % not known"
    ) in words  # 80, 20, 40 and 10 of 200 ms


def test_the_intensity_at_which_the_roofs_meet_is_said() -> None:
    assert "1.000 PFLOP/s and 4.00 TB/s: an op with less than 250 FLOP per byte" in text(
        found(*ROOFS)
    )


def test_ops_stand_by_the_time_that_they_lose() -> None:
    rows = [line.split() for line in text(found(*ROOFS)).splitlines() if "[[8,8]" in line]
    assert [row[:5] for row in rows] == [
        ["bmm", "20.00", "3.00", "280", "neither"],
        ["mm", "40.00", "35.00", "280", "FLOPs"],
        ["add", "10.00", "9.00", "0", "memory"],
    ]
    assert "bmm" in text(found(*ROOFS), top=1)
    assert "35.00" not in text(found(*ROOFS), top=1)


def test_where_nothing_is_known_the_reason_is_said() -> None:
    said = text(found(roof("x", 9, None, "unknown"), notes=("the bandwidth is not known",)))
    assert said == (
        "Roofline: of no kernel are both its work and the roofs known: the bandwidth is not known"
    )


def test_lines_fit_the_page_and_hold_no_control_characters() -> None:
    long = roof("aten::" + "o" * 90, 9, 1, "neither", shapes="[\x1b[2J" + "1," * 200)
    rows = text(found(long)).splitlines()
    assert max(map(len, rows)) == 100
    assert all(row.isprintable() for row in rows)
