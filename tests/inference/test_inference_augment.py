"""Test-time augmentation: right for probabilities, and for affinities at every voxel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.augment import augmented, symmetries


def true_affinity(image):
    """Return affinities x, y, z of (n, 1, z, y, x): how alike a voxel and its lower neighbour are.

    The lowest face of an axis has no neighbour: it is given a value that gives itself away.
    """
    channels = []
    for axis in (-1, -2, -3):
        alike = torch.exp(-torch.diff(image, dim=axis).abs())
        face = torch.full_like(image.narrow(axis, 0, 1), 100.0)
        channels.append(torch.cat([face, alike], dim=axis))
    return torch.cat(channels, dim=1)


def smoothed(image):
    """Return a probability that depends on the six neighbours alike."""
    total = image.clone()
    for axis in (-1, -2, -3):
        total += image.roll(1, axis) + image.roll(-1, axis)
    return total / 7


def noise(*shape, seed=0):
    """Return reproducible values in [0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("in_plane", [True, False])
@given(depth=st.integers(1, 5), width=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_true_affinities_are_unchanged(in_plane, depth, width, seed):
    """Affinities of an equivariant network stay the same on every voxel that has a neighbour."""
    image = noise(2, 1, depth, width, width, seed=seed)
    expected = true_affinity(image)
    result = augmented(true_affinity, image, "affinity", in_plane=in_plane)
    inside = expected < 100
    assert torch.equal(inside, result < 99)
    assert torch.allclose(result[inside], expected[inside], rtol=0, atol=1e-6)


def gradient(image):
    """Return vectors x, y, z: from each voxel towards brighter ones, round the patch's end."""
    channels = [image.roll(-1, axis) - image.roll(1, axis) for axis in (-1, -2, -3)]
    return torch.cat(channels, dim=1)


@pytest.mark.parametrize("in_plane", [True, False])
@given(depth=st.integers(1, 5), width=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_true_vectors_are_unchanged(in_plane, depth, width, seed):
    """Vectors of an equivariant network stay the same, each component with its sign and axis."""
    image = noise(2, 1, depth, width, width, seed=seed)
    result = augmented(gradient, image, "vector", in_plane=in_plane)
    torch.testing.assert_close(result, gradient(image), rtol=0, atol=1e-6)


def test_vectors_beside_other_channels():
    """Channels beyond the three components are taken voxel by voxel."""
    image = noise(1, 1, 4, 6, 6)

    def network(batch):
        return torch.cat([gradient(batch), smoothed(batch)], dim=1)

    torch.testing.assert_close(augmented(network, image, "vector"), network(image))


def test_treating_vectors_as_voxels_is_wrong():
    """The sign matters: without it the components of the runs cancel."""
    image = noise(1, 1, 6, 8, 8)
    plain = augmented(gradient, image, "embedding")
    assert float((plain - gradient(image)).abs().max()) > 0.1


def test_treating_affinities_as_voxels_is_wrong():
    """The moved neighbour matters: without it the mean of the same runs is far off."""
    image = noise(1, 1, 6, 8, 8)
    inside = true_affinity(image) < 100
    plain = augmented(true_affinity, image, "probability")
    assert float((plain - true_affinity(image))[inside].abs().max()) > 0.1


@pytest.mark.parametrize("kind", ["probability", "logit", "embedding", "image", None])
def test_true_probabilities_are_unchanged(kind):
    """Output of an equivariant network that belongs to voxels stays the same."""
    image = noise(2, 1, 4, 6, 6)
    torch.testing.assert_close(augmented(smoothed, image, kind), smoothed(image))


def lopsided(batch):
    """Return six channels that respect no symmetry at all."""
    z, y, x = (torch.arange(s, dtype=torch.float32) for s in batch.shape[-3:])
    ramp = z[:, None, None] * 0.3 + y[:, None] * 0.05 + x * 0.01
    weights = torch.arange(1, 7, dtype=torch.float32).reshape(1, 6, 1, 1, 1)
    return torch.cos(weights * (batch + ramp)) + batch.roll(1, -1)


def turned_component(vector, channel, flip, transpose):
    """Return one component, x, y or z, of vectors (n, xyz) of a turned patch, turned back.

    Follows the tip of the vector instead of a rule for components.
    """
    z, y, x = vector[:, 2], vector[:, 1], vector[:, 0]
    if transpose:
        y, x = x, y
    z, y, x = (-v if f else v for v, f in zip((z, y, x), flip, strict=True))
    return (x, y, z)[channel]


def reference(image, kind, in_plane):
    """Return what `augmented` should, voxel by voxel in float64, from the definition alone."""
    n, _, *size = image.shape
    total = np.zeros((n, 6, *size))
    count = np.zeros((6, *size))
    flips = itertools.product([0] if in_plane else [0, 1], [0, 1], [0, 1])
    for flip, transpose in itertools.product(flips, [0, 1]):

        def turned(voxel, flip=flip, transpose=transpose):
            there = [s - 1 - v if f else v for v, f, s in zip(voxel, flip, size, strict=True)]
            return (there[0], there[2], there[1]) if transpose else tuple(there)

        image_turned = np.zeros_like(image.numpy())
        for voxel in np.ndindex(*size):
            image_turned[(..., *turned(voxel))] = image.numpy()[(..., *voxel)]
        output = lopsided(torch.from_numpy(image_turned)).numpy()
        for voxel in np.ndindex(*size):
            here = turned(voxel)
            for channel in range(6):
                if kind not in {"affinity", "vector"} or channel > 2:
                    total[(slice(None), channel, *voxel)] += output[(slice(None), channel, *here)]
                    count[(channel, *voxel)] += 1
                    continue
                if kind == "vector":
                    total[(slice(None), channel, *voxel)] += turned_component(
                        output[(slice(None), slice(0, 3), *here)], channel, flip, transpose
                    )
                    count[(channel, *voxel)] += 1
                    continue
                # The link of this voxel and its lower neighbour, and where the two have gone.
                axis = 2 - channel
                lower = tuple(v - (a == axis) for a, v in enumerate(voxel))
                there = turned(lower)
                upper = tuple(max(a, b) for a, b in zip(here, there, strict=True))
                if voxel[axis] == 0 and flip[axis]:
                    continue
                if voxel[axis] == 0:
                    upper = here
                new_axis = 2 - next(a for a in range(3) if here[a] != there[a])
                total[(slice(None), channel, *voxel)] += output[(slice(None), new_axis, *upper)]
                count[(channel, *voxel)] += 1
    return total / count


@pytest.mark.parametrize("in_plane", [True, False])
@pytest.mark.parametrize("kind", ["affinity", "probability", "vector", "logit", "embedding"])
def test_mean_equals_a_reference(kind, in_plane):
    """The mean of the runs, mapped back, is what following each link by itself gives."""
    image = noise(2, 1, 3, 4, 4)
    result = augmented(lopsided, image, kind, in_plane=in_plane)
    np.testing.assert_allclose(result.numpy(), reference(image, kind, in_plane), atol=1e-5)


@pytest.mark.parametrize("in_plane", [True, False])
def test_number_of_runs(in_plane):
    """There are 16 different symmetries, 8 in plane, each undone by its inverse."""
    runs = symmetries(in_plane=in_plane)
    image = noise(1, 3, 2, 4, 4)
    assert len({s.apply(image).numpy().tobytes() for s in runs}) == len(runs) == 16 - 8 * in_plane
    assert all(torch.equal(s.undo(s.apply(image)), image) for s in runs)


def test_cropped_output():
    """A network that crops its margin is augmented on its output patch."""
    image = noise(1, 1, 6, 8, 8)
    expected = true_affinity(image)[..., 1:-1, 2:-2, 2:-2]
    result = augmented(lambda x: true_affinity(x)[..., 1:-1, 2:-2, 2:-2], image, "affinity")
    torch.testing.assert_close(result, expected)


def test_input_is_not_changed():
    """The batch holds the same values afterwards, also if the network works in place."""
    image = noise(1, 1, 2, 4, 4)
    before = image.clone()
    augmented(lambda x: x.clone().mul_(2), image)
    assert torch.equal(image, before)


def test_patches_that_are_not_square():
    """A patch that cannot be transposed is refused with both sizes."""
    with pytest.raises(OptionError, match=r"input patch is 4 x 6 .*square in plane"):
        augmented(smoothed, noise(1, 1, 2, 4, 6))
    with pytest.raises(OptionError, match=r"output patch is 4 x 2"):
        augmented(lambda x: x[..., 1:-1], noise(1, 1, 2, 4, 4))


@pytest.mark.parametrize("kind", ["affinity", "vector"])
def test_too_few_channels(kind):
    """Affinities or vectors of one channel cannot be mapped back, which is said."""
    with pytest.raises(OptionError, match=f"--output-kind {kind} needs the channels x, y and z"):
        augmented(smoothed, noise(1, 1, 2, 4, 4), kind)


@pytest.mark.parametrize("kind", ["affinity", "vector"])
def test_turning_back_changes_no_output(kind):
    """What the network returned may be a buffer of its own: no symmetry writes to it."""
    output = noise(1, 3, 2, 4, 4)
    before = output.clone()
    for symmetry in symmetries():
        symmetry.undo(output, kind)
    assert torch.equal(output, before)
