"""What turns maps into objects, and measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# waterz names its scores by C++ types.
MEAN_AFFINITY = "OneMinus<MeanAffinity<RegionGraphType, ScoreValue>>"


def score_code(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what settings of agglomeration let be compiled and run, in words.

    Args:
        settings: of which only ``scoring_function`` matters.
    """
    score = settings.get("scoring_function", MEAN_AFFINITY)
    return () if score == MEAN_AFFINITY else (f"the scoring function {score}, as C++",)
