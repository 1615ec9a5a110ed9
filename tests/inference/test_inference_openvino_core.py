"""OpenVINO computes what PyTorch computes."""

from __future__ import annotations

import sys

import pytest
import torch
from contracts.core_contract import (
    SHAPE,
    ConvertedBackendContract,
    CoreContract,
    Looks,
    batch,
    make,
    ready,
    run,
    sha256,
)
from torch import nn

from chunkflow_py.errors import MissingExtraError, ModelError, OptionError
from chunkflow_py.inference.backends import openvino_core as openvino
from chunkflow_py.inference.backends.openvino_core import OpenVinoCore

openvino_library = pytest.importorskip("openvino")

CAPABILITIES = openvino_library.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
needs_bfloat16 = pytest.mark.skipif(
    "BF16" not in CAPABILITIES, reason=f"the processor has no bfloat16, only {CAPABILITIES}"
)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.long
class TestOpenVinoCore(CoreContract):
    """Conversion and results."""

    core_class = OpenVinoCore


class TestOpenVino(ConvertedBackendContract):
    """--backend openvino."""

    options = {"backend": "openvino"}


@needs_bfloat16
class TestOpenVinoBfloat16(ConvertedBackendContract):
    """--backend openvino --dtype bfloat16."""

    options = {"backend": "openvino", "dtype": "bfloat16"}


@needs_bfloat16
def test_bfloat16_is_bfloat16():
    """bfloat16 has its error, and says so; it is not float32 under another name."""
    network = make("transposed")
    core = OpenVinoCore(network, SHAPE, dtype="bfloat16")
    error = float((core(batch()) - run(network, batch())).abs().max())
    assert 1e-4 < error < 0.05
    assert core.profile["dtype"] == "bfloat16"


def test_bfloat16_needs_the_processor(monkeypatch):
    """Where the processor has no bfloat16, asking for it is an error and not float32."""
    if "BF16" not in CAPABILITIES:
        with pytest.raises(OptionError, match="bfloat16 does not work.*float32"):
            OpenVinoCore(make("tuple"), SHAPE, dtype="bfloat16")
        return
    monkeypatch.setitem(openvino._PRECISIONS, "bfloat16", "f32")
    core = OpenVinoCore(make("tuple"), SHAPE, dtype="bfloat16")
    assert core.profile["dtype"] == "bfloat16"
    # What the compiled network says of itself is compared with what was asked for.
    monkeypatch.setitem(openvino._PRECISIONS, "float32", "f64")
    with pytest.raises((OptionError, RuntimeError)):
        OpenVinoCore(make("tuple"), SHAPE)


def test_results_and_batches_are_not_copied():
    """A result lies in memory of OpenVINO, the same in each call."""
    core = OpenVinoCore(make("rsunet"), SHAPE)
    assert core(batch()).data_ptr() == core(batch(seed=1)).data_ptr()


def test_traces_what_cannot_be_exported():
    """A network that reads a value, and does nothing with it, is traced on a small example."""
    network = ready(Looks(obeys=False))
    sizes = []
    network.register_forward_hook(lambda _, given, __: sizes.append(given[0].shape))
    shape = (1, 1, 40, 96, 96)
    found = OpenVinoCore(network, shape)(batch(shape=shape))
    # What saw no values (torch.export) has been called with the full shape.
    assert min(sizes) < torch.Size(shape)
    assert (1, 1, 16, 16, 16) in [tuple(size) for size in sizes]
    torch.testing.assert_close(found, run(network, batch(shape=shape)), rtol=0, atol=1e-5)


def test_takes_torchscript():
    """A TorchScript program is converted as well."""
    with pytest.warns(DeprecationWarning, match="script"):
        program = torch.jit.script(ready(nn.Sequential(nn.Conv3d(1, 2, 3), nn.Sigmoid())))
    found = OpenVinoCore(program, SHAPE)(batch())
    torch.testing.assert_close(found, run(program, batch()), rtol=0, atol=1e-5)


def test_takes_exported_programs():
    """A torch.export program is converted as well."""
    network = make("instance")
    program = torch.export.export(network, (batch(),)).module()
    found = OpenVinoCore(program, SHAPE)(batch())
    torch.testing.assert_close(found, run(network, batch()), rtol=0, atol=1e-5)


def test_threads_are_bounded():
    """The forward pass has the threads of PyTorch, or those asked for, and the profile says so."""
    assert OpenVinoCore(make("tuple"), SHAPE).profile["threads"] == str(torch.get_num_threads())
    assert OpenVinoCore(make("tuple"), SHAPE, threads=1).profile["threads"] == "1"


@pytest.mark.long
def test_reads_its_own_files(tmp_path):
    """A network saved by OpenVINO (.xml) runs by path."""
    folder = tmp_path / "files"
    folder.mkdir()
    openvino._convert(make("rsunet"), SHAPE, folder)
    found = OpenVinoCore.from_file(folder / "network.xml", SHAPE)(batch())
    assert sha256(found) == sha256(OpenVinoCore(make("rsunet"), SHAPE)(batch()))


def test_refuses_networks_with_two_inputs(tmp_path):
    """A file whose network wants two images is refused with their names."""
    op = openvino_library.opset13
    first, second = (op.parameter([1, 1, 4, 4, 4], name=name) for name in ("left", "right"))
    openvino_library.save_model(
        openvino_library.Model([op.add(first, second)], [first, second]), tmp_path / "two.xml"
    )
    with pytest.raises(ModelError, match="2 inputs"):
        OpenVinoCore.from_file(tmp_path / "two.xml", (1, 1, 4, 4, 4))


def test_missing_library_names_the_pip_line(monkeypatch):
    """Without OpenVINO the error says what to install."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chunkflow_py\[openvino\]'"):
        OpenVinoCore(make("tuple"), SHAPE)
    with pytest.raises(MissingExtraError, match=r"pip install 'chunkflow_py\[openvino\]'"):
        OpenVinoCore.from_file("net.xml", SHAPE)
