"""What only a GPU can show; needs pytest and the libraries of the core only (`make gpu-check`)."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rigs.engines import CASES, computed

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends import convolution_check
from chunkflow_py.inference.backends.compute_profile import cuda_switches, profile_of
from chunkflow_py.inference.backends.convolution_check import Convolution, error_of
from chunkflow_py.inference.backends.torch_core import TorchCore
from chunkflow_py.inference.device_streams import Device, Stopwatch
from chunkflow_py.inference.memory_estimate import available_device_bytes
from chunkflow_py.planning.tune_process import measure
from chunkflow_py.testing.backend_contract import BackendContract

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

PATCH = Zyx(4, 16, 16)
SIZES: dict[str, Any] = {"input_patch_size": PATCH, "output_patch_size": PATCH, "batch_size": 2}
NETWORK = """
import torch

torch.manual_seed(0)
InstantiatedModel = torch.nn.Sequential(
    torch.nn.Conv3d(1, 8, 3, padding=1),
    torch.nn.BatchNorm3d(8),
    torch.nn.ELU(inplace=True),
    torch.nn.Conv3d(8, 3, 3, padding=1),
    torch.nn.Sigmoid(),
)
"""
VIEWING = """
class Viewing(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        y = self.network(x)
        return y.view(len(y), -1).view(y.shape)

InstantiatedModel = Viewing(InstantiatedModel)
"""
MEGABYTE = 1 << 20


def written(folder: Path, network: str = NETWORK) -> str:
    """Return the path of a model file."""
    file = folder / "model.py"
    file.write_text(network)
    return str(file)


def batch(seed: int = 0) -> torch.Tensor:
    """Return a batch on the host."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((2, 1, *PATCH), generator=generator)


def device_of(index: int) -> Device:
    """Return a GPU, or skip the test where there are not so many."""
    count = torch.cuda.device_count()
    if index >= count:
        pytest.skip(f"needs {index + 1} CUDA devices; there is {count}")
    return Device.of(torch.device("cuda", index))


# --- the engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_engine_gives_what_the_cpu_gives(name: str, index: int) -> None:
    """Of any kind of output, on the first and on the second GPU, three times over."""
    device = device_of(index)
    expected = computed(CASES[name], Device(torch.device("cpu")))
    for _ in range(3):
        for mine, wanted in zip(computed(CASES[name], device), expected, strict=True):
            assert mine.dtype == wanted.dtype
            tolerance = 1 if mine.dtype == np.uint8 else 1e-3 if mine.dtype == np.float16 else 1e-6
            difference = np.abs(mine.astype(np.float64) - wanted.astype(np.float64))
            assert float(difference.max()) <= tolerance


def test_threads_of_an_engine_enter_its_device() -> None:
    """The current device of a thread that waits for the second GPU is the second GPU."""
    with device_of(1).thread("test") as thread:
        assert thread.submit(torch.cuda.current_device).result() == 1
    assert torch.cuda.current_device() == 0


def test_a_stopwatch_counts_what_the_gpu_has_ended() -> None:
    """It is read without waiting, also from another thread, and agrees with itself afterwards."""
    watch = Stopwatch(torch.device("cuda"))
    assert watch.so_far() == 0
    matrix = torch.ones(512, 512, device="cuda")
    with watch.running():
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(0, 1)
    thread = threading.Thread(target=watch.so_far)
    thread.start()
    thread.join()
    total = watch.seconds()
    assert watch.so_far() == total > 0


# --- backends ------------------------------------------------------------------------------------


class TestCuda(BackendContract):
    """Framework pytorch on a GPU, replayed from a graph."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Any:
        """Return the backend."""
        return create_backend(model=written(tmp_path), **(self.settings | {"device": "cuda"}))

    def batch(self, seed: int = 0) -> torch.Tensor:
        """Return a batch on the GPU."""
        return super().batch(seed).cuda()


class TestOnnxCuda(BackendContract):
    """--backend onnxruntime --device cuda."""

    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Return the backend, where its libraries are."""
        for library in ("onnx", "onnxscript", "onnxruntime"):
            if find_spec(library) is None:
                pytest.skip(f"{library} is not installed")
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            pytest.skip("ONNX Runtime has no CUDA here")
        monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))
        settings: dict[str, Any] = self.settings | {"device": "cuda", "backend": "onnxruntime"}
        return create_backend("pytorch", model=written(tmp_path), **settings)

    def batch(self, seed: int = 0) -> torch.Tensor:
        """Return a batch on the GPU."""
        return super().batch(seed).cuda()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-1), ("float16", 1e-2)]
)
def test_cuda_agrees_with_the_cpu(tmp_path: Path, dtype: str, tolerance: float) -> None:
    """A GPU gives what the CPU gives, to the tolerance of the type."""
    path = written(tmp_path)
    there: Any = create_backend(model=path, device="cuda", dtype=dtype, **SIZES)
    here = create_backend(model=path, device="cpu", **SIZES)
    result = there(batch().cuda())
    assert float((result.float().cpu() - here(batch())).abs().max()) < tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_graph_gives_the_bytes_of_the_network(tmp_path: Path, dtype: str) -> None:
    """A captured forward gives the bytes of one that is not, batch after batch."""
    settings = SIZES | {"model": written(tmp_path), "device": "cuda", "dtype": dtype}
    graph: Any = create_backend(**settings)
    plain = create_backend(cuda_graphs=False, **settings)
    graph.warm()
    assert graph._core._replay is not None
    for seed in range(3):
        assert torch.equal(graph(batch(seed).cuda()), plain(batch(seed).cuda()))


def test_network_that_cannot_be_captured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A network that waits for values on the host runs without a graph, and says so."""
    path = written(
        tmp_path,
        "InstantiatedModel = lambda x: x.repeat(1, 3, 1, 1, 1) * (1 if float(x.sum()) > 0 else 2)",
    )
    backend = create_backend(model=path, device="cuda", **SIZES)
    with caplog.at_level(logging.INFO):
        result = backend(batch().cuda())
    assert "cannot be captured in a CUDA graph" in caplog.text
    assert torch.equal(result.cpu(), batch().repeat(1, 3, 1, 1, 1))


def test_gpu_out_of_memory() -> None:
    """A batch that does not fit into the GPU is an error of its own, and the next one may fit."""
    total = torch.cuda.get_device_properties(0).total_memory
    core = TorchCore(
        lambda x: x.repeat(1, total, 1, 1, 1), (1, 1, 1, 1, 1), device=torch.device("cuda:0")
    )
    with pytest.raises(torch.OutOfMemoryError):
        core(torch.zeros(1, 1, 1, 1, 1, device="cuda"))


def test_tf32_is_a_choice(tmp_path: Path) -> None:
    """TF32 is in the profile, and off unless asked for."""
    settings = SIZES | {"model": written(tmp_path), "device": "cuda"}
    exact, fast = create_backend(**settings), create_backend(tf32=True, **settings)
    assert (exact.profile["tf32"], fast.profile["tf32"]) == ("off", "on")


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, "contiguous_format"),
        ({"tf32": True}, "channels_last_3d"),
        ({"dtype": "float16"}, "channels_last_3d"),
        ({"dtype": "bfloat16"}, "channels_last_3d"),
    ],
)
def test_the_layout_is_the_fastest_of_the_precision(
    tmp_path: Path, options: dict[str, Any], layout: str
) -> None:
    """Tensor cores take channels last; float32 is faster contiguous."""
    backend = create_backend(**SIZES, model=written(tmp_path), device="cuda", **options)
    backend(batch().cuda())
    assert backend.profile["memory_layout"] == layout


def test_network_that_needs_contiguous_maps(tmp_path: Path) -> None:
    """In half precision it runs contiguous, from a graph as any other."""
    path = written(tmp_path, NETWORK + VIEWING)
    there: Any = create_backend(model=path, device="cuda", dtype="float16", **SIZES)
    here = create_backend(model=path, device="cpu", **SIZES)
    result = there(batch().cuda()).float().cpu()
    assert float((result - here(batch())).abs().max()) < 1e-2
    assert there.profile["memory_layout"] == "contiguous_format"
    assert there._core._replay is not None


def test_the_profile_names_the_model_of_a_gpu_not_its_place() -> None:
    """Two GPUs of one model in one machine compute with the same profile."""
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    assert profile_of(last)["device"] == f"cuda {torch.cuda.get_device_name(last)}"


# --- wrong convolutions --------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [(3, 3, 3), (1, 3, 3), (3, 1, 1), (5, 5, 5)])
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "TF32", "float32"])
def test_convolutions_are_those_of_the_cpu(precision: str, kernel: tuple[int, ...]) -> None:
    """Of any number of channels and in each layout, within the tolerance of the precision."""
    dtype = torch.float32 if precision == "TF32" else getattr(torch, precision)
    for channels in (8, 28, 64):
        for last in (True, False):
            one = Convolution.plain(channels, (16, 96, 80), kernel, dtype, channels_last=last)
            with cuda_switches(tf32=precision == "TF32"):
                assert error_of(one, torch.device("cuda:0")) <= one.tolerance()


@pytest.mark.parametrize("more", [{}, {"cuda_graphs": False}, {"compile": True}])
def test_the_first_batch_is_checked(
    tmp_path: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a graph, without one, and compiled: in the precision and layout of the network."""
    monkeypatch.setattr(convolution_check, "_right", set())
    backend = create_backend(
        model=written(tmp_path), device="cuda", dtype="float16", **SIZES, **more
    )
    backend(batch().cuda())
    (checked,) = [convolution for convolution, *_ in convolution_check._right]
    assert (checked.dtype, checked.channels_last) == (torch.float16, True)
    assert checked.kernel == (3, 8, 3, 3, 3)


@pytest.mark.parametrize("options", [[], ["--dtype", "float16"], ["--tf32"]])
def test_inference_on_a_gpu_that_computes_wrongly_stores_nothing(
    tmp_path: Path, options: list[str]
) -> None:
    """In any precision it ends with one sentence, which names the version of cuDNN."""
    command = [
        sys.executable, "-m", "chunkflow_py", "create-chunk", "--size", "8", "32", "32",
        "inference", "--framework", "pytorch", "--convnet-model", written(tmp_path),
        "--input-patch-size", "4", "16", "16", "--output-patch-overlap", "0", "4", "4",
        "--device", "cuda", *options, "save-h5", "--file-name", "out.h5",
    ]  # fmt: skip
    environment = os.environ | {"CHUNKFLOW_FAILPOINT": "convolution:corrupt"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "computes wrong values with PyTorch" in done.stderr
    assert "and cuDNN " in done.stderr
    assert not (tmp_path / "out.h5").exists()


# --- memory, doctor ------------------------------------------------------------------------------


def test_a_gpu_has_what_is_free_and_what_is_ours() -> None:
    """What this process holds already counts as available to it."""
    device = torch.device("cuda")
    before = available_device_bytes(device)
    held = torch.empty(64 * MEGABYTE, dtype=torch.uint8, device=device)
    after = available_device_bytes(device)
    assert before is not None
    assert after is not None
    assert abs(after - before) < 32 * MEGABYTE
    del held


def test_memory_of_a_gpu_is_that_of_its_batches(tmp_path: Path) -> None:
    """On a GPU the peak that `tune` measures is that of the GPU's memory."""
    size = (8, 16, 16)
    candidate = {
        "input_patch_size": size, "output_patch_size": size, "batch_size": 8,
        "backend": "torch", "dtype": "float32", "compile": False,
    }  # fmt: skip
    network = {
        "framework": "identity", "num_input_channels": 1, "num_output_channels": 1,
        "device": "cuda",
    }  # fmt: skip
    request = {
        "network": network, "candidate": candidate, "image": None,
        "reference": str(tmp_path / "reference.npy"),
    }  # fmt: skip
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # of other tests in this process
    cost, _ = measure(request)
    assert 8 * 8 * 16 * 16 * 4 <= cost["memory_bytes"] < 10**9


def test_gpu_is_told(tmp_path: Path) -> None:
    """`doctor` tells precisions and speed of a GPU, and finds no problem."""
    command = [sys.executable, "-m", "chunkflow_py", "doctor", "--json", "--only", "gpu"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    )
    text = " ".join(each["text"] for each in json.loads(done.stdout)["findings"])
    assert "float16" in text
    assert "FLOP/s" in text
    assert "are correct with PyTorch" in text
