"""Inference is right: identity is identity, tiles do not show, cuts change nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import ChunkError, GeometryError, ModelError, NonFiniteError, OptionError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.inference.backends.identity import Identity
from chunkflow_py.inference.engine import Engine
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.normalize import Normalizer
from chunkflow_py.inference.settings import EngineSettings
from chunkflow_py.inference.window import BUMPS


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
        keep_stride=draw(st.booleans()),
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
    torch.manual_seed(seed % 1000)
    convolution = torch.nn.Conv3d(1, setting.num_output_channels, 3, padding=1)
    engine = Engine(Network(convolution), setting)
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
    with pytest.raises(GeometryError, match="load a margin of"):
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
    """The last batch is filled up with zeros, so that the numerical profile never changes."""
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
    assert "2 output values outside of [0, 1] were clamped" in caplog.text


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
        (lambda b: b.repeat(1, 2, 1, 1, 1), {}, ModelError, "returned 2 channels, .* set it to 2"),
        (lambda b: b[..., :1], {}, ModelError, r"patches of \(2, 2, 1\); expected"),
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
    with pytest.raises(ChunkError, match=r"shape \(2, 2, 5\) does not fill box"):
        engine.run(np.zeros((2, 2, 5), np.uint8), BOX)


@pytest.mark.parametrize("axis", range(3))
def test_output_where_there_is_no_patch_is_refused(axis):
    """An output box that reaches outside of the domain is an error, not NaN."""
    stop = [BOX.stop[a] + (a == axis) for a in range(3)]
    engine = Engine(Network(lambda b: b), EngineSettings(ONE, num_output_channels=1))
    with pytest.raises(GeometryError, match=f"reaches outside of {BOX}"):
        engine.run(np.zeros(BOX.size, np.uint8), BOX, output_box=BoundingBox(BOX.start, stop))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"output_kind": "affinity", "num_output_channels": 2}, "three channels .* has 2"),
        ({"mask_myelin_threshold": 0.3, "num_output_channels": 1}, "at least 2, not 1"),
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
