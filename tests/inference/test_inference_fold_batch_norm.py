"""Folding BatchNorm: same values, and only where nothing else depends on the layers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from chunkflow_py.inference.backends.fold_batch_norm import fold_batch_norm
from chunkflow_py.inference.backends.model_files import run_model_file
from chunkflow_py.inference.models import RSUNet

FIB25 = Path(__file__).parents[2] / "examples" / "fib25"


def with_statistics(network):
    """Return *network* in evaluation mode, with statistics that make a difference."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
            if module.affine:
                module.weight.data.uniform_(0.5, 1.5, generator=generator)
                module.bias.data.normal_(0, 0.3, generator=generator)
    return network.eval()


def folded(network, shape):
    """Fold a copy; return how many layers were, and the outputs before and after."""
    batch = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    after = copy.deepcopy(network)
    count = fold_batch_norm(after, shape)
    with torch.inference_mode():
        return count, network(batch.clone()), after(batch.clone())


@pytest.mark.parametrize("isotropic", [False, True])
def test_built_in_network(isotropic):
    """RSUNet gives the same values, without the norms that follow a convolution directly."""
    more = {"pooling": (2, 2, 2), "embedding": (5, 5, 5)} if isotropic else {}
    network = with_statistics(RSUNet(1, 3, (4, 6, 8), **more))
    count, before, after = folded(network, (2, 1, 4, 16, 16))
    assert count == 2 + 2 * 5  # embeddings, two of three norms in each of five modules
    assert 0 < float((after - before).abs().max()) < 1e-5


def test_no_batch_norm():
    """Without BatchNorm, the network does not run, because a run imports PyTorch's compiler."""

    class Counted(nn.Conv3d):
        runs = 0

        def forward(self, x):
            Counted.runs += 1
            return super().forward(x)

    network = nn.Sequential(Counted(1, 2, 1), nn.InstanceNorm3d(2), nn.ReLU()).eval()
    assert fold_batch_norm(network, (1, 1, 4, 4, 4)) == 0
    assert Counted.runs == 0
    with_norm = nn.Sequential(Counted(1, 2, 1), nn.Conv3d(2, 2, 1), nn.BatchNorm3d(2)).eval()
    assert fold_batch_norm(with_norm, (1, 1, 4, 4, 4)) == 1
    assert Counted.runs == 1


def test_network_that_checks_sizes():
    """The FIB-25 network, whose forward asks for sizes, is folded completely."""
    network = run_model_file(str(FIB25 / "unet_fib25_model.py")).InstantiatedModel
    network.load_state_dict(torch.load(FIB25 / "unet_fib25.pt", weights_only=True))
    norms = sum(isinstance(module, nn.BatchNorm3d) for module in network.modules())
    count, before, after = folded(network.eval(), (1, 1, 8, 32, 32))
    assert count == norms == 24
    assert float((after - before).abs().max()) < 1e-5


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)),
        (nn.Conv3d(1, 4, 3, bias=False, padding=1, padding_mode="reflect"), nn.BatchNorm3d(4)),
        (nn.ConvTranspose3d(1, 4, 2, stride=2), nn.BatchNorm3d(4, affine=False)),
        (nn.Conv3d(1, 4, 1), nn.Conv3d(4, 4, 3, groups=2, dilation=2), nn.BatchNorm3d(4)),
        (nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ELU(inplace=True), nn.Conv3d(4, 2, 1)),
    ],
    ids=["plain", "reflect", "transposed", "grouped", "in place"],
)
def test_kinds_of_convolutions(layers):
    """Every kind of convolution is folded, with its own form of weights."""
    count, before, after = folded(with_statistics(nn.Sequential(*layers)), (2, 1, 6, 8, 8))
    assert count == 1
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


def test_two_dimensions():
    """A 2D network is folded as well."""
    network = with_statistics(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))
    count, before, after = folded(network, (2, 1, 8, 8))
    assert count == 1
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


class Two(nn.Module):
    """Two layers, and a forward that is given."""

    def __init__(self, forward):
        super().__init__()
        self.conv, self.norm = nn.Conv3d(1, 1, 3, padding=1), nn.BatchNorm3d(1)
        self.call = forward

    def forward(self, x):
        return self.call(self, x)


def _skip(net, x):
    maps = net.conv(x)
    return net.norm(maps) + maps


def _in_place_before(net, x):
    maps = net.conv(x)
    maps.mul_(2)
    return net.norm(maps)


def _read_later(net, x):
    maps = net.conv(x)
    view = maps[:, :, 1:]
    return net.norm(maps)[:, :, 1:] + view


def _returned(net, x):
    maps = net.conv(x)
    return maps if net.training else net.norm(maps) + 0 * x, maps


def _conditional(net, x):
    maps = net.conv(x)
    return net.norm(maps) if float(maps.mean()) > 0 else maps


REASONS = {
    "used twice": _skip,
    "changed in between": _in_place_before,
    "read by a view": _read_later,
    "depends on values": _conditional,
    "convolution called twice": lambda net, x: net.norm(net.conv(net.conv(x))),
    "norm called twice": lambda net, x: net.norm(net.conv(net.norm(x))),
    "weights used elsewhere": lambda net, x: net.norm(net.conv(x)) * net.conv.weight.mean(),
    "other way round": lambda net, x: net.conv(net.norm(x)),
    "fails": lambda net, x: net.conv(x).nothing(),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_cannot_be_folded_stays(reason):
    """Where the result or the weights of a convolution matter elsewhere, nothing is changed."""
    network = with_statistics(Two(REASONS[reason]))
    layers = network.conv, network.norm
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 0
    assert (network.conv, network.norm) == layers


def test_result_that_is_returned_stays():
    """A convolution whose result is an output of the network too is left alone."""
    network = with_statistics(Two(_returned))
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 0


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4, track_running_stats=True)),
        nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4, track_running_stats=False)),
        nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)).double(),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv3d(1, 4, 3)), nn.BatchNorm3d(4)),
    ],
    ids=["instance", "no statistics", "float64", "weight norm"],
)
def test_layers_that_are_not_plain_stay(network):
    """InstanceNorm, norms of the batch, other types and computed weights are left alone."""
    before = list(network.eval())
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 0
    assert list(network) == before


def test_training_layers_stay():
    """A BatchNorm that the network keeps in training mode normalises by the batch."""
    network = nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)).train()
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 0


def test_shared_layers_stay():
    """A layer that is registered under two names is left alone."""
    network = with_statistics(nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4)))
    network.add_module("again", nn.Identity())
    network.again.conv = network[0]
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 0


def test_network_that_keeps_what_it_saw():
    """Looking for layers leaves no trace in the state of the network."""

    def forward(net, x):
        net.last = x
        return net.norm(net.conv(x))

    network = with_statistics(Two(forward))
    assert fold_batch_norm(network, (2, 1, 4, 8, 8)) == 1
    assert not hasattr(network, "last")
