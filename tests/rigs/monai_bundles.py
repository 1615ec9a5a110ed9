"""Write MONAI bundles with random weights, and images for them.

The functions that make networks of MONAI need MONAI; all others do not.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch

PATCH = (8, 10, 12)  # x, y, z


def config(network, *, before=(), after=(), inferer=None, **more):
    """Return an inference config of the usual form around a definition of a network."""
    return {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "image_key": "image",
        "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": network,
        "network": "$@network_def.to(@device)",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "@image_key"},
                {"_target_": "EnsureChannelFirstd", "keys": "@image_key"},
                *before,
                {"_target_": "EnsureTyped", "keys": "@image_key"},
            ],
        },
        "inferer": inferer or sliding_window(),
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                *after,
                {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir"},
            ],
        },
        **more,
    }


def sliding_window(size=PATCH, **more):
    """Return the definition of a sliding window with Gaussian weights."""
    sizes = size if isinstance(size, str) else list(size)
    return {
        "_target_": "SlidingWindowInferer", "roi_size": sizes, "sw_batch_size": 2,
        "overlap": 0.5, "mode": "gaussian", **more,
    }  # fmt: skip


def metadata(inputs=1, outputs=2):
    """Return metadata of a network with one input and one output."""
    return {
        "version": "0.1.0", "monai_version": "1.6.1", "task": "test",
        "network_data_format": {
            "inputs": {"image": {"type": "image", "num_channels": inputs}},
            "outputs": {"pred": {"type": "image", "num_channels": outputs}},
        },
    }  # fmt: skip


def write_bundle(folder, inference, network=None, *, weights=("model.pt",), meta=None):
    """Write a bundle and return its folder.

    Args:
        folder: where to write it.
        inference: the inference config.
        network: the network, whose weights are written.
        weights: of ``model.pt`` (state dict) and ``model.ts`` (TorchScript), which to write.
        meta: the metadata (default: `metadata`).
    """
    folder = Path(folder)
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs/inference.json").write_text(json.dumps(inference, indent=1))
    (folder / "configs/metadata.json").write_text(json.dumps(meta or metadata(), indent=1))
    if "model.pt" in weights and network is not None:
        torch.save(network.state_dict(), folder / "models/model.pt")
    if "model.ts" in weights and network is not None:
        channels = (meta or metadata())["network_data_format"]["inputs"]["image"]["num_channels"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(network, torch.zeros(1, channels, 16, 16, 16))
            torch.jit.save(traced, str(folder / "models/model.ts"))
    return folder


def zipped(folder, inside=""):
    """Pack a bundle into a .zip beside it, in the folder *inside* of the archive."""
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                # The time is fixed, so that equal files make equal archives.
                member = zipfile.ZipInfo(f"{inside}{file.relative_to(folder).as_posix()}")
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, file.read_bytes())
    return target


def randomised(network, seed=7):
    """Return *network* in evaluation mode, all its weights and statistics random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.dtype.is_floating_point:
                random = torch.rand(value.shape, generator=generator)
                spread = 6 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.2
                value.copy_(random + 0.5 if "var" in name else (random - 0.5) * spread)
    return network.eval()


def convolution(inputs=1, outputs=2, kernel=3):
    """Return definition and network of a convolution that respects no symmetry."""
    definition = {
        "_target_": "torch.nn.Conv3d", "in_channels": inputs, "out_channels": outputs,
        "kernel_size": kernel, "padding": kernel // 2,
    }  # fmt: skip
    network = torch.nn.Conv3d(inputs, outputs, kernel, padding=kernel // 2)
    return definition, randomised(network)


def monai_network(definition):
    """Return the network of MONAI of a definition, with random weights and balanced channels."""
    import monai.networks.nets

    arguments = {key: value for key, value in definition.items() if key != "_target_"}
    name = definition["_target_"].rpartition(".")[2]
    network = randomised(getattr(monai.networks.nets, name)(**arguments))
    last = [each for each in network.modules() if isinstance(each, torch.nn.Conv3d)][-1]
    noise = torch.rand(1, 1, 16, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        scale = 1 / network(noise).std()
        last.weight *= scale
        last.bias *= scale
        last.bias -= network(noise)[0].flatten(1).median(1).values
    return network


def voxels(size, seed=0):
    """Return an image of int16, (x, y, z), with some zeros."""
    random = np.random.default_rng(seed)
    image = random.integers(-200, 300, size, dtype=np.int16)
    image[random.random(size) < 0.1] = 0
    return image


def write_nifti(path, image, spacing=(1.5, 1.5, 2.0), code="RAS"):
    """Write an image (x, y, z) whose axes have the directions of *code*; return the path."""
    import nibabel

    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    for axis, letter in enumerate(code):
        row = next(i for i, pair in enumerate(("LR", "PA", "IS")) if letter in pair)
        affine[row, axis] = spacing[axis] * (1 if letter in "RAS" else -1)
    found = nibabel.Nifti1Image(image, affine)
    found.header.set_xyzt_units("mm")
    nibabel.save(found, path)
    return path
