"""ONNX Runtime computes what PyTorch computes."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from contracts.core_contract import SHAPE, ConvertedBackendContract, CoreContract, batch, make, run
from torch import nn

from chunkflow_py.errors import MissingExtraError, ModelError, OptionError
from chunkflow_py.inference.backends.onnx_core import OnnxCore

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
for library in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(library)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))


class TestOnnxCore(CoreContract):
    """Conversion and results."""

    core_class = OnnxCore


class TestOnnx(ConvertedBackendContract):
    """--backend onnxruntime."""

    options = {"backend": "onnxruntime"}


@pytest.mark.skipif(
    "CUDAExecutionProvider" in __import__("onnxruntime").get_available_providers(),
    reason="ONNX Runtime has CUDA here",
)
def test_never_the_cpu_in_place_of_a_gpu():
    """Without CUDA in ONNX Runtime, asking for a GPU is an error that names what to install."""
    with pytest.raises(OptionError, match="onnxruntime-gpu"):
        OnnxCore(make("tuple"), SHAPE, device=torch.device("cuda", 0))


def test_a_result_outlives_the_next_call():
    """Results are tensors of their own."""
    core = OnnxCore(make("rsunet"), SHAPE)
    first = core(batch())
    kept = first.clone()
    core(batch(seed=1))
    assert torch.equal(first, kept)


@pytest.mark.long
def test_takes_exported_programs():
    """A torch.export program is converted as well."""
    network = make("instance")
    program = torch.export.export(network, (batch(),)).module()
    found = OnnxCore(program, SHAPE)(batch())
    torch.testing.assert_close(found, run(network, batch()), rtol=0, atol=1e-5)


def test_refuses_torchscript():
    """TorchScript, which ONNX's exporter does not take, is refused with what does work."""
    with pytest.warns(DeprecationWarning, match="script"):
        program = torch.jit.script(nn.Sequential(nn.Conv3d(1, 2, 3)).eval())
    with pytest.raises(ModelError, match="TorchScript.*openvino"):
        OnnxCore(program, SHAPE)


@pytest.mark.parametrize("library", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_library_names_the_pip_line(monkeypatch, library):
    """Without one of the libraries the error says what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*'chunkflow_py\[onnx\]'"):
        OnnxCore(make("tuple"), SHAPE)


def test_reports_nothing_to_its_makers():
    """The library's telemetry is off in a process that uses it through this package."""
    OnnxCore(make("tuple"), SHAPE)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
