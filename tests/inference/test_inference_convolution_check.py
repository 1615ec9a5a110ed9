"""Convolutions that a device computes wrongly are found before a result is stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rigs.command_line import say
from torch.overrides import TorchFunctionMode

from chunkflow_py.core import failpoints
from chunkflow_py.errors import WrongArithmeticError
from chunkflow_py.inference.backends import convolution_check
from chunkflow_py.inference.backends.convolution_check import (
    Convolution,
    SeenConvolutions,
    check_convolutions,
    describe_cudnn,
    error_of,
    error_within_memory,
)
from chunkflow_py.inference.backends.torch_core import TorchCore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = torch.device("cpu")
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
CORRUPTED = {"CHUNKFLOW_FAILPOINT": "convolution:corrupt"}


class Replaced(TorchFunctionMode):
    """Computes convolutions with another function inside the ``with`` block."""

    def __init__(self, instead: Any) -> None:
        """Take a function of image, kernel and what else conv3d gets."""
        self.instead = instead

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call *func*, or the other function for conv3d."""
        if func is torch.nn.functional.conv3d:
            return self.instead(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def corrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the checked convolutions be wrong."""
    for name, value in CORRUPTED.items():
        monkeypatch.setenv(name, value)
    failpoints._points.cache_clear()
    monkeypatch.setattr(convolution_check, "_right", set())
    yield
    monkeypatch.undo()
    failpoints._points.cache_clear()


def three(dtype: torch.dtype = torch.bfloat16, channels: int = 8) -> Convolution:
    """Return a 3x3x3 convolution as networks have it."""
    return Convolution.plain(channels, (6, 8, 10), (3, 3, 3), dtype, channels_last=True)


# --- the comparison ------------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    """Draw a convolution with stride, dilation, groups and any padding, in 2D or 3D."""
    axes, groups = draw(st.sampled_from([2, 3])), draw(st.sampled_from([1, 2]))
    each = {"min_size": axes, "max_size": axes}
    numbers = st.lists(st.integers(1, 2), **each).map(tuple)
    padding: Any = st.lists(st.integers(0, 2), **each).map(tuple)
    stride, padding = draw(numbers), draw(st.one_of(padding, st.just("same")))
    channels = [groups * draw(st.sampled_from([1, 3, 8])) for _ in range(2)]
    kernel = draw(st.lists(st.integers(1, 4), **each).map(tuple))
    size = draw(st.lists(st.integers(8, 12), **each).map(tuple))
    return Convolution(
        (draw(st.integers(1, 2)), channels[0], *size),
        (channels[1], channels[0] // groups, *kernel),
        (1,) * axes if padding == "same" else stride,
        padding,
        draw(numbers),
        groups,
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        draw(st.booleans()),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@given(convolutions())
def test_a_device_in_order_only_rounds_the_result(convolution: Convolution) -> None:
    """Float32 is exact, half precisions err by a unit roundoff at most: no sum has an error.

    So the compared values are those of the convolution, whatever its geometry.
    """
    error = error_of(convolution, CPU)
    assert error <= UNIT.get(convolution.dtype, 0.0)
    assert error <= convolution.tolerance()


def test_the_tolerance_follows_from_the_dtype() -> None:
    """Four roundings to the dtype, and a float32 addition for each product of a sum."""
    assert three(torch.bfloat16).tolerance() == 4 * 2.0**-8 + 8 * 27 * 2.0**-24
    assert three(torch.float16).tolerance() == 4 * 2.0**-11 + 8 * 27 * 2.0**-24


def _drops_a_tap(image: Any, kernel: Any, *more: Any) -> Any:
    kernel = kernel.clone()
    kernel[:, :, 0, 0, 0] = 0
    return torch.conv3d(image, kernel, *more)


def _adds_in_bfloat16(image: Any, kernel: Any, *more: Any) -> Any:
    parts = zip(image.split(1, 1), kernel.split(1, 1), strict=True)
    return sum(torch.conv3d(a, b, *more) for a, b in parts)


def _mixes_up_the_end(image: Any, kernel: Any, *more: Any) -> Any:
    output = torch.conv3d(image, kernel, *more)
    output[..., -1, -1, :] = output[..., 0, 0, :]
    return output


def _gives_nan(image: Any, kernel: Any, *more: Any) -> Any:
    return torch.conv3d(image, kernel, *more) * float("nan")


@pytest.mark.parametrize(
    "instead", [_drops_a_tap, _adds_in_bfloat16, _mixes_up_the_end, _gives_nan]
)
def test_other_arithmetic_is_found(instead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tap, sums rounded to bfloat16, a wrong corner and NaN are all beyond tolerance."""
    monkeypatch.setattr(convolution_check, "_right", set())
    with Replaced(instead), pytest.raises(WrongArithmeticError, match="rounding explains at most"):
        check_convolutions([three(channels=64)], CPU)


@pytest.mark.usefixtures("corrupted")
def test_the_error_names_device_versions_values_and_remedy() -> None:
    """And the convolution, with its precision and layout."""
    with pytest.raises(WrongArithmeticError) as caught:
        check_convolutions([three()], CPU)
    message = str(caught.value)
    assert message.startswith("cpu ")
    for part in (
        f"PyTorch {torch.__version__}", "3x3x3 convolution from 8 to 8 channels on 6x8x10 voxels",
        "(bfloat16, channels last)", "at most 0.016", "another version of PyTorch",
        "--dtype float32",
    ):  # fmt: skip
        assert part in message


def test_a_convolution_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has found to be right is not computed again; another one is."""
    monkeypatch.setattr(convolution_check, "_right", set())
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args[0].dtype)
        return torch.conv3d(*args)

    with Replaced(counted):
        for dtype in (torch.bfloat16, torch.bfloat16, torch.float16):
            check_convolutions([three(dtype)], CPU)
    assert calls == [torch.bfloat16, torch.float16]


def test_a_device_with_little_memory_computes_a_smaller_image() -> None:
    """The batch is cut first, then the longest axis; a kernel that does not fit is the end."""
    sizes = []

    def limited(image: Any, *more: Any) -> Any:
        sizes.append(tuple(image.shape))
        if image.numel() > 8 * 200:
            raise torch.OutOfMemoryError
        return torch.conv3d(image, *more)

    whole = Convolution(
        (2, 8, 6, 8, 10), (8, 8, 3, 3, 3), (1,) * 3, (1,) * 3, (1,) * 3, 1, torch.bfloat16
    )
    with Replaced(limited):
        assert error_within_memory(whole, CPU) <= 2.0**-8
    assert sizes == [(2, 8, 6, 8, 10), (1, 8, 6, 8, 10), (1, 8, 6, 8, 5), (1, 8, 6, 4, 5)]
    assert whole.cropped(1).image == (1, 8, 3, 4, 5)


@pytest.mark.parametrize(
    ("number", "text"), [(91002, "9.10.2"), (90100, "9.1.0"), (8902, "8.9.2"), (7605, "7.6.5")]
)
def test_versions_of_cudnn_are_written_as_people_do(number: int, text: str) -> None:
    """They were thousands up to version 8, and are ten thousands since version 9."""
    assert describe_cudnn(number) == text


# --- the network ---------------------------------------------------------------------------------


def network() -> torch.nn.Module:
    """Return a network with kernels of two sizes, one of them twice, and a transposed one."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.Conv3d(4, 8, 3, padding="same"),
        nn.Conv3d(8, 4, (1, 5, 5), padding="valid", dilation=(1, 2, 1)),
        nn.ConvTranspose3d(4, 4, 3),
    )


def as_script(module: torch.nn.Module, _: torch.Tensor) -> Any:
    """Return a TorchScript program."""
    return torch.jit.script(module)


def as_program(module: torch.nn.Module, batch: torch.Tensor) -> Any:
    """Return an exported program."""
    return torch.export.export(module, (batch,)).module()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("form", [lambda module, _: module, as_script, as_program])
def test_the_largest_convolution_of_each_kernel_size_is_seen(form: Any) -> None:
    """In modules and programs, in the dtype in which it runs, with its geometry."""
    batch = torch.rand(2, 1, 4, 16, 16)
    made = form(network().eval(), batch)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), SeenConvolutions() as seen:
        made(batch)
    one = (1, 1, 1)
    half = torch.bfloat16
    assert set(seen.largest.values()) == {
        Convolution((2, 4, 4, 16, 16), (8, 4, 3, 3, 3), one, "same", one, 1, half),
        Convolution((2, 8, 4, 16, 16), (4, 8, 1, 5, 5), one, (0, 0, 0), (1, 2, 1), 1, half),
    }


def test_a_network_in_half_precision_is_checked_with_its_first_batch() -> None:
    """In the layout in which it runs: channels last."""
    batch = torch.rand(1, 1, 4, 16, 16)
    core = TorchCore(network(), tuple(batch.shape), device=CPU, dtype="bfloat16")
    core(batch)
    right = {key[0] for key in convolution_check._right}
    assert Convolution(
        (1, 4, 4, 16, 16), (8, 4, 3, 3, 3), (1,) * 3, "same", (1,) * 3, 1, torch.bfloat16, True
    ) in right  # fmt: skip


def test_the_check_does_not_load_the_compiler() -> None:
    """The import of torch._dynamo would take a second, and the check takes milliseconds."""
    program = """
import sys, torch
from chunkflow_py.inference.backends.torch_core import TorchCore
from chunkflow_py.inference.backends import convolution_check
batch = torch.rand(1, 1, 4, 8, 8)
network = torch.nn.Conv3d(1, 3, 3)
TorchCore(network, tuple(batch.shape), device=torch.device("cpu"), dtype="bfloat16")(batch)
print(len(convolution_check._right), "torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.usefixtures("corrupted")
@pytest.mark.parametrize("axes", [2, 3])
def test_a_wrong_convolution_stops_a_network_at_every_batch(axes: int) -> None:
    """An attempt to go on is refused too; float32 on the CPU is not checked."""
    batch = torch.rand((1, 1, *(4, 16, 16)[-axes:]))
    layer: Any = getattr(torch.nn, f"Conv{axes}d")
    core = TorchCore(layer(1, 3, 3), tuple(batch.shape), device=CPU, dtype="bfloat16")
    for _ in range(2):
        with pytest.raises(WrongArithmeticError):
            core(batch)
    assert TorchCore(layer(1, 3, 3), tuple(batch.shape), device=CPU)(batch).shape[1] == 3


# --- the command line ----------------------------------------------------------------------------


def chunkflow(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "chunkflow_py", *map(str, words)],
        cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an image and a network."""
    with h5py.File(tmp_path / "em.h5", "w") as file:
        file["main"] = np.random.default_rng(0).integers(1, 256, (8, 24, 24), dtype=np.uint8)
    (tmp_path / "net.py").write_text(
        "import torch\ntorch.manual_seed(0)\n"
        "InstantiatedModel = torch.nn.Sequential(torch.nn.Conv3d(1, 3, 3, padding=1),"
        " torch.nn.Sigmoid())\n"
    )
    return tmp_path


INFERENCE = (
    "inference", "-f", "pytorch", "-m", "net.py", "-s", 8, 12, 12, "-v", 0, 4, 4,
    "--device", "cpu", "--dtype",
)  # fmt: skip


def test_inference_on_a_faulty_device_stores_nothing(folder: Path) -> None:
    """It ends with exit code 1 and one sentence; in float32 it runs."""
    words = ("load-h5", "-f", "em.h5", *INFERENCE)
    done = chunkflow(folder, *words, "bfloat16", "save-h5", "-f", "out.h5", **CORRUPTED)
    assert done.returncode == 1
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("Error:")]
    assert "inference failed" in line
    assert "computes wrong values with PyTorch" in line
    assert "Traceback" not in done.stderr
    assert not (folder / "out.h5").exists()
    done = chunkflow(folder, *words, "float32", "save-h5", "-f", "out.h5", **CORRUPTED)
    assert done.returncode == 0, done.stderr


def test_a_worker_on_a_faulty_device_stops_and_blames_no_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks stay in the queue, for workers whose devices are in order."""
    submit = (
        "submit", "--run", "masks.run", "--queue", "file://queue",
        "generate-tasks", "--roi-size", 8, 24, 24, "--chunk-size", 8, 12, 12,
        "load-h5", "-f", "em.h5", "--expand-margin-size", "auto", *INFERENCE, "bfloat16",
        "save-zarr", "--store", "out.zarr", "--block-size", 8, 12, 12,
    )  # fmt: skip
    monkeypatch.chdir(folder)
    say(" ".join(map(str, submit)))
    work = ("work", "masks.run", "--until-complete")
    done = chunkflow(folder, *work, **CORRUPTED)
    assert done.returncode == 75, done.stderr
    assert "has a faulty device" in done.stderr
    (step,) = json.loads(say("status masks.run --json"))["stages"]
    assert (step["left"], step["failed"], step["attempts_failed"]) == (4, 0, 0)
    done = chunkflow(folder, *work)
    assert done.returncode == 0, done.stderr
