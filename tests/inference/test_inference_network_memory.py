"""The memory of a network's maps is known without having it."""

import pytest
import torch
from torch import nn

from chunkflow_py.inference.models import create_model
from chunkflow_py.inference.network_memory import Activations, peak_activations

VOXELS = 16 * 32 * 32
SHAPE = (1, 1, 16, 32, 32)
FLOAT = 4


class Chain(nn.Module):
    """Three maps, of which two are alive at a time: 2, 8 and 2 channels."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv3d(*c, 3, padding=1) for c in ((1, 2), (2, 8), (8, 2)))

    def forward(self, maps):
        for layer in self.layers:
            maps = layer(maps)
        return maps


class Skipping(Chain):
    """The first map is kept to the end, and added in place."""

    def forward(self, maps):
        first = self.layers[0](maps)
        return self.layers[2](self.layers[1](first)).add_(first)


class Deciding(Chain):
    """What it does depends on values."""

    def forward(self, maps):
        return super().forward(maps) if float(maps.sum()) >= 0 else maps


@pytest.mark.parametrize(("network", "channels"), [(Chain(), 10), (Skipping(), 12)])
def test_maps_count_while_they_live(network, channels):
    """The peak is that of maps alive at once, not their sum; in-place work makes no map."""
    found = peak_activations(network, SHAPE)
    assert found == Activations(channels * VOXELS * FLOAT, VOXELS)


def test_every_patch_of_a_batch_counts():
    """Twice the batch takes twice the memory."""
    found = peak_activations(Chain(), (2, *SHAPE[1:]))
    assert found == Activations(20 * VOXELS * FLOAT, 2 * VOXELS)


def test_half_precision_takes_half_of_it():
    """Under autocast maps are of the lower type; weights and the batch are cast as well."""
    found = peak_activations(Chain(), SHAPE, dtype=torch.bfloat16)
    assert 10 * VOXELS * 2 <= found.peak_bytes < 12 * VOXELS * 2


def test_it_needs_neither_memory_nor_time():
    """A batch of 64 GB is no more work than a small one."""
    side = 25_600
    found = peak_activations(create_model("rsunet", 1, 3), (1, 1, 20, side, side))
    small = peak_activations(create_model("rsunet", 1, 3), (1, 1, 20, 256, 256))
    assert found == Activations(10_000 * small.peak_bytes, 10_000 * small.voxels)
    assert small.peak_bytes == 4 * 28 * small.voxels * FLOAT  # four maps of the finest level


def test_the_network_stays_as_it_was():
    """Nothing of the run without data sticks to the network."""
    network = Chain().eval()
    batch = torch.rand(SHAPE)
    before = network(batch)
    peak_activations(network, SHAPE)
    assert torch.equal(network(batch), before)
    assert network.layers[0].weight.device.type == "cpu"


def _scripted():
    # The test has to be about such programs although PyTorch would have others instead.
    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        return torch.jit.trace(Chain(), torch.zeros(SHAPE))


@pytest.mark.parametrize("make", [Deciding, _scripted], ids=["depends on values", "TorchScript"])
def test_what_needs_values_is_run_on_a_small_patch(make):
    """Networks that cannot be run without data are run on little, and scaled."""
    found = peak_activations(make(), SHAPE)
    assert found.voxels == VOXELS
    assert found.peak_bytes == 10 * VOXELS * FLOAT


def test_a_small_patch_keeps_to_the_divisor():
    """The patch that is tried is one that the network takes."""
    shapes = []

    def network(batch):
        shapes.append(tuple(batch.shape))
        if float(batch.sum()) or any(s % 12 for s in batch.shape[3:]):
            raise ValueError
        return batch + 1

    found = peak_activations(network, (2, 1, 48, 96, 96), divisor=(1, 12, 12))
    assert shapes[-1] == (1, 1, 16, 24, 24)
    assert found == Activations(FLOAT * 2 * 48 * 96 * 96, 2 * 48 * 96 * 96, exact=False)


def test_what_cannot_be_run_is_unknown():
    """A network that fails on all small patches is not guessed at."""

    def network(batch):
        raise ValueError

    assert peak_activations(network, SHAPE) is None
