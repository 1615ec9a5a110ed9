"""Backends: the contract of each, and what they say about bad models and weights."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import textwrap
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.compute_profile import device_of
from chunkflow_py.inference.backends.model_files import load_weights, run_model_file
from chunkflow_py.inference.network_source import NetworkSource, check_network, network_files
from chunkflow_py.testing.backend_contract import BackendContract

NETWORK = """
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv3d(1, 3, 3, padding=1)
            self.norm = torch.nn.BatchNorm3d(3)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x):
            return torch.sigmoid(self.dropout(self.norm(self.conv(x))))

    torch.manual_seed(0)
    InstantiatedModel = Network()
"""

IN_PLACE = """
    import torch

    class Network(torch.nn.Module):
        divisor = (1, 2, 4)
        last = None

        def forward(self, x):
            x.mul_(2)
            self.last = x.expand(-1, 3, -1, -1, -1) if self.last is None else self.last
            return x.expand(-1, 3, -1, -1, -1)

    InstantiatedModel = Network()
"""

INFERENCER = """
    import numpy

    class PatchInferencer:
        def __init__(self, weight_path, output_patch_mask):
            self.mask = output_patch_mask

        def __call__(self, patch):
            assert isinstance(patch, numpy.ndarray) and patch.dtype == numpy.float32
            patch *= 2
            return numpy.repeat(patch[:, :1, 2:-2, 2:-2, 2:-2], 3, axis=1) * self.mask
"""

PATCH = Zyx(8, 16, 16)
SIZES = {"input_patch_size": PATCH, "output_patch_size": PATCH, "device": "cpu"}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a model file and returns its path."""

    def write(text: str, name: str = "model.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def torchscript(path):
    """Save a small TorchScript program at *path*."""
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 3, 3, padding=1), torch.nn.BatchNorm3d(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(network), str(path))
    return str(path)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return the path of a small exported program for batches of any number."""
    path = str(tmp_path_factory.mktemp("export") / "net.pt2")
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 3, 3, padding=1), torch.nn.BatchNorm3d(3))
    number = torch.export.Dim("n", min=1, max=8)
    example = torch.zeros(2, 1, *BackendContract.input_patch_size)
    exported = torch.export.export(network.eval(), (example,), dynamic_shapes=({0: number},))
    torch.export.save(exported, path)
    return path


# --- the contract -------------------------------------------------------------------------------


class TestIdentity(BackendContract):
    """framework identity."""

    @pytest.fixture
    def backend(self):
        return create_backend("identity", **self.settings)

    def test_returns_the_middle_of_its_input(self, backend):
        """Every channel is the input without the margin."""
        batch = self.batch()
        inside = batch[:, :, 2:6, 2:14, 2:14]
        assert torch.equal(backend(batch), inside.expand(-1, 3, -1, -1, -1))


class TestIdentityOfManyChannels(TestIdentity):
    """framework identity, two channels in and five out."""

    num_input_channels = 2
    num_output_channels = 5

    def test_returns_the_middle_of_its_input(self, backend):
        """Every channel is the first of the input."""
        batch = self.batch()
        inside = batch[:, :1, 2:6, 2:14, 2:14]
        assert torch.equal(backend(batch), inside.expand(-1, 5, -1, -1, -1))


class TestModelFile(BackendContract):
    """framework pytorch, Python code."""

    @pytest.fixture
    def backend(self, write):
        return create_backend("pytorch", model=write(NETWORK), **self.settings)


class TestNetworkInPlace(BackendContract):
    """framework pytorch, a network that changes and keeps what it is given."""

    @pytest.fixture
    def backend(self, write):
        return create_backend("pytorch", model=write(IN_PLACE), **self.settings)

    def test_knows_its_divisor(self, backend):
        """The attribute divisor of the network is the backend's."""
        assert backend.divisor == Zyx(1, 2, 4)


class TestTorchScript(BackendContract):
    """framework pytorch, a TorchScript program."""

    @pytest.fixture
    def backend(self, tmp_path):
        return create_backend("universal", model=torchscript(tmp_path / "net.pt"), **self.settings)


class TestExportedProgram(BackendContract):
    """framework pytorch, a torch.export program with batches of any number."""

    @pytest.fixture
    def backend(self, program):
        return create_backend("universal", model=program, **self.settings)

    def test_other_shape_is_an_error(self, backend):
        """A patch size other than the exported one is told with the shape."""
        with pytest.raises(ModelError, match=r"failed on a batch of shape \(1, 1, 8, 8, 8\)"):
            backend(torch.zeros(1, 1, 8, 8, 8))


class TestBuiltIn(BackendContract):
    """framework universal, a built-in network."""

    @pytest.fixture
    def backend(self):
        return create_backend("universal", model="rsunet", **self.settings)


class TestUniversal(BackendContract):
    """framework universal, a PatchInferencer."""

    @pytest.fixture
    def window(self):
        return np.random.default_rng(0).random(self.output_patch_size, np.float32)

    @pytest.fixture
    def backend(self, write, window):
        return create_backend("universal", model=write(INFERENCER), window=window, **self.settings)

    def test_result_is_weighted(self, backend, window):
        """The class gets the window, and its products come out."""
        batch = self.batch()
        expected = 2 * batch[:, :, 2:6, 2:14, 2:14] * torch.from_numpy(window)
        assert backend.weighted
        assert torch.equal(backend(batch), expected.expand(-1, 3, -1, -1, -1))


# --- choosing -----------------------------------------------------------------------------------


def test_universal_runs_pytorch_models(write, caplog):
    """A file with InstantiatedModel and no PatchInferencer runs with pytorch; the log says so."""
    with caplog.at_level(logging.INFO):
        backend = create_backend("universal", model=write(NETWORK), **SIZES)
    assert backend.profile["framework"] == "pytorch"
    assert "runs as --framework pytorch" in caplog.text


def test_unknown_framework_names_the_nearest():
    """A misspelt framework is answered with the one that was meant."""
    with pytest.raises(OptionError, match="nearest is 'pytorch'"):
        create_backend("pytroch", **SIZES)


def test_missing_model_option():
    """A framework that needs a network says which option gives it."""
    with pytest.raises(OptionError, match="--convnet-model"):
        create_backend("pytorch", **SIZES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_cuda_is_cuda_or_an_error():
    """A device that is not there is refused with the reason, never replaced."""
    with pytest.raises(OptionError, match=r"--device cuda cannot be used: PyTorch .*; choose"):
        device_of("cuda")


def test_auto_logs_its_choice(caplog):
    """The device that auto chose is named, and that there is no GPU does not read like a fault."""
    with caplog.at_level(logging.INFO):
        device = device_of("auto")
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"running on {device.type}")
    assert said.endswith(", chosen by --device auto")


def test_unknown_device():
    """A device that PyTorch knows and we do not is refused too."""
    for name in ("tpu", "meta"):
        with pytest.raises(OptionError, match="not one of auto, cpu, cuda"):
            device_of(name)


def test_half_precision_needs_cuda(write):
    """float16 on the CPU is refused with what works."""
    with pytest.raises(OptionError, match="float32 and bfloat16 work there"):
        create_backend("pytorch", model=write(NETWORK), dtype="float16", **SIZES)


# --- evaluation mode, hooks ---------------------------------------------------------------------


def test_networks_run_in_evaluation_mode(write):
    """Dropout does nothing and batches leave no trace in the statistics of BatchNorm."""
    backend = create_backend("pytorch", model=write(NETWORK), **SIZES)
    first = backend(torch.rand(2, 1, *PATCH, generator=torch.Generator().manual_seed(1)))
    again = backend(torch.rand(2, 1, *PATCH, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(first, again)
    # Dropout would make half of the voxels 0.5.
    assert int((first == 0.5).sum()) < first.numel() // 100


HOOKS = """
    import numpy, torch
    InstantiatedModel = torch.nn.Identity()

    def pre_process(patch{pre_type}):
        {pre}

    def post_process(patch):
        {post}
"""


PRE = {
    "tensor": ("", "return patch.mul(2)"),
    "annotated": (": torch.Tensor", "return patch * 2"),
    "array": ("", "return numpy.multiply(patch, numpy.float32(2), out=patch)"),
    "both": ("", "return torch.from_numpy(patch) * 2"),
}
POST = {
    "tensor": "return patch.repeat(1, 3, 1, 1, 1) + 1",
    "array": "return numpy.repeat(patch.astype('float64'), 3, axis=1) + 1",
}


@pytest.mark.parametrize("post", POST)
@pytest.mark.parametrize("pre", PRE)
def test_hooks_take_arrays_or_tensors(write, pre, post):
    """pre_process and post_process may be written for NumPy or for PyTorch."""
    pre_type, pre = PRE[pre]
    post = POST[post]
    path = write(HOOKS.format(pre=pre, post=post, pre_type=pre_type))
    backend = create_backend("pytorch", model=path, **SIZES)
    batch = torch.rand(2, 1, *PATCH)
    expected = (2 * batch + 1).expand(-1, 3, -1, -1, -1)
    for _ in range(2):
        assert torch.equal(backend(batch), expected)


def test_network_that_needs_contiguous_maps(write):
    """A network that calls view on its maps runs, in the layout it needs, and says so."""
    backend = create_backend(
        "pytorch",
        model=write("""
            import torch

            class Network(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.conv = torch.nn.Conv3d(1, 3, 3, padding=1)

                def forward(self, x):
                    return self.conv(x).view(len(x), -1).view(len(x), 3, *x.shape[2:])

            InstantiatedModel = Network()
        """),
        **SIZES,
    )
    assert backend(torch.rand(2, 1, *PATCH)).shape == (2, 3, *PATCH)
    assert backend.profile["memory_layout"] == "contiguous_format"


@pytest.mark.parametrize(
    "layer",
    [
        "Conv3d(1, 3, 3)",
        "Conv3d(1, 3, 3, padding='same', bias=False)",
        "Conv3d(1, 3, (1, 3, 5), stride=(1, 2, 1), padding=(0, 1, 2))",
        "Sequential(torch.nn.Conv3d(1, 6, 1), torch.nn.Conv3d(6, 3, 3, dilation=2, groups=3))",
        "Conv3d(1, 3, 3, padding=1, padding_mode='reflect')",
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_convolutions_are_those_of_pytorch(write, layer, number):
    """Every kind of convolution gives what PyTorch gives without us, to float32 rounding."""
    path = write(f"""
        import torch

        torch.manual_seed(0)
        InstantiatedModel = torch.nn.{layer}
    """)
    batch = torch.rand(number, 1, *PATCH, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = run_model_file(path).InstantiatedModel(batch)
    sizes = SIZES | {"output_patch_size": Zyx.of(expected.shape[2:])}
    result = create_backend("pytorch", model=path, **sizes)(batch)
    torch.testing.assert_close(result, expected.contiguous(), rtol=0, atol=1e-5)


def test_small_convolutions_go_to_onednn(write):
    """A batch of one small patch does not take PyTorch's slow convolution."""
    backend = create_backend("pytorch", model=write(NETWORK), **SIZES)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        backend(torch.rand(1, 1, *PATCH))
    called = {event.key for event in profile.key_averages()}
    assert "aten::mkldnn_convolution" in called
    assert "aten::slow_conv3d_forward" not in called


INSTANCE_NORMS = [
    "InstanceNorm3d(3)",
    "InstanceNorm3d(3, affine=True, eps=1e-3)",
    "InstanceNorm3d(3, affine=True, track_running_stats=True)",
]


@pytest.mark.parametrize("layer", INSTANCE_NORMS)
@pytest.mark.parametrize("number", [1, 2])
def test_instance_norms_are_those_of_pytorch(write, layer, number):
    """The faster kernel gives what PyTorch gives in double precision, to float32 rounding."""
    path = write(f"""
        import torch

        torch.manual_seed(0)
        norm = torch.nn.{layer}
        with torch.no_grad():
            for name, each in norm.state_dict().items():
                if name != "num_batches_tracked":
                    each.copy_(torch.rand(3) + 0.5)
        InstantiatedModel = torch.nn.Sequential(
            torch.nn.Conv3d(1, 3, 3, padding=1), norm, torch.nn.LeakyReLU(inplace=True)
        ).eval()
    """)
    batch = torch.rand(number, 1, *PATCH, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = run_model_file(path).InstantiatedModel.double()(batch.double())
    result = create_backend("pytorch", model=path, **SIZES)(batch)
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=3e-6)


def test_instance_norm_takes_the_kernel_of_group_norm(write):
    """A network with instance normalisation takes the faster kernel, which its profile names."""
    path = write("""
        import torch

        InstantiatedModel = torch.nn.Sequential(
            torch.nn.Conv3d(1, 3, 3, padding=1), torch.nn.InstanceNorm3d(3, affine=True)
        )
    """)
    backend = create_backend("pytorch", model=path, **SIZES)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        backend(torch.rand(1, 1, *PATCH))
    called = {event.key for event in profile.key_averages()}
    assert "aten::native_group_norm" in called
    assert "aten::native_batch_norm" not in called
    assert backend.profile["instance_norm"] == "group_norm"
    assert backend.profile["memory_layout"] == "contiguous_format"
    plain = create_backend("pytorch", model=write(NETWORK), **SIZES)
    assert "instance_norm" not in plain.profile


def test_load_model_of_the_file_is_called(write, tmp_path):
    """A model file that loads its weights itself does so."""
    weights = tmp_path / "factor.txt"
    weights.write_text("3")
    path = write("""
        def load_model(weight_path):
            factor = float(open(weight_path).read())
            return lambda x: (factor * x).repeat(1, 3, 1, 1, 1)
    """)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        backend = create_backend("pytorch", model=path, weights=str(weights), **SIZES)
    batch = torch.rand(1, 1, *PATCH)
    assert torch.equal(backend(batch), (3 * batch).repeat(1, 3, 1, 1, 1))


def test_module_constant_is_a_divisor(write):
    """DIVISOR of the model file is the divisor of a network that has none."""
    backend = create_backend("pytorch", model=write(NETWORK + "\n    DIVISOR = 8\n"), **SIZES)
    assert backend.divisor == Zyx(8, 8, 8)


def test_two_networks_of_one_file_share_nothing(write, tmp_path):
    """Each backend has weights of its own, also if they are made of one file."""
    path = write(NETWORK)
    first = create_backend("pytorch", model=path, **SIZES)
    batch = torch.rand(1, 1, *PATCH)
    before = first(batch)
    state = {k: torch.zeros_like(v) for k, v in state_of(path).items()}
    torch.save(state, tmp_path / "zero.pt")
    create_backend("pytorch", model=path, weights=str(tmp_path / "zero.pt"), **SIZES)
    assert torch.equal(first(batch), before)


# --- bad models ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\nx = (", r"is not valid Python: '\(' was never closed on line 2"),
        ("1 / 0", "raised an error: ZeroDivisionError: division by zero"),
        ("x = 1", "defines neither PatchInferencer .* nor InstantiatedModel"),
        ("import torch\nInstantiatedModel = torch.nn.Conv3d", "is a type, not a network"),
        ("InstantiatedModel = 5", "is a int, not a network"),
        ("class PatchInferencer:\n    pass", "PatchInferencer of .* cannot be created: TypeError"),
        ("InstantiatedModel = abs\nDIVISOR = 0", "must be one or three positive integers"),
        ("def load_model(path):\n    1 / 0\nInstantiatedModel = None", "InstantiatedModel"),
    ],
)
def test_bad_model_file_is_one_sentence(write, text, message):
    """Whatever is wrong with a model file is said in one sentence that names the file."""
    with pytest.raises(ModelError, match=message) as caught:
        create_backend("universal", model=write(text), **SIZES)
    assert "model.py" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("framework", ["universal", "pytorch"])
@pytest.mark.parametrize("name", ["no.py", "no.pt", "no.pt2", "nothing"])
def test_missing_model_file(framework, name):
    """A model file that is not there is named, with its option."""
    with pytest.raises(ModelError, match=rf"model file {name} does not exist.*--convnet-model"):
        create_backend(framework, model=name, **SIZES)


@pytest.mark.parametrize("name", ["net.pt", "net.pt2"])
def test_damaged_program(write, name):
    """Bytes that are no program are refused in one sentence."""
    with pytest.raises(ModelError, match=r"net\.pt2? is not an? (TorchScript|exported) program"):
        create_backend("universal", model=write("nonsense", name), **SIZES)


def test_weights_given_as_the_model(tmp_path):
    """A state dict given as the model is recognised."""
    torch.save(torch.nn.Conv3d(1, 3, 3).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelError, match="it is a weight file: give it as --convnet-weight-path"):
        create_backend("universal", model=str(tmp_path / "w.pt"), **SIZES)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (
            "x.repeat(1, 2, 1, 1, 1)",
            r"returned 2 channels, but --num-output-channels is 3; use --num-output-channels 2",
        ),
        ("x[..., 1:].repeat(1, 3, 1, 1, 1)", r"size \(8, 16, 15\), but must .*-size 8 16 15"),
        ("x[0]", r"returned shape \(1, 8, 16, 16\) for a batch of shape \(2, 1, 8, 16, 16\)"),
        (
            "[x, x]",
            "returned a list of 2 items, not one tensor; name .* or return one",
        ),
        ("{'a': x, 'b': x}", r"returned a dict of 2 items \(a, b\), not one tensor"),
        ("None", "returned a NoneType, not one tensor"),
        ("x.nothing", r"failed on a batch of shape \(2, 1, 8, 16, 16\).*'nothing'"),
    ],
)
def test_bad_output_is_one_sentence(write, forward, message):
    """A network that returns something else than the options say is told with both values."""
    path = write(f"""
        import torch

        class Network(torch.nn.Module):
            def forward(self, x):
                return {forward}

        InstantiatedModel = Network()
    """)
    backend = create_backend("pytorch", model=path, **SIZES)
    with pytest.raises(ModelError, match=message):
        backend(torch.rand(2, 1, *PATCH))


ONE_CHANNEL = """
import torch

class PatchInferencer:
    def __init__(self, weight_path, output_patch_mask):
        pass

    def __call__(self, patch):
        return patch

class Network(torch.nn.Module):
    def forward(self, x):
        return x

InstantiatedModel = Network()
"""


@pytest.mark.parametrize("framework", ["pytorch", "universal"])
def test_one_channel_is_stored_in_all_that_were_asked_for(write, framework, caplog):
    """As in chunkflow 1.x, whose default is 3 channels; one warning says how to store it once."""
    backend = create_backend(framework, model=write(ONE_CHANNEL), **SIZES)
    for _ in range(2):
        batch = torch.rand(2, 1, *PATCH)
        output = backend(batch)
        assert output.shape == (2, 3, *PATCH)
        assert all(torch.equal(output[:, channel], batch[:, 0]) for channel in range(3))
    assert caplog.text.count("returned 1 channel, which is stored 3 times") == 1


def test_load_model_may_take_the_word_none(write):
    """--convnet-weight-path none, which is no file, reaches load_model; no other word does."""
    path = write("""
        import torch

        def load_model(path):
            assert path == "none"
            return torch.nn.Conv3d(1, 3, 1)
    """)
    network = {"framework": "pytorch", "model": path, "weights": "none"}
    check_network(network)
    assert network_files(network) == {path: "code"}
    backend = create_backend("pytorch", model=path, weights="none", **SIZES)
    assert backend(torch.rand(1, 1, *PATCH)).shape == (1, 3, *PATCH)
    with pytest.raises(OptionError, match="--convnet-weight-path nome does not exist"):
        check_network({**network, "weights": "nome"})


@pytest.mark.parametrize("forward", ["{'affinity': repeated(x)}", "(repeated(x),)"])
def test_output_wrapped_alone_is_unwrapped(write, forward):
    """A dict, list or tuple of one tensor is as good as the tensor."""
    path = write(f"""
        def repeated(x):
            return x.repeat(1, 3, 1, 1, 1)

        InstantiatedModel = lambda x: {forward}
    """)
    batch = torch.rand(2, 1, *PATCH)
    result = create_backend("pytorch", model=path, **SIZES)(batch)
    assert torch.equal(result, batch.repeat(1, 3, 1, 1, 1))


def test_bad_output_of_a_patch_inferencer(write):
    """A PatchInferencer that does not crop to the output patch is told with both shapes."""
    path = write("""
        class PatchInferencer:
            def __init__(self, weight_path, output_patch_mask):
                pass

            def __call__(self, patch):
                return patch
    """)
    backend = create_backend("universal", model=path, **SIZES)
    with pytest.raises(ModelError, match=r"shape \(1, 2, 8, 16, 16\) .* \(1, 3, 8, 16, 16\)"):
        backend(torch.rand(1, 2, *PATCH))


def test_failing_patch_inferencer(write):
    """What a PatchInferencer raises is told with the shape of the batch."""
    backend = create_backend("universal", model=write(INFERENCER), **SIZES)
    with pytest.raises(
        ModelError, match=r"failed on a batch of shape \(1, 1, 8, 16, 16\).*ValueError"
    ):
        backend(torch.rand(1, 1, *PATCH))


# --- weights ------------------------------------------------------------------------------------


def state_of(path):
    """Return the state dict of the network in a model file."""
    torch.manual_seed(5)
    state = run_model_file(path).InstantiatedModel.state_dict()
    return {key: torch.rand_like(v) if v.is_floating_point() else v for key, v in state.items()}


@pytest.mark.parametrize("form", ["plain", "nested", "prefix", "no_counter"])
def test_forms_of_weight_files(write, tmp_path, form):
    """State dicts are read bare, under state_dict, from DataParallel, and from old PyTorch."""
    path = write(NETWORK)
    state = state_of(path)
    wrapped = {
        "plain": state,
        "nested": {"state_dict": state, "epoch": 3, "optimizer": {"lr": [0.1]}},
        "prefix": {f"module.{key}": value for key, value in state.items()},
        "no_counter": {k: v for k, v in state.items() if "num_batches" not in k},
    }
    torch.save(wrapped[form], tmp_path / "w.pt")
    source = NetworkSource(path, str(tmp_path / "w.pt"))
    loaded = source.load(source.run_file(), torch.device("cpu")).state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in state.items())


def test_weights_that_do_not_match(write, tmp_path):
    """The first missing and unexpected keys and shapes are listed, three of each."""
    path = write(NETWORK)
    state = state_of(path)
    del state["conv.bias"]
    state |= {f"extra{k}": torch.zeros(1) for k in range(5)}
    state["conv.weight"] = torch.zeros(3, 2, 3, 3, 3)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ModelError) as caught:
        create_backend("pytorch", model=path, weights=str(tmp_path / "w.pt"), **SIZES)
    message = str(caught.value)
    assert "the weights lack conv.bias;" in message
    assert "the model lacks extra0, extra1, extra2 and 2 more;" in message
    assert "conv.weight is (3, 2, 3, 3, 3) in the weights, (3, 1, 3, 3, 3) in the model" in message


class Payload:
    """Unpickling this touches a file: what a malicious weight file does."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import pathlib

        return pathlib.Path.touch, (pathlib.Path(self.path),)


def test_code_in_a_weight_file_is_not_run(write, tmp_path):
    """A pickle with code is refused, its code does not run, and --trust-weights is named."""
    flag = tmp_path / "owned"
    torch.save({"state_dict": Payload(flag)}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match="--trust-weights, which executes any code"):
        create_backend("pytorch", model=write(NETWORK), weights=str(tmp_path / "w.pt"), **SIZES)
    assert not flag.exists()


def test_trusted_weights_are_unpickled(write, tmp_path, caplog):
    """With trust a whole pickled network serves as weights, with a warning."""
    path = write(NETWORK)
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 3, 3, padding=1))
    torch.save(network, tmp_path / "w.pt")
    settings = {"model": path, "weights": str(tmp_path / "w.pt"), **SIZES}
    with pytest.raises(ModelError, match=r"more than weights \(torch\.nn\.\w+"):
        create_backend("pytorch", **settings)
    with pytest.raises(ModelError, match=r"the model lacks 0\.weight, 0\.bias"):
        create_backend("pytorch", trust_weights=True, **settings)
    assert "any code in" in caplog.text


@pytest.mark.parametrize("content", [b"", b"no pickle", b"# a script", b"PK\x03\x04 broken"])
def test_damaged_weight_file(write, tmp_path, content):
    """Bytes that are no weights are refused in one sentence."""
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ModelError, match=r"w\.pt is damaged, or was not written by torch\.save"):
        create_backend("pytorch", model=write(NETWORK), weights=str(tmp_path / "w.pt"), **SIZES)


def test_cut_off_weight_file(write, tmp_path):
    """A file whose end is missing is refused in one sentence."""
    path = write(NETWORK)
    torch.save(state_of(path), tmp_path / "w.pt")
    data = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="is damaged"):
        create_backend("pytorch", model=path, weights=str(tmp_path / "w.pt"), **SIZES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "contains a list, not a state dict"),
        ({"net": {"a": torch.zeros(1)}, "epoch": 1}, "net, epoch are not tensors"),
        ({}, "it is empty"),
    ],
)
def test_weight_file_without_weights(write, tmp_path, content, message):
    """A file that holds something else is refused with what it holds."""
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=message):
        create_backend("pytorch", model=write(NETWORK), weights=str(tmp_path / "w.pt"), **SIZES)


def test_torchscript_given_as_weights(write, tmp_path):
    """A TorchScript program given as weights is recognised, trusted or not."""
    weights = torchscript(tmp_path / "net.pt")
    for trust in (False, True):
        with pytest.raises(ModelError, match="is a TorchScript program, not weights"):
            create_backend(
                "pytorch", model=write(NETWORK), weights=weights, trust_weights=trust, **SIZES
            )


def test_missing_weight_file(write):
    """A weight file that is not there is named, with its option."""
    with pytest.raises(ModelError, match=r"none\.pt does not exist; check --convnet-weight-path"):
        create_backend("pytorch", model=write(NETWORK), weights="none.pt", **SIZES)


# --- weight of the package ----------------------------------------------------------------------


def test_import_is_light():
    """The packages of inference import neither torch nor numpy by themselves."""
    code = (
        "import sys, chunkflow_py.inference, chunkflow_py.inference.backends, "
        "chunkflow_py.inference.models as m; assert m.names() == ['rsunet'];"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'h5py', 'zarr')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what a user's file may do wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "text", "weights", "message"),
    [
        ("pytorch", INFERENCER, None, "but defines PatchInferencer; use --framework universal"),
        ("pytorch", "x = 1", None, "add InstantiatedModel = YourNetwork"),
        ("universal", "def load_model(p):\n    1 / 0", "here", "load_model of .* ZeroDivision"),
        (
            "universal",
            "def load_model(p):\n    return 5",
            "here",
            "a int, which cannot be called",
        ),
        ("universal", "def load_model(p):\n    return 5", "gone", "gone does not exist"),
        ("universal", "InstantiatedModel = abs", "here", "takes no weights; leave"),
    ],
)
def test_file_that_does_not_fit_the_options(write, framework, text, weights, message):
    """A model file that cannot do what the options ask for names the option to change."""
    path = write(text)
    if weights == "here":
        weights = write("", "weights.bin")
    with pytest.raises(ModelError, match=message):
        create_backend(framework, model=path, weights=weights, **SIZES)


@pytest.mark.parametrize(
    ("returned", "message"),
    [("[patch]", "returned a list, not an array"), ("torch.from_numpy(patch)", None)],
)
def test_what_a_patch_inferencer_returns(write, returned, message):
    """A PatchInferencer may return a tensor; anything else than an array is refused."""
    path = write(f"""
        import torch

        class PatchInferencer:
            compute_device = "abacus"

            def __init__(self, weight_path, output_patch_mask):
                assert output_patch_mask.min() == output_patch_mask.max() == 1

            def __call__(self, patch):
                return {returned}
    """)
    backend = create_backend(model=path, **(SIZES | {"num_output_channels": 1}))
    batch = torch.rand(2, 1, *PATCH)
    assert backend.profile["compute_device"] == "abacus"
    if message is None:
        assert torch.equal(backend(batch), batch)
    else:
        with pytest.raises(ModelError, match=message):
            backend(batch)


def test_universal_says_what_it_does_not_decide(write, caplog):
    """Options that only a PatchInferencer could follow are not dropped in silence."""
    create_backend(model=write(INFERENCER), dtype="float16", **SIZES)
    assert "chooses its own device and dtype" in caplog.text


def test_patch_size_that_the_divisor_does_not_divide():
    """A network that fails on a size that is no multiple of its divisor is told the multiple."""
    backend = create_backend("pytorch", model="rsunet", **SIZES)
    with pytest.raises(
        ModelError, match=r"--input-patch-size must be a multiple of \(1, 16, 16\), such as"
    ):
        backend(torch.rand(1, 1, 4, 16, 24))
    with pytest.raises(ModelError, match="check --input-patch-size, --num-input-channels and"):
        backend(torch.rand(1, 2, 4, 16, 16))


def test_file_that_is_not_python(write):
    """A model file of an unknown kind is refused with the kind that is needed."""
    with pytest.raises(ModelError, match=r"model\.txt is not a Python file"):
        create_backend("pytorch", model=write("hello", "model.txt"), **SIZES)


# --- files of other trainers ----------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["state_dict", "model_state_dict", "network_weights", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "net.", "model._orig_mod."])
def test_weights_are_found_in_checkpoints_of_trainers(write, tmp_path, holder, prefix):
    """Under the keys of nnU-Net and others, and with the prefixes of Lightning and compile."""
    path = write(NETWORK)
    state = {key: value + 1 for key, value in state_of(path).items()}
    named = {f"{prefix}{key}": value for key, value in state.items()}
    torch.save({holder: named, "epoch": 3}, tmp_path / "w.pt")
    network = NetworkSource(path, str(tmp_path / "w.pt")).load(
        run_model_file(path), torch.device("cpu")
    )
    for key, value in network.state_dict().items():
        assert torch.equal(value, state[key])


def test_a_prefix_of_other_weights_is_an_error(write, tmp_path):
    """Only a prefix that all keys share is dropped, and what then differs is named."""
    path = write(NETWORK)
    state = state_of(path)
    first, *others = state
    torch.save({f"net.{first}": state[first], **{f"loss.{k}": state[k] for k in others}},
               tmp_path / "w.pt")  # fmt: skip
    with pytest.raises(ModelError, match="the model lacks net"):
        create_backend("pytorch", model=path, weights=str(tmp_path / "w.pt"), **SIZES)


NAMES = st.sampled_from(["module", "net", "model", "_orig_mod", "conv", "weights"])
PREFIXES = st.lists(st.sampled_from(["module", "net", "model", "_orig_mod"]), max_size=3)


def network_of(paths):
    """Return a network with one convolution at each path, such as ``net.conv``."""
    root = torch.nn.Module()
    for number, path in enumerate(paths):
        parent = root
        for name in path[:-1]:
            if name not in dict(parent.named_children()):
                parent.add_module(name, torch.nn.Module())
            parent = parent.get_submodule(name)
        if path[-1] not in dict(parent.named_children()):
            parent.add_module(path[-1], torch.nn.Conv3d(1, 2 + number, 1))
    return root


@given(
    paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=4),
    prefix=PREFIXES,
    outside=st.sets(st.sampled_from(["criterion.weight", "loss.net.scale", "ema"])),
)
@settings(max_examples=150, deadline=None)
def test_any_wrapper_is_taken_off(paths, prefix, outside):
    """Weights are loaded from any nesting of wrappers, and other weights are refused or named.

    This holds where layers of the network have the names of wrappers, too.
    """
    network, other = network_of(paths), network_of(paths)
    start = "".join(f"{name}." for name in prefix)
    state = {f"{start}{key}": value for key, value in other.state_dict().items()}
    state |= {key: torch.zeros(1) for key in outside}
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with capture_logs() as log:
        if outside and not start:
            with pytest.raises(ModelError, match="the model lacks "):
                load_weights(network, state, path="w.pt", model="net.py")
            other = before
        else:
            load_weights(network, state, path="w.pt", model="net.py")
            other = other.state_dict()
    assert all(torch.equal(value, other[key]) for key, value in network.state_dict().items())
    assert [key for key in sorted(outside) if key not in log.getvalue()] == (
        [] if start else sorted(outside)
    )


@contextmanager
def capture_logs():
    """Yield the text of the warnings of the module that reads weights."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("chunkflow_py.inference.backends.model_files")
    logger.addHandler(handler)
    try:
        yield text
    finally:
        logger.removeHandler(handler)


def test_a_checkpoint_of_lightning(write, tmp_path, caplog):
    """The network is loaded from a module that also has a loss and an average of the weights.

    A warning names the others; a weight of the network that is missing is an error.
    """
    path = write(NETWORK)
    state = state_of(path)
    named = {f"model.{key}": value for key, value in state.items()}
    others = {"criterion.weight": torch.ones(3)} | {f"ema_model.{k}": v for k, v in state.items()}
    torch.save({"state_dict": others | named, "hyper_parameters": {"lr": 0.1}}, tmp_path / "w.pt")
    source = NetworkSource(path, str(tmp_path / "w.pt"))
    loaded = source.load(source.run_file(), torch.device("cpu")).state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in state.items())
    assert (
        f"{len(others)} weights are not used, because their names do not begin with 'model.'"
        in caplog.text
    )
    assert "criterion.weight" in caplog.text
    del named["model.conv.bias"]
    torch.save({"state_dict": named | {"criterion.weight": torch.ones(3)}}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match="the weights lack conv.weight"):
        source.load(source.run_file(), torch.device("cpu"))


def test_weights_that_are_there_twice(write, tmp_path):
    """Nothing is chosen for the user where two copies fit."""
    path = write(NETWORK)
    state = state_of(path)
    twice = {f"{name}.{key}": value for name in ("net", "model") for key, value in state.items()}
    torch.save(twice, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"2 times, with the prefixes net\., model\.; save only"):
        create_backend("pytorch", model=path, weights=str(tmp_path / "w.pt"), **SIZES)


def test_a_part_of_a_larger_network_is_refused():
    """A layer that fits is not taken out of the weights of another network."""
    state = {
        f"{layer}.{key}": value
        for layer in ("head", "body")
        for key, value in torch.nn.Conv3d(1, 2, 1).state_dict().items()
    }
    with pytest.raises(ModelError, match=r"the model lacks head\.weight"):
        load_weights(torch.nn.Conv3d(1, 2, 1), state, path="w.pt", model="net.py")


# --- the sizes that a network takes ---------------------------------------------------------------

POOLED = """
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv3d(1, 3, 1)
            self.pool = torch.nn.MaxPool3d((2, 4, 4))
            self.up = torch.nn.Upsample(scale_factor=(2, 4, 4))

        def forward(self, x):
            return self.conv(x) + self.up(self.pool(x))

    InstantiatedModel = Network()
"""
SECTIONS = """
    import torch

    InstantiatedModel = torch.nn.Conv2d(1, 3, 3, padding=1)
"""
MIXED = """
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.volume = torch.nn.Conv3d(1, 3, 3, padding=1)
            self.section = torch.nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            x = self.volume(x).transpose(1, 2)
            return self.section(x.flatten(0, 1)).view(x.shape).transpose(1, 2)

    torch.manual_seed(0)
    InstantiatedModel = Network()
"""


@pytest.mark.parametrize("said", ["    divisor = (2, 4, 4)", "    DIVISOR = (2, 4, 4)", None])
def test_a_patch_that_the_divisor_forbids_is_one_sentence(write, said, monkeypatch):
    """The error names the next size by the divisor, of the network or of its file.

    PyTorch prints no traceback of the run without data, which fails as well.
    """
    text = f"{POOLED}\n{said}\n" if said else POOLED.replace(
        "Network(torch.nn.Module):", "Network(torch.nn.Module):\n        divisor = (2, 4, 4)"
    )  # fmt: skip
    sizes = {"input_patch_size": (8, 16, 14), "output_patch_size": (8, 16, 14), "device": "cpu"}
    backend = create_backend("pytorch", model=write(text), **sizes)
    printed = io.StringIO()
    handler = logging.StreamHandler(printed)  # as PyTorch puts one there
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handlers", [handler])
    backend.memory()
    assert printed.getvalue() == ""
    with pytest.raises(ModelError, match=r"must be a multiple of \(2, 4, 4\), such as \(8, 16, 16"):
        backend.warm()


@pytest.mark.parametrize(
    ("text", "dims", "other"), [(SECTIONS, 3, 2), (NETWORK, 2, 3)], ids=["2D as 3D", "3D as 2D"]
)
def test_a_network_of_other_dimensions_names_spatial_dims(write, text, dims, other):
    """Whether kernels have two or three axes is seen, and the option that fits is named."""
    backend = create_backend("pytorch", model=write(text), spatial_dims=dims, **SIZES)
    with pytest.raises(ModelError, match=f"is {dims}; use --spatial-dims {other}$"):
        backend.warm()


def test_a_network_may_have_kernels_of_two_and_three_axes(write):
    """Kernels for sections beside those for volumes are laid out each for itself."""
    path = write(MIXED)
    backend = create_backend("pytorch", model=path, **SIZES)
    batch = torch.rand(1, 1, *PATCH)
    with torch.inference_mode():
        expected = run_model_file(path).InstantiatedModel(batch)
    torch.testing.assert_close(backend(batch), expected)
