"""Write the shipped FIB-25 network as an ONNX file, for one batch shape.

Usage: python export.py FILE.onnx

The file contains the network and its weights, and no Python code.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import torch

DATA = Path(__file__).resolve().parents[1] / "fib25"
SHAPE = (1, 1, 24, 48, 48)  # of a batch: patches, channels, z, y, x


def main(path: str) -> None:
    """Write the network to *path*."""
    sys.path.insert(0, str(DATA))
    from unet_fib25_model import InstantiatedModel

    network = InstantiatedModel
    network.load_state_dict(torch.load(DATA / "unet_fib25.pt", weights_only=True))
    network.eval()  # normalisation layers use their stored statistics
    logging.disable(logging.WARNING)  # operators of torchvision that are not installed
    warnings.simplefilter("ignore")
    program = torch.onnx.export(network, (torch.zeros(SHAPE),), dynamo=True, verbose=False)
    program.save(path)
    print(f"{path}: {Path(path).stat().st_size / 1e6:.1f} MB, for batches of {SHAPE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
