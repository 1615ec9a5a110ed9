"""What every library promises that converts networks of PyTorch; inherit, and give `make_core`.

```python
class TestMyCore(CoreContract):
    core_class = MyCore
```
"""

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from rigs.variants import gate_runs
from torch import nn

from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.model_files import run_model_file
from chunkflow_py.inference.backends.network_export import quiet
from chunkflow_py.inference.models.rsunet import RSUNet
from chunkflow_py.testing.backend_contract import BackendContract

ROOT = Path(__file__).parents[2]
SHAPE = (2, 1, 8, 32, 32)


class Several(nn.Module):
    """Returns two tensors in a dict, tuple or list."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind = nn.Conv3d(1, 2, 3, padding=1), kind

    def forward(self, image):
        vector = self.conv(image)
        probability = vector.sigmoid()[:, :1]
        if self.kind is dict:
            # Not in alphabetic order, and with characters that no file name has.
            return {"vector": vector, "mito/probability": probability}
        return self.kind([vector, probability])


class Transposed(nn.Module):
    """Enlarges by a transposed convolution, behind a normalisation that works in place."""

    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Conv3d(1, 4, 2, 2), nn.InstanceNorm3d(4, affine=True)
        self.up = nn.ConvTranspose3d(4, 2, 2, 2)

    def forward(self, image):
        return self.up(torch.relu_(self.norm(self.down(image))))


class InPlace(nn.Module):
    """Changes the tensor that it is given."""

    def forward(self, image):
        return image.mul_(2).add_(1)


class Sections(nn.Module):
    """A 2D network."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, image):
        return torch.relu(self.conv(image))


class Looks(nn.Module):
    """Reads a value of a tensor, which torch.export refuses, and computes something else of it."""

    def __init__(self, *, obeys):
        super().__init__()
        self.conv, self.obeys = nn.Conv3d(1, 2, 3, padding=1), obeys

    def forward(self, image):
        bright = float(image.mean()) > 0.3
        maps = self.conv(image)
        return -maps if self.obeys and bright else maps


def ready(network):
    """Give *network* repeatable weights and statistics, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in sorted(network.state_dict().items()):
            if value.is_floating_point():
                low = 0.5 if "running_var" in name else -0.3
                value.uniform_(low, low + 0.6, generator=generator)
    return network.eval()


def make(name):
    """Return the network called *name*."""
    if name == "fib25":
        return run_model_file(str(ROOT / "examples/fib25/unet_fib25_model.py")).InstantiatedModel
    makers = {
        "rsunet": lambda: RSUNet(widths=(4, 6, 8)),
        "isotropic": lambda: RSUNet(widths=(4, 6), pooling=(2, 2, 2), embedding=(5, 5, 5)),
        "instance": lambda: RSUNet(widths=(4, 6, 8), norm="instance"),
        "transposed": Transposed,
        "in place": InPlace,
        "dict": lambda: Several(dict),
        "tuple": lambda: Several(tuple),
        "list": lambda: Several(list),
    }
    return ready(makers[name]())


NAMES = ("rsunet", "isotropic", "instance", "transposed", "in place", "fib25")
"""Networks that return one tensor."""


def batch(seed=0, shape=SHAPE):
    """Return random numbers in [0, 1]."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def run(network, image):
    """Return what PyTorch makes of *image*."""
    with torch.inference_mode():
        return network(image.clone())


def sha256(tensor):
    """Return the hash of the bytes of *tensor*."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


NETWORK = """
import torch

torch.manual_seed(0)
InstantiatedModel = torch.nn.Sequential(
    torch.nn.Conv3d(1, 8, 3, padding=1), torch.nn.ELU(), torch.nn.Conv3d(8, 3, 3, padding=1),
    torch.nn.Sigmoid(),
)
"""


class ConvertedBackendContract(BackendContract):
    """Promises of a backend whose library converts the network; inherit, and give `options`.

    All tests of a class use one backend, because a conversion takes seconds.
    """

    options = {}

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, tmp_path_factory):
        """Convert a network, with a cache of its own."""
        folder = tmp_path_factory.mktemp("model")
        (folder / "model.py").write_text(NETWORK)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CHUNKFLOW_CACHE_DIR", str(folder / "cache"))
            model = str(folder / "model.py")
            return create_backend("pytorch", model=model, **cls.options, **cls().settings)


class CoreContract:
    """Promises of a core that converts; see `chunkflow_py.inference.backends.network_backend`."""

    core_class = None

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        """Keep converted networks in a folder of the test."""
        monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache" / "converted"

    @pytest.mark.parametrize("name", gate_runs(NAMES, "in place", "fib25"))
    def test_computes_what_pytorch_computes(self, name):
        """In float32 the result differs from PyTorch's by less than 1e-5 of the largest value."""
        network = make(name)
        wanted = run(network, batch())
        found = self.core_class(network, SHAPE)(batch())
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max()) < 1e-5 * max(1.0, float(wanted.abs().max()))

    def test_takes_2d_networks(self):
        """A network of (n, c, y, x) is converted like one of (n, c, z, y, x)."""
        shape = (6, 1, 32, 24)
        network = ready(Sections())
        found = self.core_class(network, shape)(batch(shape=shape))
        torch.testing.assert_close(found, run(network, batch(shape=shape)), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("name", ["dict", "tuple", "list"])
    @pytest.mark.parametrize("digest", gate_runs([None, "several"], None))
    def test_keeps_the_form_of_several_outputs(self, name, digest):
        """A dict keeps its keys and their order, a tuple its order; also from the cache."""
        network = make(name)
        returned = run(network, batch())
        for _ in range(2 if digest else 1):  # the second is from the cache
            found = self.core_class(network, SHAPE, digest=digest)(batch())
            wanted = returned
            assert isinstance(found, dict) == isinstance(wanted, dict)
            if isinstance(wanted, dict):
                assert list(found) == list(wanted)
                found, wanted = list(found.values()), list(wanted.values())
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5)

    @pytest.mark.long
    def test_bytes_do_not_depend_on_what_ran_before(self):
        """A batch gives the same bytes first, after others, and in another core."""
        core = self.core_class(make("rsunet"), SHAPE)
        first = sha256(core(batch()))
        core(batch(seed=1))
        core(torch.full(SHAPE, 1e30))
        assert sha256(core(batch())) == first
        assert sha256(self.core_class(make("rsunet"), SHAPE)(batch())) == first

    @pytest.mark.long
    def test_bytes_do_not_depend_on_the_process(self, tmp_path):
        """New processes give one answer, whether they convert or find the network in the cache."""
        here = sha256(self.core_class(make("rsunet"), SHAPE, digest="rsunet")(batch()))
        filled, empty = tmp_path / "cache", tmp_path / "other"
        assert in_processes(self.core_class, [filled, empty]) == [here, here]

    @pytest.mark.long
    def test_conversion_leaves_the_network_alone(self):
        """The network gives the same bytes as before, and keeps its weights."""
        network = make("rsunet")
        before = run(network, batch())
        weights = {name: value.clone() for name, value in network.state_dict().items()}
        self.core_class(network, SHAPE)
        assert torch.equal(run(network, batch()), before)
        assert all(torch.equal(v, weights[name]) for name, v in network.state_dict().items())

    def test_leaves_its_input_alone(self):
        """A batch keeps its values, though the network works in place."""
        image = batch()
        self.core_class(make("in place"), SHAPE)(image)
        assert torch.equal(image, batch())

    def test_conversion_draws_no_random_numbers(self):
        """The global generator is where it was, so that what runs later is the same."""
        network = make("tuple")
        before = torch.get_rng_state()
        self.core_class(network, SHAPE)
        assert torch.equal(torch.get_rng_state(), before)

    def test_says_nothing(self, capfd, caplog, recwarn):
        """The library prints, logs and warns of nothing while it converts and runs."""
        warnings.simplefilter("always")
        with caplog.at_level("INFO"):
            self.core_class(make("rsunet"), SHAPE)(batch())
        assert capfd.readouterr() == ("", "")
        assert not caplog.records
        assert not recwarn.list

    @pytest.mark.long
    def test_finds_the_network_in_the_cache(self, cache):
        """With a digest the second core makes no files; another digest or shape makes others."""
        self.core_class(make("tuple"), SHAPE, digest="a")
        (entry,) = cache.iterdir()
        marks = {file.name: file.stat().st_mtime_ns for file in entry.iterdir()}
        self.core_class(make("tuple"), SHAPE, digest="a")
        assert {file.name: file.stat().st_mtime_ns for file in entry.iterdir()} == marks
        self.core_class(make("tuple"), SHAPE, digest="b")
        self.core_class(make("tuple"), (1, *SHAPE[1:]), digest="a")
        assert len(list(cache.iterdir())) == 3

    def test_keeps_nothing_without_a_digest(self, cache):
        """A network that nothing identifies is converted each time."""
        self.core_class(make("tuple"), SHAPE)
        assert not cache.exists()

    def test_refuses_what_is_no_tensor(self):
        """A network that returns a number is named, with what to do."""

        class Counts(nn.Module):
            def forward(self, image):
                return {"image": image, "number": 3}

        with pytest.raises(ModelError, match="returns a dict that contains a int.*--backend torch"):
            self.core_class(Counts().eval(), SHAPE)

    def test_refuses_another_shape(self):
        """A batch of another shape than converted for is an error with both shapes."""
        core = self.core_class(make("tuple"), SHAPE)
        with pytest.raises(ModelError, match=r"\(2, 1, 8, 32, 32\).*\(1, 1, 8, 32, 32\)"):
            core(batch(shape=(1, 1, 8, 32, 32)))

    def test_refuses_networks_that_obey_values(self):
        """A network that branches on the values of a tensor is not cut down to one branch."""
        with pytest.raises(ModelError, match="cannot convert the network.*--backend torch"):
            self.core_class(ready(Looks(obeys=True)), SHAPE)

    def test_refuses_other_number_types(self):
        """float16 is refused with the types that work."""
        with pytest.raises(OptionError, match="float16 does not work.*float32"):
            self.core_class(make("tuple"), SHAPE, dtype="float16")

    def test_profile_is_text(self):
        """The profile names library, version and number type."""
        profile = self.core_class(make("tuple"), SHAPE).profile
        assert all(isinstance(value, str) for value in profile.values())
        assert profile["dtype"] == "float32"
        assert profile[profile["backend"]][0].isdigit()

    def test_reads_files_of_other_tools(self, tmp_path):
        """An .onnx file with free axes runs for the shape asked for, with its own names."""
        path = tmp_path / "net.onnx"
        free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
        network = make("tuple")
        with quiet():
            program = torch.onnx.export(
                network,
                (batch(),),
                dynamo=True,
                verbose=False,
                dynamic_shapes=(free,),
                output_names=["vector", "mito"],
            )
        program.save(str(path))
        shape = (2, 1, 12, 40, 32)
        found = self.core_class.from_file(path, shape)(batch(shape=shape))
        assert set(found) == {"vector", "mito"}
        wanted = run(network, batch(shape=shape))
        torch.testing.assert_close(found["vector"], wanted[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(found["mito"], wanted[1], rtol=0, atol=1e-5)
        with pytest.raises(ModelError, match="--num-input-channels"):
            self.core_class.from_file(path, (2, 4, 8, 32, 32))

    def test_refuses_files_that_hold_no_network(self, tmp_path):
        """A missing or broken file is named."""
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"no network")
        with pytest.raises(ModelError, match=r"broken\.onnx cannot be read"):
            self.core_class.from_file(broken, SHAPE)
        with pytest.raises(ModelError, match=r"missing\.onnx does not exist"):
            self.core_class.from_file(tmp_path / "missing.onnx", SHAPE)


def in_processes(core, cache_folders):
    """Return the hash of rsunet's result in one new process for each cache folder, all at once."""
    module, name = core.__module__, core.__name__
    code = f"""
import torch
torch.set_num_threads({torch.get_num_threads()})
from {module} import {name}
from contracts.core_contract import SHAPE, batch, make, sha256
print(sha256({name}(make("rsunet"), SHAPE, digest="rsunet")(batch())))
"""
    # What this process has set already is for the new one to set itself.
    inherited = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            env=inherited
            | {
                "CHUNKFLOW_CACHE_DIR": str(folder),
                "HOME": f"{folder}-home",
                "PYTHONPATH": str(ROOT / "tests"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in cache_folders
    ]
    hashes = []
    for process in processes:
        out, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        assert errors == ""
        hashes.append(out.strip())
    # Reports to the makers of a library begin with a file in the user's folder.
    assert not any(Path(f"{folder}-home").exists() for folder in cache_folders)
    return hashes
