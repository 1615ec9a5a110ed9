"""Real packages of the BioImage Model Zoo, written for tests."""

from __future__ import annotations

import hashlib
import warnings
import zipfile

import numpy as np
import pytest
import torch

yaml = pytest.importorskip("yaml")

CODE = '''
import torch


class Net(torch.nn.Module):
    """A convolution that respects no symmetry, on axes in any order."""

    def __init__(self, dims=3, channels=1, outputs=2, padding=1):
        super().__init__()
        kind = torch.nn.Conv3d if dims == 3 else torch.nn.Conv2d
        self.convolution = kind(channels, outputs, 3, padding=padding)

    def forward(self, batch):
        return self.convolution(batch)
'''


def make_network(**kwargs):
    """Return the network of `CODE` with reproducible weights."""
    scope = {"__name__": "package_code"}
    exec(CODE, scope)
    network = scope["Net"](**kwargs).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(torch.rand(value.shape, generator=generator) - 0.4)
    return network


class Moved(torch.nn.Module):
    """A network that takes and gives its axes in another order."""

    def __init__(self, network, to_first, from_first, squeeze=()):
        super().__init__()
        self.network = network
        self.to_first, self.from_first, self.squeeze = to_first, from_first, squeeze

    def forward(self, batch):
        """Return the output with its axes moved."""
        for axis in self.squeeze:
            batch = batch.unsqueeze(axis)
        found = self.network(batch.permute(self.to_first)).permute(self.from_first)
        for axis in reversed(self.squeeze):
            found = found.squeeze(axis)
        return found


def save_torchscript(path, network, example):
    """Trace a network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(network, example), str(path))


def save_onnx(path, network):
    """Write the convolution of `make_network`, for any size, as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    layer = network.convolution
    dims = layer.weight.ndim - 2
    node = helper.make_node(
        "Conv", ["raw", "weight", "bias"], ["map"], pads=[*layer.padding * 2],
        kernel_shape=[3] * dims,
    )  # fmt: skip
    shapes = [
        ["n", channels, *"zyx"[-dims:]] for channels in (layer.in_channels, layer.out_channels)
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(("raw", "map"), shapes)
    ]
    constants = [
        numpy_helper.from_array(value.detach().numpy(), name)
        for name, value in (("weight", layer.weight), ("bias", layer.bias))
    ]
    graph = helper.make_graph([node], "net", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))


def sha256(path):
    """Return the sum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def input_0_4(axes="bczyx", **more):
    """Return an input of format 0.4 that takes any size from 4 on in steps of 2."""
    smallest = {"b": 1, "c": 1, "z": 4, "y": 4, "x": 4}
    shape = {
        "min": [smallest[a] for a in axes],
        "step": [2 if a in "zyx" else 0 for a in axes],
    }
    return {"name": "raw", "axes": axes, "data_type": "float32", "shape": shape} | more


def output_0_4(axes="bczyx", channels=2, **more):
    """Return an output of format 0.4 of the size of the input."""
    shape = {
        "reference_tensor": "raw",
        "scale": [0.0 if a == "c" else 1.0 for a in axes],
        "offset": [channels / 2 if a == "c" else 0.0 for a in axes],
    }
    return {"name": "map", "axes": axes, "data_type": "float32", "shape": shape} | more


def axes_0_5(axes, channels, size, **more):
    """Return axes of format 0.5; *size* of a letter, and *more* for spatial ones."""
    found = []
    for letter in axes:
        if letter == "b":
            found.append({"type": "batch"})
        elif letter == "c":
            found.append({"type": "channel", "channel_names": [f"c{i}" for i in range(channels)]})
        else:
            found.append({"type": "space", "id": letter, "size": size(letter)} | more)
    return found


def input_0_5(axes="bczyx", channels=1, more=None, **fields):
    """Return an input of format 0.5 that takes any size from 4 on in steps of 2."""
    there = axes_0_5(axes, channels, lambda _: {"min": 4, "step": 2}, **(more or {}))
    return {"id": "raw", "axes": there} | fields


def output_0_5(axes="bczyx", channels=2, offset=0, more=None, **fields):
    """Return an output of format 0.5, *offset* larger than the input."""
    there = axes_0_5(
        axes,
        channels,
        lambda a: {"tensor_id": "raw", "axis_id": a, "offset": offset},
        **(more or {}),
    )
    return {"id": "map", "axes": there} | fields


def describe(version, inputs=None, outputs=None, **fields):
    """Return a description without weights."""
    first, last = (input_0_4, output_0_4) if version.startswith("0.4") else (input_0_5, output_0_5)
    return {
        "format_version": version,
        "type": "model",
        "name": "convolution",
        "inputs": [first()] if inputs is None else inputs,
        "outputs": [last()] if outputs is None else outputs,
    } | fields


def write_package(folder, description, *, kind="torchscript", network=None, example=None, **kwargs):
    """Write a package with one kind of weights, and return its folder.

    Args:
        folder: to be made.
        description: of `describe`; its weights are added.
        kind: of weights.
        network: to save (default: that of `make_network` with *kwargs*).
        example: what to trace it with.
        kwargs: of `make_network`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network = network or make_network(**kwargs)
    entry = {}
    if kind == "torchscript":
        file = folder / "weights.pt"
        if example is None:
            example = torch.zeros(1, kwargs.get("channels", 1), *[6] * kwargs.get("dims", 3))
        save_torchscript(file, network, example)
    elif kind == "onnx":
        file = folder / "weights.onnx"
        save_onnx(file, network)
    else:
        file, code = folder / "weights.pth", folder / "code.py"
        torch.save(network.state_dict(), file)
        code.write_text(CODE)
        if description["format_version"].startswith("0.4"):
            entry = {"architecture": "code.py:Net", "architecture_sha256": sha256(code)}
            entry["kwargs"] = kwargs
        else:
            entry["architecture"] = {
                "source": "code.py", "sha256": sha256(code), "callable": "Net", "kwargs": kwargs,
            }  # fmt: skip
    entry |= {"source": file.name, "sha256": sha256(file)}
    weights = description.get("weights", {}) | {kind: entry}
    write_description(folder, description | {"weights": weights})
    return folder


def write_description(folder, description):
    """Write the description alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rdf.yaml").write_text("%YAML 1.2\n---\n" + yaml.safe_dump(description))


def zipped(folder):
    """Return the path of a zip archive of a package."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    return path


def noise(*shape, seed=0):
    """Return reproducible float32 in [0, 1)."""
    return torch.from_numpy(np.random.default_rng(seed).random(shape, np.float32))
