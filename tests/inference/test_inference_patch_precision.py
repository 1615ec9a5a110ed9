"""Patches rounded to float16 before blending: which values, for every kind of output."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkflow_py.api import predict
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import NonFiniteError, OptionError
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry
from chunkflow_py.inference.memory_estimate import Workload, estimate_memory
from chunkflow_py.inference.network_memory import Activations
from chunkflow_py.inference.network_output import activated

APART = PatchGeometry(Zyx(4, 6, 6), Zyx(2, 4, 4), Zyx(0, 0, 0))
OVERLAPPING = PatchGeometry(Zyx(4, 6, 6), Zyx(2, 4, 4), Zyx(1, 2, 2))
SIZE = (6, 12, 12)
BOX = BoundingBox.from_size((3, 4, 5), SIZE)


class Network:
    """A convolution with values that float16 does not hold exactly."""

    weighted = False
    divisor = None
    profile: dict = {}
    device = torch.device("cpu")

    def __init__(self, dtype=torch.float32, scale=1.0):
        generator = torch.Generator().manual_seed(2)
        self.weight = scale * torch.randn((3, 1, 3, 3, 3), generator=generator)
        self.dtype = dtype

    def __call__(self, batch):
        patches = [torch.nn.functional.conv3d(patch, self.weight, padding=1) for patch in batch]
        return torch.stack(patches).to(self.dtype)


class Rounded(Network):
    """The same network, which rounds its own output."""

    def __call__(self, batch):
        return super().__call__(batch).half().float()


def image():
    """Return the voxels of a small image."""
    return np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)


def blended(network, geometry=OVERLAPPING, *, staged=None, array=None, **options):
    """Return the output of an engine with these settings on a small image."""
    setting = EngineSettings(geometry, **options)
    engine = Engine(network, setting, staged=staged)
    try:
        return engine.run(image() if array is None else array, BOX)
    finally:
        engine.close()


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("network", [torch.float32, torch.bfloat16, torch.float16])
def test_every_patch_is_rounded_before_blending(network, batch_size):
    """The bytes are those of a network that rounds its own output to float16."""
    options = {"batch_size": batch_size, "output_kind": "logit"}
    found = blended(Network(network), patch_precision="float16", **options)
    exact = torch.bfloat16 if network is torch.bfloat16 else torch.float32
    assert found.tobytes() == blended(Rounded(exact), **options).tobytes()
    assert found.tobytes() != blended(Network(torch.float32), **options).tobytes()


@pytest.mark.parametrize(
    "options",
    [{"augment": True, "output_kind": "vector"}, {"activation": "sigmoid"},
     {"activation": "softmax", "output_kind": "probability", "augment": True}],
    ids="-".join,
)  # fmt: skip
def test_augmentation_and_activation_come_before_rounding(options):
    """The mean over all flips, and the activated values, are rounded; not what they are made of."""
    options = options | {"bump": "constant"}
    exact = blended(Network(), APART, **options)
    found = blended(Network(), APART, patch_precision="float16", **options)
    assert found.tobytes() == exact.astype(np.float16).astype(np.float32).tobytes()
    assert found.tobytes() != exact.tobytes()


def test_an_activation_after_blending_is_not_rounded():
    """With ``--activate after`` the logits are rounded."""
    options = {"bump": "constant", "patch_precision": "float16"}
    logits = blended(Network(), APART, output_kind="logit", **options)
    assert logits.tobytes() == logits.astype(np.float16).astype(np.float32).tobytes()
    found = blended(Network(), APART, activation="sigmoid", activate="after", **options)
    expected = activated(torch.from_numpy(logits), "sigmoid").numpy()
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("is_first", [True, False], ids=["first batch", "later batch"])
def test_values_that_do_not_fit_are_an_error(is_first, staged):
    """A value that becomes infinite in float16 stops the task; the message names the option."""
    array = np.full(SIZE, 255 * is_first, np.uint8)
    array[-1, -1, -1] = 255
    network = Network(scale=1e5)
    options = {"output_kind": "logit", "array": array, "staged": staged}
    assert np.isfinite(blended(network, **options)).all()
    with pytest.raises(NonFiniteError, match="65504.*use --patch-precision float32"):
        blended(network, patch_precision="float16", **options)


def test_weighted_patches_are_refused():
    """Values multiplied by the window, up to 1e6, do not fit into float16."""
    network = Network()
    network.weighted = True
    with pytest.raises(OptionError, match="--patch-precision float16 .* InstantiatedModel"):
        blended(network, patch_precision="float16")


def test_the_estimates_know_it():
    """Rounded patches are further copies of two bytes a value; what is exchanged halves."""
    made = []
    for precision in ("float32", "float16"):
        setting = EngineSettings(OVERLAPPING, patch_precision=precision, batch_size=2)
        workload = Workload(
            setting, Activations(0, 1), 0, input_size=Zyx(8, 16, 16), output_size=Zyx(6, 12, 12)
        )
        made.append((estimate_memory(workload).host["batches"], setting.patch_itemsize))
    (exact, four), (rounded, two) = made
    assert rounded - exact == 2 * 2 * 3 * OVERLAPPING.output_patch_size.product()
    assert (four, two) == (4, 2)


def test_predict_and_dask_round_as_well():
    """`predict` and dask arrays, in any chunks, have the same bytes."""
    da = pytest.importorskip("dask.array")
    from chunkflow_py.dask import inference, release_networks

    patch = {"patch_size": (4, 6, 6), "overlap": (1, 2, 2), "num_output_channels": 3}
    network = torch.nn.Conv3d(1, 3, 3, padding=1)
    exact, found = (
        predict(image(), network, output_kind="logit", patch_precision=precision, **patch)
        for precision in ("float32", "float16")
    )
    assert 0 < np.abs(exact - found).max() < 2**-11 * np.abs(exact).max()
    options = (
        "--framework identity -s 4 6 6 -v 1 2 2 -c 1 --output-kind logit --patch-precision float16"
    )
    whole = inference(da.from_array(image(), SIZE), options).compute()
    divided = inference(da.from_array(image(), (3, 5, 7)), options).compute()
    release_networks()
    assert whole.tobytes() == divided.tobytes()
    assert np.abs(whole[0] - image() / 255).max() > 1e-5
