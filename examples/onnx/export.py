"""Write the shipped network of FIB-25 as an ONNX file, for one shape of batch.

Usage: python export.py FILE.onnx

The file holds the network with its weights, and no code of Python.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import torch

DATA = Path(__file__).resolve().parents[1] / "fib25"
SHAPE = (1, 1, 24, 48, 48)  # of each batch: patches, channels, z, y, x


def main(path: str) -> None:
    """Write the network to *path*."""
    sys.path.insert(0, str(DATA))
    from unet_fib25_model import InstantiatedModel

    network = InstantiatedModel
    network.load_state_dict(torch.load(DATA / "unet_fib25.pt", weights_only=True))
    network.eval()  # or normalisation layers would go on learning
    logging.disable(logging.WARNING)  # operators of torchvision that are not installed
    warnings.simplefilter("ignore")
    program = torch.onnx.export(network, (torch.zeros(SHAPE),), dynamo=True, verbose=False)
    program.save(path)
    print(f"{path}: {Path(path).stat().st_size / 1e6:.1f} MB, for batches of {SHAPE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
