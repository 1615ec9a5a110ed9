"""RSUNet of the widths of the trained network in examples/fib25, for every contestant to load.

Random weights, the same each time, in evaluation mode: every contestant does the same arithmetic.
The root of the repository has to be on ``PYTHONPATH``: chunkflow 1.x gives this file no
``__file__``.
"""

import torch

from chunkflow_py.inference.models import create_model

InstantiatedModel = create_model("rsunet", 1, 3, config={"widths": (16, 32, 64, 96)})


def load_model(_: str | None = None) -> torch.nn.Module:
    """Return the network; chunkflow 1.x would insist on a weight file otherwise."""
    return InstantiatedModel
