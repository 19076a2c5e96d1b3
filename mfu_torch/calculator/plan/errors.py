"""How far off plans were of runs whose step was published: docs/planning.md, row by row.

Shares of the planned step by which the published one was longer. Nothing here changes a plan; a
test holds that the rows give these figures.
"""

from __future__ import annotations

from mfu_torch.calculator.plan.layout import Layout

DENSE = (0.12, 0.92)
"""The least and the most of 54 dense runs, at the best matmul rate that was measured."""

HALF_OF_THEM = 0.25
"""Half of them took so much longer, or more."""

MIXTURES = (4, 6)
"""Times as long: three runs of mixtures of experts."""

FITTED = (-0.02, 0.17)
"""38 A100 runs, with one matmul rate that was fitted on 8 others."""

FITTED_ELSEWHERE = (0.12, 0.75)
"""8 runs on H100 and B200, with that same rate."""

WITHOUT_TP_AND_PP = (0.39, 0.92)
"""3 of the 54 dense runs: those that are data parallel alone."""

WITH_ZERO_3 = 0.67
"""The one run of these three that spreads its parameters."""

_WHERE = "docs/planning.md has each"


def expected(has_experts: bool, rate_is_given: bool, layout: Layout) -> str:
    """What a plan says of itself.

    Args:
        has_experts: Whether the model is a mixture of experts.
        rate_is_given: Whether the rate of its matmuls is not the published one.
        layout: For which few of the runs, or many, stand.
    """
    if has_experts:
        return (
            f"a far longer step: three published steps of mixtures of experts took {MIXTURES[0]} "
            f"to {MIXTURES[1]} times as long as planned; {_WHERE}"
        )
    if rate_is_given:
        less, more = (round(100 * share) for share in FITTED)
        least, most = (round(100 * share) for share in FITTED_ELSEWHERE)
        return (
            f"another step: with one matmul rate fitted on 8 published A100 runs, 38 others took "
            f"{-less} % less to {more} % more than planned, and 8 on H100 and B200 {least} to "
            f"{most} % more; {_WHERE}"
        )
    least, most = (round(100 * share) for share in DENSE)
    return (
        f"a longer step: 54 published runs of dense models took {least} to {most} % longer than "
        f"planned, half of them {round(100 * HALF_OF_THEM)} % or more{_of_layout(layout)}; {_WHERE}"
    )


def _of_layout(layout: Layout) -> str:
    """Of layouts that few of the runs have."""
    of_zero_3 = f"the one with ZeRO 3 {round(100 * WITH_ZERO_3)} %"
    if layout.tp * layout.pp * layout.cp == 1:
        least, most = (round(100 * share) for share in WITHOUT_TP_AND_PP)
        more = f", {of_zero_3}" if layout.zero == 3 else ""
        return f", the three that are data parallel alone {least} to {most} %{more}"
    return f", {of_zero_3}" if layout.zero == 3 else ""
