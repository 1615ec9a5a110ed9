"""Inference is right: identity is identity, tiles do not show, cuts change nothing."""

import gc
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rigs.variants import gate_runs
from rounding import rounding

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import (
    ChunkError,
    GeometryError,
    ModelError,
    NonFiniteError,
    OptionError,
    OutOfMemoryError,
)
from chunkflow_py.inference.backends.backend_protocol import Identity
from chunkflow_py.inference.blend import BUMPS
from chunkflow_py.inference.engine import Engine
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.normalization import Normalizer
from chunkflow_py.inference.patch_grid import PatchGeometry


class Network:
    """A backend around any function of a batch."""

    weighted = False
    divisor = None
    profile = {"framework": "test"}
    device = torch.device("cpu")

    def __init__(self, function):
        self.function = function
        self.shapes = []

    def __call__(self, batch):
        self.shapes.append(tuple(batch.shape))
        return self.function(batch)


def triples(low, high):
    """Draw three integers."""
    return st.tuples(*[st.integers(low, high)] * 3).map(Zyx.of)


@st.composite
def cases(draw, largest=10):
    """Draw settings, a domain and a task box in it; overlap up to three quarters of the patch."""
    output = draw(triples(1, largest))
    margin = draw(triples(0, 2))
    overlap = Zyx(*(draw(st.integers(0, 3 * n // 4 if n > 1 else 0)) for n in output)).low(
        output - 1
    )
    setting = EngineSettings(
        PatchGeometry(output + margin * 2, output, overlap),
        num_output_channels=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 4)),
        bump=draw(st.sampled_from(BUMPS)),
        pad=draw(st.sampled_from(["reflect", "edge", "zero"])),
        **draw(st.sampled_from([{}, {"keep_stride": True}, {"spread": True}])),
    )
    size = Zyx(*(draw(st.integers(1, 2 * n + 6)) for n in output))
    domain = BoundingBox.from_size(draw(triples(-30, 30)), size)
    start = Zyx(*(draw(st.integers(a, b - 1)) for a, b in zip(domain.start, domain.stop)))
    stop = Zyx(*(draw(st.integers(a + 1, b)) for a, b in zip(start, domain.stop)))
    return setting, domain, BoundingBox(start, stop), draw(st.integers(0, 2**32 - 1))


def identity(setting):
    """Return the identity network for these settings."""
    geometry = setting.geometry
    return Identity(
        geometry.input_patch_size,
        geometry.output_patch_size,
        setting.num_output_channels,
        torch.device("cpu"),
    )


@given(cases())
@settings(max_examples=150)
def test_the_identity_network_returns_its_input(case):
    """Input/255 to 1e-6, for any patch, overlap, window, padding, domain, task box and offset."""
    setting, domain, box, seed = case
    image = np.random.default_rng(seed).integers(0, 256, domain.size, dtype=np.uint8)
    output = Engine(identity(setting), setting).run(image, domain, output_box=box)
    assert output.dtype == np.float32
    expected = image[box.slices(domain.start)] / np.float64(255)
    for channel in output:
        np.testing.assert_allclose(channel, expected, rtol=0, atol=1e-6)


@given(cases(largest=6))
@settings(max_examples=60)
def test_any_cut_of_the_input_gives_the_same_bytes(case):
    """Running on exactly the required input equals running on the whole domain, to the byte."""
    setting, domain, box, seed = case
    image = np.random.default_rng(seed).integers(0, 256, domain.size, dtype=np.uint8)
    engine = Engine(Network(convolution(setting.num_output_channels, seed % 1000)), setting)
    whole = engine.run(image, domain)
    need = setting.grid(domain).required_input(box)
    part = engine.run(image[need.slices(domain.start)], need, output_box=box, domain=domain)
    inside = box.slices(domain.start)
    assert part.tobytes() == np.ascontiguousarray(whole[(slice(None), *inside)]).tobytes()


@given(cases(largest=6), st.data())
@settings(max_examples=60)
def test_one_voxel_less_than_the_required_input_is_refused(case, data):
    """Whatever face of the required input is moved in by one voxel, the engine says so."""
    setting, domain, box, seed = case
    need = setting.grid(domain).required_input(box)
    axis = data.draw(st.sampled_from([a for a in range(3) if need.size[a] > 1] or [None]))
    if axis is None:
        return
    step = Zyx(*(int(a == axis) for a in range(3)))
    low = data.draw(st.booleans())
    less = (
        BoundingBox(need.start + step, need.stop)
        if low
        else BoundingBox(need.start, need.stop - step)
    )
    image = np.zeros(less.size, np.uint8)
    with pytest.raises(GeometryError, match="load the chunk with a margin of"):
        Engine(identity(setting), setting).run(image, less, output_box=box, domain=domain)


@given(cases(largest=6), st.data())
@settings(max_examples=60)
def test_every_face_of_the_required_input_matters(case, data):
    """Required input is not too large: some patch reads a voxel of each of its six faces."""
    setting, domain, box, seed = case
    grid = setting.grid(domain)
    need = grid.required_input(box)
    read = [set(), set(), set()]
    for patch in grid.patches(box):
        wanted = grid.input_box(patch)
        for axis in range(3):
            found = grid.source_indices(wanted.start[axis], wanted.stop[axis], axis)
            read[axis].update(found.tolist())
    for axis in range(3):
        assert need.start[axis] in read[axis]
        assert need.stop[axis] - 1 in read[axis]


@given(
    st.integers(1, 2), triples(1, 5), triples(0, 4), triples(4, 20), st.integers(0, 2**31),
    st.sampled_from(["wu", "zung", "constant"]),
)  # fmt: skip
@settings(max_examples=60)
@pytest.mark.long
def test_a_convolution_of_limited_reach_shows_no_tiles(reach, core, overlap, size, seed, bump):
    """Output patches cropped by the network's reach give the untiled result to 1e-5, no seam."""
    torch.manual_seed(seed)
    layers = [torch.nn.Conv3d(1, 4, 3), torch.nn.Tanh(), torch.nn.Conv3d(4, 2, 2 * reach - 1)]
    network = torch.nn.Sequential(*layers).requires_grad_(requires_grad=False)
    reach = 1 + (2 * reach - 2) // 2
    output = core * 2
    geometry = PatchGeometry(output + 2 * reach, output, overlap.low(output - 1))
    setting = EngineSettings(geometry, num_output_channels=2, batch_size=2, bump=bump)
    image = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    tiled = Engine(Network(network), setting).run(image, BoundingBox.from_size((0, 0, 0), size))
    padded = np.pad(image, reach, mode="reflect").astype(np.float32) / 255
    whole = network(torch.from_numpy(padded)[None, None])[0].numpy()
    np.testing.assert_allclose(tiled, whole, rtol=0, atol=1e-5)


def test_blending_equals_a_float64_reference_over_the_same_patches():
    """Σ w·p / Σ w to 1e-6, also where up to 4 patches an axis overlap."""
    geometry = PatchGeometry(Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(3, 5, 6))
    setting = EngineSettings(geometry, num_output_channels=2, bump="wu")
    rng = np.random.default_rng(0)
    image = rng.random((11, 19, 17), dtype=np.float32)
    domain = BoundingBox.from_size((0, 0, 0), image.shape)
    calls = []

    def noise(batch):
        calls.append(rng.random((1, 2, 4, 8, 8), dtype=np.float32))
        return torch.from_numpy(calls[-1].copy())

    result = Engine(Network(noise), setting).run(image, domain)
    total = np.zeros((2, *image.shape))
    weight = np.zeros(image.shape)
    window = setting.window.astype(np.float64)
    for patch, values in zip(setting.grid(domain).patches(domain), calls, strict=True):
        total[(slice(None), *patch.slices())] += window * values[0]
        weight[patch.slices()] += window
    np.testing.assert_allclose(result, total / weight, rtol=1e-6)


def test_every_forward_has_the_same_shape():
    """The last batch is filled up with zeros, so that the compute profile never changes."""
    geometry = PatchGeometry(Zyx(2, 2, 2), Zyx(2, 2, 2), Zyx(0, 0, 0))
    sums = []

    def network_of(batch):
        sums.append(batch.sum((1, 2, 3, 4)).tolist())
        return batch.clone()

    network = Network(network_of)
    setting = EngineSettings(geometry, num_output_channels=1, batch_size=4)
    Engine(network, setting).run(
        np.full((2, 2, 10), 255, np.uint8), BoundingBox.from_size((0,) * 3, (2, 2, 10))
    )
    assert network.shapes == [(4, 1, 2, 2, 2)] * 2
    assert sums == [[8, 8, 8, 8], [8, 0, 0, 0]]


def test_uint8_output_follows_the_fixed_rule(caplog):
    """255·p rounded half to even after clamping; what is clamped is counted and said."""
    values = np.array([-0.5, 0.0, 0.5 / 255, 1.5 / 255, 2.5 / 255, 1.0, 1.5], np.float32)
    geometry = PatchGeometry(Zyx(1, 1, 7), Zyx(1, 1, 7), Zyx(0, 0, 0))
    setting = EngineSettings(geometry, num_output_channels=1, bump="constant", output_dtype="uint8")
    engine = Engine(Network(lambda batch: batch.clone()), setting)
    box = BoundingBox.from_size((0, 0, 0), (1, 1, 7))
    output = engine.run(values.reshape(1, 1, 7), box)
    assert output.dtype == np.uint8
    rounded = np.rint(np.clip(values, 0, 1) * np.float32(255)).astype(np.uint8)
    assert output.ravel().tolist() == rounded.tolist()
    assert output.ravel()[[0, 1, 5, 6]].tolist() == [0, 0, 255, 255]
    assert engine.voxels_clamped == 2
    assert "2 output values outside [0, 1] were clamped" in caplog.text


def test_float16_output_is_the_rounded_float32_output():
    """float16 is a conversion at the very end."""
    geometry = PatchGeometry(Zyx(2, 4, 4), Zyx(2, 4, 4), Zyx(1, 2, 2))
    image = np.random.default_rng(1).integers(0, 256, (4, 9, 9), dtype=np.uint8)
    box = BoundingBox.from_size((0, 0, 0), image.shape)
    results = []
    for dtype in ("float32", "float16"):
        setting = EngineSettings(geometry, num_output_channels=1, output_dtype=dtype)
        results.append(Engine(identity(setting), setting).run(image, box))
    assert np.array_equal(results[0].astype(np.float16), results[1])


def test_the_myelin_channel_masks_the_others_and_is_dropped():
    """Where the last channel is not below the threshold, the others become zero."""
    geometry = PatchGeometry(Zyx(1, 1, 4), Zyx(1, 1, 4), Zyx(0, 0, 0))
    setting = EngineSettings(geometry, num_output_channels=4, mask_myelin_threshold=0.3)
    myelin = torch.tensor([0.0, 0.29, 0.3, 0.9])

    def network(batch):
        return torch.cat([torch.full((1, 3, 1, 1, 4), 0.5), myelin.expand(1, 1, 1, 1, 4)], dim=1)

    box = BoundingBox.from_size((0, 0, 0), (1, 1, 4))
    output = Engine(Network(network), setting).run(np.zeros((1, 1, 4), np.uint8), box)
    assert output.shape == (3, 1, 1, 4)
    assert output[:, 0, 0].tolist() == [[0.5, 0.5, 0.0, 0.0]] * 3


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32", "float32", "float64"])
def test_integer_images_are_divided_by_the_maximum_of_their_type(dtype):
    """The network sees [0, 1] for integers, floats as they are; normalize none changes nothing."""
    kind = np.dtype(dtype)
    peak = 1 if kind.kind == "f" else np.iinfo(kind).max
    image = (np.linspace(0, 1, 8).reshape(2, 2, 2) * peak).astype(kind)
    geometry = PatchGeometry(Zyx(2, 2, 2), Zyx(2, 2, 2), Zyx(0, 0, 0))
    box = BoundingBox.from_size((0, 0, 0), (2, 2, 2))
    for normalize, divisor in (("dtype", peak), ("none", 1)):
        setting = EngineSettings(geometry, num_output_channels=1, normalizer=Normalizer(normalize))
        output = Engine(identity(setting), setting).run(image, box)
        np.testing.assert_allclose(output[0], image / divisor, rtol=1e-6)


def test_several_input_channels_reach_the_network():
    """An image (c, z, y, x) is handed over with all its channels, padding included."""
    geometry = PatchGeometry(Zyx(3, 4, 5), Zyx(1, 2, 3), Zyx(0, 1, 1))
    setting = EngineSettings(geometry, num_input_channels=2, num_output_channels=1)
    image = np.random.default_rng(2).integers(0, 256, (2, 4, 7, 8), dtype=np.uint8)
    network = Network(lambda batch: batch[:, :1] - 2 * batch[:, 1:])
    output = Engine(network, setting).run(image, BoundingBox.from_size((5, 6, 7), (4, 7, 8)))
    np.testing.assert_allclose(output[0], (image[0] / 255 - 2 * (image[1] / 255)), atol=1e-6)


def test_patches_already_weighted_are_not_weighted_again():
    """A universal backend returns w·p, and the sum is still divided by Σ w."""
    geometry = PatchGeometry(Zyx(2, 4, 4), Zyx(2, 4, 4), Zyx(1, 2, 2))
    setting = EngineSettings(geometry, num_output_channels=1)
    image = np.random.default_rng(3).integers(0, 256, (5, 9, 9), dtype=np.uint8)
    network = Network(lambda batch: batch * torch.from_numpy(setting.window))
    network.weighted = True
    output = Engine(network, setting).run(image, BoundingBox.from_size((0, 0, 0), image.shape))
    np.testing.assert_allclose(output[0], image / 255, atol=1e-6)


def test_input_is_untouched_and_progress_is_told():
    """The image keeps its bytes; progress counts patches up to all of them."""
    geometry = PatchGeometry(Zyx(2, 2, 2), Zyx(2, 2, 2), Zyx(0, 0, 0))
    setting = EngineSettings(geometry, num_output_channels=1, batch_size=3)
    image = np.random.default_rng(4).random((4, 4, 4), dtype=np.float32)
    before, told = image.tobytes(), []
    engine = Engine(identity(setting), setting)
    engine.run(
        image,
        BoundingBox.from_size((0, 0, 0), (4, 4, 4)),
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert image.tobytes() == before
    assert told == [(3, 8), (6, 8), (8, 8)]
    assert engine.patches_run == 8
    assert engine.forward_seconds > 0


ONE = PatchGeometry(Zyx(2, 2, 2), Zyx(2, 2, 2), Zyx(0, 0, 0))
BOX = BoundingBox.from_size((0, 0, 0), (2, 2, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_output_is_found_on_the_first_batch(value):
    """NaN and infinity stop the run at once, not at the end."""
    network = Network(lambda batch: torch.full_like(batch, value))
    engine = Engine(network, EngineSettings(ONE, num_output_channels=1))
    with pytest.raises(NonFiniteError, match="8 values that are NaN or infinite"):
        engine.run(np.zeros((2, 2, 4), np.uint8), BOX)
    assert len(network.shapes) == 1


def test_large_finite_output_is_no_error():
    """A batch whose sum overflows while its values are finite passes."""
    network = Network(lambda batch: torch.full_like(batch, 3e38))
    engine = Engine(network, EngineSettings(ONE, num_output_channels=1, bump="constant"))
    assert engine.run(np.zeros((2, 2, 4), np.uint8), BOX).max() == np.float32(3e38)


@pytest.mark.parametrize(
    ("function", "more", "error", "words"),
    [
        (lambda b: b.repeat(1, 2, 1, 1, 1), {}, ModelError, "returned 2 channels, .*nnels 2"),
        (lambda b: b[..., :1], {}, ModelError, r"patches of size \(2, 2, 1\), but must"),
        (lambda b: b + 2, {"output_kind": "probability"}, ModelError, r"in \[0, 1\], but .* 2 to"),
    ],
)  # fmt: skip
def test_output_that_is_not_what_was_said_is_named(function, more, error, words):
    """Wrong channels, sizes and ranges are found on the first batch, with both values."""
    engine = Engine(Network(function), EngineSettings(ONE, num_output_channels=1, **more))
    with pytest.raises(error, match=words):
        engine.run(np.zeros((2, 2, 4), np.uint8), BOX)


def test_wrong_input_is_named():
    """Channels and shapes that disagree are an error before the network runs."""
    engine = Engine(Network(lambda b: b), EngineSettings(ONE, num_output_channels=1))
    with pytest.raises(ChunkError, match="has 2 channels, but --num-input-channels is 1"):
        engine.run(np.zeros((2, 2, 2, 4), np.uint8), BOX)
    with pytest.raises(ChunkError, match=r"shape \(2, 2, 5\) does not have the size"):
        engine.run(np.zeros((2, 2, 5), np.uint8), BOX)


@pytest.mark.parametrize("axis", range(3))
def test_output_where_there_is_no_patch_is_refused(axis):
    """An output box that reaches outside of the domain is an error, not NaN."""
    stop = [BOX.stop[a] + (a == axis) for a in range(3)]
    engine = Engine(Network(lambda b: b), EngineSettings(ONE, num_output_channels=1))
    with pytest.raises(GeometryError, match=f"reaches outside {BOX}"):
        engine.run(np.zeros(BOX.size, np.uint8), BOX, output_box=BoundingBox(BOX.start, stop))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"output_kind": "affinity", "num_output_channels": 2}, "three channels .* has 2"),
        ({"mask_myelin_threshold": 0.3, "num_output_channels": 1}, "is 1; use at least 2"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    """The settings are checked before anything is computed."""
    with pytest.raises(OptionError, match=words):
        EngineSettings(ONE, **options)


def test_weighted_patches_cannot_be_augmented():
    """Flipping w·p back would average windows, not values."""
    network = Network(lambda batch: batch)
    network.weighted = True
    with pytest.raises(OptionError, match="--augment .* InstantiatedModel"):
        Engine(network, EngineSettings(ONE, num_output_channels=1, augment=True))


def test_augmentation_needs_square_patches():
    """Transposes swap y and x, so both must have one size."""
    geometry = PatchGeometry(Zyx(2, 4, 6), Zyx(2, 4, 6), Zyx(0, 0, 0))
    with pytest.raises(OptionError, match="4 x 6"):
        EngineSettings(geometry, augment=True)


# --- the same bytes whatever else goes on --------------------------------------------------------


def voxels(size, seed=0):
    """Return random uint8 voxels and their box at the origin."""
    image = np.random.default_rng(seed).integers(1, 256, size, dtype=np.uint8)
    return image, BoundingBox.from_size((0, 0, 0), size)


def convolution(channels=2, seed=0):
    """Return a network of one layer, whose bytes do not depend on where a patch lies in memory.

    Matrix libraries take other paths for memory that is aligned in another way, as a patch of three
    voxels is at the second place of a batch; here a product is one rounding, and so is a sum.
    """
    torch.manual_seed(seed)
    layer = torch.nn.Conv3d(1, channels, 3, padding=1).requires_grad_(requires_grad=False)

    def network(batch):
        size = batch.shape[2:]
        padded = torch.nn.functional.pad(batch, (1, 1, 1, 1, 1, 1))
        output = layer.bias[:, None, None, None].repeat(len(batch), 1, *size)
        for place in product(range(3), repeat=3):
            box = tuple(slice(k, k + n) for k, n in zip(place, size))
            weight = layer.weight[:, 0, place[0], place[1], place[2]]
            output += weight[:, None, None, None] * padded[:, :, *box]
        return output

    return network


def sigmoid(values):
    """Return the logistic function."""
    return 1 / (1 + np.exp(-values))


def softmax(values):
    """Return the softmax over the channels."""
    raised = np.exp(values - values.max(0))
    return raised / raised.sum(0)


@st.composite
def ways(draw):
    """Draw what a run may be asked for besides patches: types, activations, skipping."""
    channels = draw(st.integers(2, 3))
    return channels, {
        "output_dtype": draw(st.sampled_from(["float32", "float16", "uint8", "argmax"])),
        "activation": draw(st.sampled_from(["none", "sigmoid", "softmax"])),
        "activate": draw(st.sampled_from(["before", "after"])),
        "skip_empty": draw(st.booleans()),
        "mask_myelin_threshold": draw(st.sampled_from([None, 0.5])) if channels > 2 else None,
    }


@given(cases(largest=6), ways(), st.booleans())
@settings(max_examples=60)
def test_any_cut_gives_the_same_bytes_for_every_kind_of_output(case, way, staged):
    """Types, activations before and after, skipped patches: a cut of required input, to the byte.

    One engine computes both, directly or through buffers, beside one that does the other.
    """
    (setting, domain, box, seed), (channels, options) = case, way
    setting = replace(setting, num_output_channels=channels, **options)
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, domain.size, dtype=np.uint8)
    image[rng.random(domain.size) < rng.choice([0.9, 0.995])] = 0
    network = convolution(channels, seed % 1000)
    engine = Engine(Network(network), setting, staged=staged)
    whole = engine.run(image, domain)
    need = setting.grid(domain).required_input(box)
    part = engine.run(image[need.slices(domain.start)], need, output_box=box, domain=domain)
    inside = (slice(None), *box.slices(domain.start))
    assert part.tobytes() == np.ascontiguousarray(whole[inside]).tobytes()
    other = Engine(Network(network), setting, staged=not staged)
    assert other.run(image, domain).tobytes() == whole.tobytes()
    engine.close()
    other.close()


@given(cases(largest=6), ways())
@settings(max_examples=80)
def test_blending_equals_a_float64_reference_with_zeros_where_patches_are_skipped(case, way):
    """Relative error below 1e-6 (up to 16 patches on a voxel) over the same float32 outputs.

    A patch whose input is zero everywhere, or is not wanted, counts as an output of zero: after an
    activation, also where that is applied to the mean of the patches that were run.
    """
    (setting, domain, box, seed), (_, options) = case, way
    activation, after = options["activation"], options["activate"] == "after"
    setting = replace(setting, activation=activation, activate=options["activate"])
    rng = np.random.default_rng(seed)
    image = np.where(rng.random(domain.size) < 0.9, 0, 255).astype(np.uint8)
    grid = setting.grid(domain)
    unwanted = {patch for patch in grid.patches(box) if rng.random() < 0.3}
    outputs = []

    def network(batch):
        shape = (len(batch), setting.num_output_channels, *setting.geometry.output_patch_size)
        outputs.extend(0.5 + rng.random(shape, dtype=np.float32))
        return torch.from_numpy(np.stack(outputs[-len(batch) :]))

    setting = replace(setting, skip_empty=True)
    engine = Engine(Network(network), setting)
    result = engine.run(image, domain, output_box=box, wanted=lambda p: p not in unwanted)
    reach = box
    for patch in grid.patches(box):
        reach = reach.hull(patch)
    total, weight = np.zeros((setting.num_output_channels, *reach.size)), np.zeros(reach.size)
    weight_run = np.zeros(reach.size)
    rule = {"none": np.asarray, "sigmoid": sigmoid, "softmax": softmax}[activation]
    window, run = setting.window.astype(np.float64), 0
    for patch in grid.patches(box):
        wanted = grid.input_box(patch)
        index = [grid.source_indices(wanted.start[a], wanted.stop[a], a) for a in range(3)]
        seen = [i[i >= s] - s for i, s in zip(index, domain.start)]
        inside = patch.slices(reach.start)
        weight[inside] += window
        if patch not in unwanted and image[np.ix_(*seen)].any():
            values = outputs[run].astype(np.float64)
            total[(slice(None), *inside)] += window * (values if after else rule(values))
            weight_run[inside] += window
            run += 1
    inside = box.slices(reach.start)
    expected = total[(slice(None), *inside)] / weight[inside]
    if after:
        share, known = weight_run[inside] / weight[inside], weight_run[inside] > 0
        mean = total[(slice(None), *inside)] / np.where(known, weight_run[inside], 1)
        expected = np.where(known, rule(mean) * share, 0)
    np.testing.assert_allclose(result, expected, rtol=rounding(grid) + 1e-6, atol=0)
    assert (engine.patches_run, engine.patches_skipped) == (run, grid.count(box).product() - run)
    engine.close()


SMALL = EngineSettings(
    PatchGeometry(Zyx(4, 6, 6), Zyx(4, 6, 6), Zyx(1, 2, 2)), num_output_channels=2, batch_size=3
)


@pytest.mark.parametrize("staged", [False, True])
def test_what_was_computed_before_does_not_matter(staged):
    """Chunks of two sizes in turn, several in flight: the bytes of engines that saw only one."""
    network = convolution()
    inputs = [voxels((9, 11 + 3 * (n % 2), 13 - 5 * (n % 3 == 0)), n) for n in range(8)]
    expected = [Engine(Network(network), SMALL).run(*given_).tobytes() for given_ in inputs]
    engine = Engine(Network(network), SMALL, staged=staged)
    assert [engine.run(*given_).tobytes() for given_ in inputs] == expected
    futures = [engine.start(*given_) for given_ in inputs]
    assert [future.result().tobytes() for future in futures] == expected
    futures = [engine.start(*given_) for given_ in inputs[::-1]]
    assert [future.result().tobytes() for future in futures[::-1]] == expected
    engine.close()


def test_the_next_box_is_begun_while_the_last_one_is_written():
    """With two in flight, the network sees the second before anybody has asked for the first."""
    seen = threading.Semaphore(0)
    network = convolution()

    def counted(batch):
        seen.release()
        return network(batch)

    engine = Engine(Network(counted), SMALL, staged=True)
    one, two = (engine.start(*voxels((4, 6, 6), n)) for n in range(2))
    assert seen.acquire(timeout=10)
    assert seen.acquire(timeout=10)
    assert one.result().shape == two.result().shape == (2, 4, 6, 6)
    engine.close()


def test_wrap_is_applied_to_the_result_and_its_error_is_the_result():
    """What *wrap* returns or raises is what the future holds."""
    engine = Engine(Network(convolution()), SMALL)
    image, box = voxels((4, 6, 6))
    assert engine.start(image, box, wrap=lambda values: values.shape).result() == (2, 4, 6, 6)
    with pytest.raises(ZeroDivisionError):
        engine.start(image, box, wrap=lambda values: 1 // 0).result()
    engine.close()


@pytest.mark.parametrize(("overlap", "error"), [(Zyx(4, 6, 6), 1e-6), (Zyx(6, 9, 9), 2.5e-6)])
@pytest.mark.parametrize("bump", BUMPS)
def test_a_constant_image_of_one_stays_one(bump, overlap, error):
    """Weights cancel to 1e-6 with 8 patches on a voxel, faces included; sums of 64 to 2.5e-6."""
    geometry = PatchGeometry(Zyx(8, 12, 12), Zyx(8, 12, 12), overlap)
    setting = EngineSettings(geometry, num_output_channels=1, bump=bump)
    box = BoundingBox.from_size((-3, 2, 7), (19, 25, 31))
    engine = Engine(identity(setting), setting)
    output = engine.run(np.full(box.size, 255, np.uint8), box)
    np.testing.assert_allclose(output, 1, rtol=0, atol=error)
    engine.close()


# --- skipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_an_empty_volume_is_zero_without_a_run_of_the_network(batch_size, staged):
    """All patches empty: the network is never called, and the output is exactly zero."""
    setting = replace(SMALL, batch_size=batch_size, skip_empty=True)
    network = Network(lambda batch: torch.ones(len(batch), 2, *batch.shape[2:]))
    engine = Engine(network, setting, staged=staged)
    image, box = voxels((9, 20, 20))
    assert engine.run(image, box).min() > 0.99
    calls, skipped = len(network.shapes), engine.patches_skipped
    told = []
    output = engine.run(np.zeros_like(image), box, on_progress=lambda *n: told.append(n))
    assert output.shape == (2, 9, 20, 20)
    assert not output.any()
    assert len(network.shapes) == calls
    count = setting.grid(box).count(box).product()
    assert engine.patches_skipped - skipped == count
    assert told[-1] == (count, count)
    engine.close()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("output_dtype", ["float32", "float16", "uint8", "argmax"])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_skipped_patches_are_zero_after_every_activation(activation, output_dtype, staged):
    """Empty or unwanted: exactly 0 where no patch was run, alike before and after; and not else."""
    image = np.zeros((9, 20, 20), np.uint8)
    image[:, :, :7] = 200
    box = BoundingBox.from_size((0, 0, 0), image.shape)
    network = Network(
        lambda batch: torch.tensor([1.0, 3.0]).view(1, 2, 1, 1, 1).expand(len(batch), 2, 4, 6, 6)
    )
    grid, run = SMALL.grid(box), np.zeros(box.size, bool)
    unwanted = {patch for patch in grid.patches(box) if patch.start.y == 0}
    for patch in grid.patches(box):
        run[patch.slices()] |= patch not in unwanted and bool(image[patch.slices()].any())
    assert run.any()
    assert not run.all()
    for activate in ("before", "after"):
        setting = replace(
            SMALL,
            skip_empty=True,
            activation=activation,
            activate=activate,
            output_dtype=output_dtype,
        )
        engine = Engine(network, setting, staged=staged)
        output = engine.run(image, box, wanted=lambda patch: patch not in unwanted)
        engine.close()
        assert not output[:, ~run].any()
        assert output[:, run].any()


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_ones_everywhere_become_the_blend_of_zeros_and_ones(batch_size):
    """Exactly 0 where only empty patches lie, exactly 1 - 1e-6 where none does, else between."""
    setting = replace(SMALL, batch_size=batch_size, skip_empty=True)
    image, box = np.zeros((9, 20, 20), np.uint8), BoundingBox.from_size((0, 0, 0), (9, 20, 20))
    image[4, 10, 3] = image[0, 0, 19] = 1
    network = Network(lambda batch: torch.ones(len(batch), 2, *batch.shape[2:]))
    engine = Engine(network, setting)
    output = engine.run(image, box)
    grid, full, empty = setting.grid(box), np.zeros(box.size, int), np.zeros(box.size, int)
    for patch in grid.patches(box):
        (full if image[patch.slices()].any() else empty)[patch.slices()] += 1
    assert not output[:, full == 0].any()
    np.testing.assert_allclose(output[:, empty == 0], 1, atol=1e-6)
    mixed = output[:, (full > 0) & (empty > 0)]
    assert ((mixed > 0) & (mixed < 1)).all()
    assert mixed.size
    assert all(shape[0] == batch_size for shape in network.shapes)
    engine.close()


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True])
def test_the_second_chunk_of_a_kind_takes_the_memory_of_the_first(staged):
    """Batches, sums and result lie where they lay, once the first result has been dropped."""
    setting = replace(SMALL, geometry=PatchGeometry(Zyx(8, 96, 96), Zyx(8, 96, 96), Zyx(2, 16, 16)))
    image, box = voxels((20, 256, 256))
    places = []

    def network(batch):
        places[-1].add(batch.data_ptr())
        return batch.expand(-1, 2, -1, -1, -1)

    engine = Engine(Network(network), setting, staged=staged)
    for _ in range(3):
        places.append(set())
        result = engine.run(image, box)
        assert result.nbytes > 4 << 20
        blender = engine._blender
        buffers = (blender._strip, blender._carry, blender._scratch)
        places[-1] |= {buffer.data_ptr() for buffer in buffers}
        places[-1].add(result.__array_interface__["data"][0])
        del result
        # A pool's thread may still hold a finished call, and so the result; not after another call.
        for pool in (engine._end, engine._writer._thread):
            if pool is not None:
                pool.submit(int).result()
        gc.collect()
    assert places[0] == places[1] == places[2]
    engine.close()


def test_a_result_that_is_still_looked_at_is_not_overwritten():
    """Ten results, of which a slice each is kept, keep their values."""
    size = Zyx(20, 260, 260)
    large = PatchGeometry(size, size, Zyx(0, 0, 0))
    setting = EngineSettings(large, num_output_channels=1, bump="constant")
    box = BoundingBox.from_size((0, 0, 0), size)
    engine = Engine(identity(setting), setting)
    kept = []
    for number in range(5):
        image = np.full(box.size, number, np.float32)
        result = engine.run(image, box)
        kept.append(result[0, 3:5, 7] if number % 2 else torch.from_numpy(result)[:, 19])
        del result
    for number, view in enumerate(kept):
        assert (np.asarray(view) == number).all()
    engine.close()


def test_host_workspace_does_not_grow_with_the_depth():
    """All buffers of an engine after 64 and 256 sections: the same number of bytes."""
    taken = []
    for depth in (64, 256):
        engine = Engine(Network(convolution()), SMALL, staged=True)
        engine.run(*voxels((depth, 14, 18)))
        blender, writer, loader = engine._blender, engine._writer, engine._loader
        tensors = [blender._strip, blender._carry, blender._scratch, *blender._weights.values()]
        tensors += [writer._free.get() for _ in range(writer._free.qsize())]
        tensors += [loader._free.get().host for _ in range(loader._free.qsize())]
        assert len(tensors) >= 3 + 4 + 2 + 1
        taken.append(sum(tensor.nbytes for tensor in tensors))
        engine.close()
    assert taken[0] == taken[1]


# --- failures ------------------------------------------------------------------------------------


def left(engine):
    """Return how many buffers lie ready in the loader and in the writer."""
    return engine._loader._free.qsize(), engine._writer._free.qsize()


class Breaks:
    """A convolution that fails, in one way or another, when it is told to."""

    def __init__(self):
        self.inner, self.calls, self.fail_at, self.how = convolution(), 0, None, None

    def __call__(self, batch):
        self.calls += 1
        output = self.inner(batch)
        if self.calls == self.fail_at:
            if isinstance(self.how, BaseException):
                raise self.how
            return output * float("nan")
        return output


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("at", gate_runs([1, 2, 5], 2))
@pytest.mark.parametrize(
    ("how", "error"),
    [
        (ModelError("no"), ModelError),
        (SystemExit(3), SystemExit),
        ("nan", NonFiniteError),
    ],
)
def test_a_failed_run_leaves_nothing_behind(how, error, at, staged):
    """Network raises or returns NaN, early or late, ten times: then right bytes, all buffers."""
    network = Breaks()
    engine = Engine(Network(network), SMALL, staged=staged)
    image, box = voxels((9, 20, 20))
    expected = Engine(Network(convolution()), SMALL).run(image, box).tobytes()
    buffers = left(engine)
    for _ in range(10):
        network.calls, network.fail_at, network.how = 0, at, how
        with pytest.raises(error):
            engine.run(image, box)
        network.fail_at = None
        assert engine.run(image, box).tobytes() == expected
        assert left(engine) == buffers
    engine.close()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("after", gate_runs([0, 3, 10], 3))
def test_a_mask_that_fails_fails_the_run_alone(after, staged):
    """An error of *wanted* comes out as it is; the next run is right, ten times over."""
    engine = Engine(Network(convolution()), SMALL, staged=staged)
    image, box = voxels((9, 20, 20))
    expected = engine.run(image, box).tobytes()
    buffers = left(engine)
    for _ in range(10):
        count = iter(range(after))

        def wanted(patch, count=count):
            if next(count, None) is None:
                msg = "the mask is gone"
                raise OSError(msg)
            return True

        with pytest.raises(OSError, match="the mask is gone"):
            engine.run(image, box, wanted=wanted)
        assert engine.run(image, box).tobytes() == expected
        assert left(engine) == buffers
    engine.close()


def test_one_of_several_in_flight_may_fail():
    """The second of four fails; the others have their bytes."""
    network = convolution()

    def sometimes(batch):
        if float(batch.max()) > 1:
            msg = "too bright"
            raise ModelError(msg)
        return network(batch)

    engine = Engine(Network(sometimes), SMALL, staged=True)
    inputs = [voxels((9, 20, 20), n) for n in range(4)]
    expected = [Engine(Network(network), SMALL).run(*given_).tobytes() for given_ in inputs]
    bright = (inputs[1][0].astype(np.float32), inputs[1][1])
    futures = [engine.start(*(bright if n == 1 else inputs[n])) for n in range(4)]
    assert isinstance(futures[1].exception(), ModelError)
    assert [futures[n].result().tobytes() for n in (0, 2, 3)] == [expected[n] for n in (0, 2, 3)]
    engine.close()


def test_values_out_of_range_are_refused_chunk_after_chunk():
    """A first batch that was refused is no licence for the next chunk."""
    setting = EngineSettings(ONE, num_output_channels=1, output_kind="probability")
    engine = Engine(Network(lambda batch: batch + 2), setting)
    for _ in range(3):
        with pytest.raises(ModelError, match="--activation sigmoid"):
            engine.run(np.zeros((2, 2, 4), np.uint8), BOX)
    engine.close()


def test_stop_ends_a_run_after_the_batch_in_the_network():
    """Setting *stop* cancels what is under way, and the next run is right."""
    stop, calls, network = threading.Event(), [], convolution()

    def stopping(batch):
        calls.append(1)
        if len(calls) == 2:
            stop.set()
        return network(batch)

    engine = Engine(Network(stopping), SMALL, staged=True)
    image, box = voxels((9, 30, 30))
    buffers = left(engine)
    with pytest.raises(CancelledError):
        engine.start(image, box, stop=stop).result()
    assert len(calls) == 2
    assert left(engine) == buffers
    expected = Engine(Network(network), SMALL).run(image, box).tobytes()
    assert engine.run(image, box).tobytes() == expected
    engine.close()


def test_an_interrupt_stops_the_run(monkeypatch):
    """Ctrl-C while waiting ends the run after the batch in the network; the next one is right."""
    calls, network, go_on = [], convolution(), threading.Event()

    def slow(batch):
        calls.append(1)
        go_on.wait(10)
        return network(batch)

    engine = Engine(Network(slow), SMALL, staged=True)
    image, box = voxels((9, 30, 30))
    result = Future.result

    def interrupted(self, timeout=None):
        if threading.current_thread() is threading.main_thread():
            monkeypatch.undo()
            while not calls:
                time.sleep(0.001)
            raise KeyboardInterrupt
        return result(self, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(image, box)
    go_on.set()
    expected = Engine(Network(network), SMALL).run(image, box).tobytes()
    assert engine.run(image, box).tobytes() == expected
    batches = -(-SMALL.grid(box).count(box).product() // SMALL.batch_size)
    assert len(calls) == 1 + batches
    engine.close()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_closing_during_a_run_ends_it_and_all_threads(in_flight, staged):
    """Close returns soon; what was in flight is cancelled, and no thread is left."""
    before = set(threading.enumerate())
    network, calls, go_on = convolution(), [], threading.Event()

    def slow(batch):
        calls.append(1)
        go_on.wait(10)
        return network(batch)

    engine = Engine(Network(slow), SMALL, staged=staged)
    futures = [engine.start(*voxels((9, 30, 30), n)) for n in range(in_flight)]
    while in_flight and not calls:
        time.sleep(0.001)
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    engine.close()
    timer.join()
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=0)
    assert len(calls) <= 1
    assert not set(threading.enumerate()) - before
    engine.close()  # a second time does nothing


def test_an_engine_that_is_dropped_leaves_no_thread():
    """Without close, threads end when nobody holds the engine any more."""
    before = set(threading.enumerate())
    engine = Engine(Network(convolution()), SMALL, staged=True)
    engine.run(*voxels((9, 20, 20)))
    del engine
    gc.collect()
    end = time.monotonic() + 10
    while set(threading.enumerate()) - before:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_two_networks_at_once_do_not_share_anything():
    """Engines in four threads of their own give the bytes they give alone."""
    network = convolution()
    inputs = [voxels((9, 20, 20), n) for n in range(4)]
    expected = [Engine(Network(network), SMALL).run(*given_).tobytes() for given_ in inputs]
    with ThreadPoolExecutor(4) as pool:
        engines = [Engine(Network(network), SMALL, staged=bool(n % 2)) for n in range(4)]
        found = pool.map(lambda engine, given_: engine.run(*given_).tobytes(), engines, inputs)
        assert list(found) == expected
    with ThreadPoolExecutor(4) as pool:  # and one engine asked by four threads
        found = pool.map(lambda given_: engines[0].run(*given_).tobytes(), inputs)
        assert list(found) == expected
    for engine in engines:
        engine.close()


class Small(Network):
    """A network on a device that has memory for two patches at a time."""

    def __call__(self, batch):
        """Run the batch, or raise what a backend raises when memory ends."""
        if len(batch) > 2:
            msg = "not enough memory"
            raise OutOfMemoryError(msg)
        return super().__call__(batch)


def test_a_batch_that_does_not_fit_names_the_one_that_may():
    """Without --lower-batch memory that ends is an error with the batch to use."""
    engine = Engine(Small(convolution()), replace(SMALL, batch_size=5))
    with pytest.raises(OutOfMemoryError, match="--batch-size 5; use --batch-size 2, or --lower"):
        engine.run(*voxels((9, 20, 20)))


def test_lower_batch_goes_on_with_a_warning_and_the_same_result(caplog):
    """Smaller batches are of one shape, are told of once, and change nothing but rounding."""
    image, box = voxels((9, 20, 20))
    expected = Engine(Network(convolution()), SMALL).run(image, box)
    network = Small(convolution())
    engine = Engine(network, replace(SMALL, batch_size=5, lower_batch=True))
    np.testing.assert_array_equal(engine.run(image, box), expected)
    np.testing.assert_array_equal(engine.run(image, box), expected)
    assert {shape[0] for shape in network.shapes} == {2}
    assert caplog.text.count("continuing with batches of 2. The batch size can change") == 1
