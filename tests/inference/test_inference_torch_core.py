"""What PyTorch can do with a network: precision, compilation, CUDA graphs, 2D, several outputs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError, OutOfMemoryError
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.compute_profile import (
    bfloat16_unit,
    cuda_switches,
    describe_profile,
)
from chunkflow_py.inference.backends.torch_core import TorchCore
from chunkflow_py.inference.network_source import NetworkSource
from chunkflow_py.testing.backend_contract import BackendContract

CPU = torch.device("cpu")
PATCH = Zyx(4, 16, 16)
SIZES = {"input_patch_size": PATCH, "output_patch_size": PATCH, "device": "cpu", "batch_size": 2}

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

FLAT = """
    import torch

    class Network(torch.nn.Module):
        divisor = {divisor}

        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 3, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(3)

        def forward(self, x):
            assert x.ndim == 4
            return self.norm(self.conv(x))

    torch.manual_seed(0)
    InstantiatedModel = Network()
"""

SEVERAL = """
    import torch

    class Network(torch.nn.Module):
        def forward(self, x):
            a, b = x.repeat(1, 2, 1, 1, 1), 5 * x
            return {returned}

    InstantiatedModel = Network()
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a model file and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "model.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def batch(seed=0):
    """Return a batch of two patches."""
    return torch.rand(2, 1, *PATCH, generator=torch.Generator().manual_seed(seed))


# --- precision ----------------------------------------------------------------------------------


class TestBfloat16(BackendContract):
    """framework pytorch in bfloat16."""

    @pytest.fixture
    def backend(self, write):
        return create_backend("pytorch", model=write(NETWORK), dtype="bfloat16", **self.settings)

    def test_is_near_float32(self, backend, write):
        """The error is that of bfloat16, which has 8 bits of mantissa, and there is one."""
        exact = create_backend("pytorch", model=write(NETWORK), **self.settings)
        difference = (backend(self.batch()).float() - exact(self.batch())).abs()
        assert 0 < float(difference.max()) < 2**-6
        assert backend.profile["dtype"] == "bfloat16"
        assert backend.profile["bfloat16"] == bfloat16_unit(CPU)


class TestSections(BackendContract):
    """framework pytorch, a 2D network."""

    @pytest.fixture
    def backend(self, write):
        path = write(FLAT.format(divisor=2))
        return create_backend("pytorch", model=path, spatial_dims=2, **self.settings)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm3d(8), nn.InstanceNorm3d(8, affine=True), nn.GroupNorm(2, 8)]
)
def test_norms_compute_in_float32(norm, layout):
    """Under autocast a norm gives the float32 result, rounded once, as little as it may differ."""
    maps = 3 * torch.randn(2, 8, 4, 16, 16, generator=torch.Generator().manual_seed(0)) + 1
    maps = maps.to(torch.bfloat16, memory_format=layout)
    with torch.inference_mode():
        exact = norm.eval()(maps.float())
        with torch.autocast("cpu", torch.bfloat16):
            found = norm(maps).float()
    # One rounding is at most 2^-9 of the value; 2^-8 leaves room for a tie.
    assert bool(((found - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all())


def test_processor_without_bfloat16_is_warned_of(monkeypatch, caplog):
    """Where bfloat16 is emulated one warning says that it is slower."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    core = TorchCore(nn.Conv3d(1, 1, 1), (1, 1, 2, 2, 2), device=CPU, dtype="bfloat16")
    assert caplog.text.count("slower than --dtype float32") == 1
    assert core.profile["bfloat16"] == "emulated"


def test_unknown_dtype():
    """A type that is none is answered with those there are."""
    with pytest.raises(OptionError, match="int8 is not one of float32, bfloat16, float16"):
        create_backend(model="rsunet", dtype="int8", **SIZES)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("decomposed", [False, True])
def test_dtype_of_an_exported_program(tmp_path, decomposed):
    """Autocast reaches a program as exported; one with decomposed operators is refused."""
    network = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.Sigmoid()).eval()
    program = torch.export.export(network, (batch(),))
    program = program.run_decompositions() if decomposed else program
    torch.export.save(program, tmp_path / "net.pt2")
    backend = create_backend(model=str(tmp_path / "net.pt2"), dtype="bfloat16", **SIZES)
    if decomposed:
        with pytest.raises(OptionError, match="bfloat16 has no effect on this exported program"):
            backend.warm()
    else:
        assert backend(batch()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_dtype_of_torchscript(tmp_path):
    """Autocast reaches TorchScript, and its first batch is like all others."""
    network = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.ELU(), nn.Sigmoid())
    torch.jit.save(torch.jit.script(network), str(tmp_path / "net.pt"))
    backend = create_backend(model=str(tmp_path / "net.pt"), dtype="bfloat16", **SIZES)
    results = [backend(batch()).clone() for _ in range(4)]
    assert results[0].dtype == torch.bfloat16
    assert backend.profile["memory_layout"] == "channels_last_3d"
    assert all(torch.equal(result, results[0]) for result in results)


class Viewing(nn.Module):
    """A network that needs its maps contiguous."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(x).view(x.shape[0], -1).view(x.shape[0], 3, 4, 16, 16)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_that_needs_contiguous_maps(tmp_path):
    """A TorchScript program that calls view runs in the layout it needs."""
    torch.jit.save(torch.jit.trace(Viewing(), (batch(),)), str(tmp_path / "net.pt"))
    backend = create_backend(model=str(tmp_path / "net.pt"), **SIZES)
    assert backend(batch()).shape == (2, 3, *PATCH)
    assert backend.profile["memory_layout"] == "contiguous_format"


# --- BatchNorm ----------------------------------------------------------------------------------


def test_batch_norm_is_folded(write):
    """Folding is in the profile, may be left out, and changes rounding at most."""
    path = write(NETWORK)
    folded = create_backend(model=path, **SIZES)
    plain = create_backend(model=path, fold=False, **SIZES)
    assert folded.profile["batch_norm"] == "1 folded"
    assert plain.profile["batch_norm"] == "0 folded"
    torch.testing.assert_close(folded(batch()), plain(batch()), rtol=0, atol=1e-5)


# --- compilation --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.long
def test_compiled_network(write, tmp_path, monkeypatch):
    """A compiled network gives the same values to rounding; it is compiled by `warm`."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    path = write(NETWORK)
    plain = create_backend(model=path, **SIZES)
    compiled = create_backend(model=path, compile=True, **SIZES)
    assert compiled.profile["compile"] == "no"
    thread = threading.Thread(target=compiled.warm)
    thread.start()
    thread.join()
    assert compiled.profile["compile"] == "inductor"
    first = compiled(batch()).clone()
    torch.testing.assert_close(first, plain(batch()), rtol=0, atol=1e-5)
    assert torch.equal(compiled(batch()), first)


@pytest.mark.slow
@pytest.mark.long
def test_without_a_compiler(write, tmp_path):
    """Without a compiler one warning is given, and the network runs uncompiled."""
    code = f"""
        import logging, torch
        from chunkflow_py.inference.backend_factory import create_backend

        logging.basicConfig(level=logging.WARNING)
        sizes = dict(input_patch_size={tuple(PATCH)}, output_patch_size={tuple(PATCH)})
        backends = [
            create_backend(model={write(NETWORK)!r}, device="cpu", compile=c, **sizes)
            for c in (True, False)
        ]
        batch = torch.rand(1, 1, *{tuple(PATCH)})
        backends[0].warm()
        for _ in range(2):
            assert torch.equal(backends[0](batch), backends[1](batch))
        assert backends[0].profile == backends[1].profile
    """
    environment = os.environ | {"CXX": "nonsense", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--compile failed, so the network runs uncompiled") == 1


# --- 2D, several outputs ------------------------------------------------------------------------


def test_sections_are_run_one_by_one(write):
    """A 2D network gets every section of every patch, and they come back in their places."""
    path = write(FLAT.format(divisor=(2, 4)))
    backend = create_backend(model=path, spatial_dims=2, **SIZES)
    source = NetworkSource(path)
    network = source.load(source.run_file(), CPU).eval()
    with torch.inference_mode():
        sections = [network(batch()[:, :, z]) for z in range(PATCH.z)]
    torch.testing.assert_close(backend(batch()), torch.stack(sections, 2), rtol=0, atol=1e-6)
    assert backend.divisor == Zyx(1, 2, 4)
    assert backend.profile["spatial_dims"] == "2"


@pytest.mark.parametrize(("divisor", "expected"), [(8, (1, 8, 8)), ((1, 2, 4), (1, 2, 4))])
def test_divisor_of_a_network_of_sections(write, divisor, expected):
    """One integer is that of y and x; z is never pooled."""
    path = write(FLAT.format(divisor=divisor))
    assert create_backend(model=path, spatial_dims=2, **SIZES).divisor == Zyx.of(expected)


def test_network_of_sections_that_returns_something_else(write):
    """A 2D network must return as many sections as it was given."""
    path = write("""
        InstantiatedModel = lambda x: x[1:]
    """)
    backend = create_backend(model=path, spatial_dims=2, **SIZES)
    with pytest.raises(ModelError, match=r"\(7, 1, 16, 16\) for 8 sections, but .* \(8, 3, y, x\)"):
        backend(batch())


@pytest.mark.parametrize("returned", ["{'b': b, 'more': x, 'a': a}", "(a, b, x)", "[a, b]"])
def test_several_outputs_are_joined_in_order(write, returned):
    """Outputs of a dict are taken by name, of a tuple by position, and become channels."""
    path = write(SEVERAL.format(returned=returned))
    backend = create_backend(
        model=path, outputs=("a", "b"), output_channels=(2, 1), num_output_channels=3, **SIZES
    )
    expected = torch.cat([batch(), batch(), 5 * batch()], 1)
    assert torch.equal(backend(batch()), expected)


def test_one_output_of_several(write):
    """One name takes one output of a dict and leaves the others."""
    path = write(SEVERAL.format(returned="{'a': a, 'b': b}"))
    settings = SIZES | {"num_output_channels": 1}
    backend = create_backend(model=path, outputs=("b",), output_channels=(1,), **settings)
    assert torch.equal(backend(batch()), 5 * batch())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("{'a': a}", r"the keys a, but --output-names also lists b; list only keys of the dict$"),
        ("(a, a)", r"output b .* shape \(2, 2, 4, 16, 16\), but --output-channels is 1"),
        (
            "(a, b[..., ::2])",
            r"output b .* has \(4, 16, 8\) voxels, but output a has \(4, 16, 16\)",
        ),
        ("(a, None)", "output b of model .* is a NoneType, not a tensor"),
        ("(a, )", "returned 2 channels, but --num-output-channels is 3"),
        ("()", r"returned 0 outputs, but --output-names lists 2 \(a, b\); list only"),
    ],
)
def test_outputs_that_do_not_fit(write, returned, message):
    """Outputs that are missing or of another shape are told by name."""
    path = write(SEVERAL.format(returned=returned))
    backend = create_backend(
        model=path, outputs=("a", "b"), output_channels=(2, 1), num_output_channels=3, **SIZES
    )
    with pytest.raises(ModelError, match=message):
        backend(batch())


@pytest.mark.parametrize(
    ("outputs", "channels", "message"),
    [
        (("a", "b"), (3,), r"lists 2 outputs \(a, b\), but --output-channels has 1 numbers"),
        (("a", "a"), (1, 2), "lists an output twice"),
        (
            ("a", "b"),
            (2, 2),
            "add up to 4, .* is 3; use --num-output-channels 4",
        ),
    ],
)
def test_options_of_outputs_that_disagree(outputs, channels, message):
    """Names and channels are checked against each other before anything is loaded."""
    with pytest.raises(OptionError, match=message):
        create_backend(model="rsunet", outputs=outputs, output_channels=channels, **SIZES)


# --- options, profile, errors -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "openvion"}, "'openvion' is not one of .*; the nearest is 'openvino'"),
        ({"spatial_dims": 4}, "4 is not one of 3, 2"),
        ({"framework": "identity", "backend": "openvino"}, "cannot run --framework identity"),
        ({"backend": "openvino", "device": "cuda"}, "runs on the CPU, not on --device cuda"),
    ],
)
def test_options_that_cannot_work(options, message):
    """A choice that cannot work is refused with one that does."""
    with pytest.raises(OptionError, match=message):
        create_backend(**({"model": "rsunet"} | SIZES | options))


def test_function_is_no_module_to_convert(write):
    """A network that is no module can be run by PyTorch only."""
    path = write("InstantiatedModel = lambda x: x")
    with pytest.raises(OptionError, match="is a function; choose --backend torch"):
        create_backend(model=path, backend="openvino", **SIZES)


def test_profile_in_one_line(write):
    """The header of a run names what decides the bytes."""
    line = describe_profile(create_backend(model=write(NETWORK), **SIZES).profile)
    assert "\n" not in line
    for part in ("batch 2x1x4x16x16", "dtype float32", "memory_layout channels_last_3d", "threads"):
        assert part in line


def test_too_large_batch_is_told_with_its_shape(write):
    """Memory that the device has not got is an error of its own, with the shape of the batch."""
    path = write("""
        import torch
        InstantiatedModel = lambda x: torch.empty(10**15)
    """)
    backend = create_backend(model=path, **SIZES)
    with pytest.raises(OutOfMemoryError, match=r"shape \(2, 1, 4, 16, 16\).*lower --batch-size"):
        backend(batch())


def test_digest_follows_weights_and_code(write, tmp_path):
    """Whatever changes what a network computes changes its digest, and nothing else does."""

    def digest(path, weights=None):
        source = NetworkSource(path, weights)
        return source.digest(source.load(source.run_file(), CPU))

    path = write(NETWORK)
    first = digest(path)
    assert digest(path) == first
    state = NetworkSource(path).run_file().InstantiatedModel.state_dict()
    state = {key: value + 1 for key, value in state.items()}
    torch.save(state, tmp_path / "w.pt")
    assert digest(path, str(tmp_path / "w.pt")) != first
    assert digest(write(NETWORK.replace("ELU", "CELU"))) != first
    assert digest("rsunet") != digest("rsunet-isotropic")


def test_networks_that_disagree_on_tf32():
    """Two networks in two lanes each launch their kernels with switches of their own."""
    matmul = torch.backends.cuda.matmul
    inside, seen = threading.Event(), []

    def other():
        inside.wait()
        with cuda_switches(tf32=False):
            seen.append(matmul.allow_tf32)

    before = matmul.allow_tf32
    thread = threading.Thread(target=other)
    try:
        thread.start()
        with cuda_switches(tf32=True):
            inside.set()
            thread.join(0.2)
            assert thread.is_alive()
            assert matmul.allow_tf32
            assert torch.backends.cudnn.deterministic
            assert not torch.backends.cudnn.benchmark
        thread.join()
        assert seen == [False]
    finally:
        torch.backends.cudnn.allow_tf32 = matmul.allow_tf32 = before
        torch.backends.cudnn.deterministic = False
