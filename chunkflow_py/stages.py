"""Public names for writing operators; see `chunkflow_py.pipeline.operator`."""

from chunkflow_py.pipeline.operator import (
    Operator,
    Outline,
    Skip,
    Source,
    TaskSource,
    makes,
    operator,
    source,
    transform,
)

__all__ = [
    "Operator",
    "Outline",
    "Skip",
    "Source",
    "TaskSource",
    "makes",
    "operator",
    "source",
    "transform",
]
