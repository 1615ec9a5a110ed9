"""Segmentation: label objects, create their meshes and skeletons, and score the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# waterz names its scores by C++ types.
MEAN_AFFINITY = "OneMinus<MeanAffinity<RegionGraphType, ScoreValue>>"


def score_code(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a description of the C++ code that `agglomerate` compiles for a scoring function.

    Args:
        settings: arguments of `agglomerate`, of which only ``scoring_function`` is used.

    Returns:
        A tuple that contains the description. For the mean affinity, the tuple is empty, because
        waterz contains the compiled code of this function.
    """
    score = settings.get("scoring_function", MEAN_AFFINITY)
    return () if score == MEAN_AFFINITY else (f"the scoring function {score}, as C++",)
