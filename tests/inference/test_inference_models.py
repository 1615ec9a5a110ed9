"""Built-in networks: RSUNet, its size, its symmetry, and what its weight file tells."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference import models
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.model_files import read_weights
from chunkflow_py.inference.models import RSUNet
from chunkflow_py.inference.models.rsunet import _check_size, inferred
from chunkflow_py.testing.peak_memory import peak_of

SIZES = {
    "input_patch_size": Zyx(4, 32, 32),
    "output_patch_size": Zyx(4, 32, 32),
    "device": "cpu",
}
ISOTROPIC = {"pooling": (2, 2, 2), "embedding": (5, 5, 5)}


def network(*args, **kwargs):
    """Return an RSUNet with reproducible weights and statistics, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = RSUNet(*args, **kwargs).eval()
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm3d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return made


def number_of_parameters(widths, cin, cout, embedding):
    """Return the number of weights, counted from the drawing in the documentation."""
    conv = 27
    first, levels = widths[0], list(widths)
    count = (cin + first) * first * embedding + 2 * 2 * first  # embeddings and their norms
    count += first * cout + cout  # head
    for before, width in zip([first, *levels[:-1]], levels, strict=True):
        count += before * width * conv + 2 * width * width * conv + 3 * 2 * width
    for width, deeper in pairwise(levels):
        count += deeper * width + width + 3 * width * width * conv + 3 * 2 * width
    return count


def test_number_of_parameters():
    """The default network has the modules and widths of the paper."""
    made = RSUNet()
    expected = number_of_parameters((28, 36, 48, 64, 80), 1, 3, 25)
    assert sum(p.numel() for p in made.parameters()) == expected == 1840819
    assert made.divisor == (1, 16, 16)


def test_isotropic_divisor():
    """Poolings along all axes make the divisor the same along all axes."""
    assert models.create_model("rsunet-isotropic", 1, 3).divisor == (16, 16, 16)
    assert RSUNet(widths=(4, 6), **ISOTROPIC).divisor == (2, 2, 2)


@pytest.mark.parametrize("settings", [{}, ISOTROPIC], ids=["anisotropic", "isotropic"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equivariant_to_shifts_by_the_divisor(settings, axis):
    """An image moved by the divisor moves the output along; moved by less it does not."""
    made = network(1, 3, (3, 4), **settings)
    # Reach, in voxels: embeddings 2 + 2, modules 3 + 3, below 3 of 2, pooling 1, enlarging 2.
    size, margin = (48, 48, 48), 22
    image = torch.rand(1, 1, *(s + 4 for s in size), generator=torch.Generator().manual_seed(1))

    def output(shift):
        with torch.inference_mode():
            start = [shift if a == axis else 0 for a in range(3)]
            cut = image[(..., *(slice(o, o + s) for o, s in zip(start, size, strict=True)))]
            return made(cut).narrow(axis + 2, margin - shift, size[axis] - 2 * margin)

    step = made.divisor[axis]
    inside = [slice(margin, -margin) if a != axis else slice(None) for a in range(3)]
    same = (output(step) - output(0)).abs()[(..., *inside)]
    assert same.numel() > 0
    assert float(same.max()) < 1e-5
    if step == 2:
        other = (output(1) - output(0)).abs()[(..., *inside)]
        assert float(other.max()) > 1e-4


def test_sections_of_thick_slices_are_not_pooled():
    """The anisotropic network takes any number of sections; in plane it names the nearest size."""
    made = network(1, 3, (3, 4, 5))
    with torch.inference_mode():
        assert made(torch.zeros(1, 1, 3, 8, 12)).shape == (1, 3, 3, 8, 12)
        with pytest.raises(ValueError, match=r"\(3, 8, 13\) is not a multiple of \(1, 4, 4\)"):
            made(torch.zeros(1, 1, 3, 8, 13))


@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_sigmoid_and_norms(norm):
    """The output is a probability with the sigmoid, and its logit without, for every norm."""
    image = torch.rand(1, 2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        probability = network(2, 1, (3, 4), norm=norm)(image)
        logits = network(2, 1, (3, 4), norm=norm, sigmoid=False)(image)
    assert 0 < float(probability.min()) < float(probability.max()) < 1
    torch.testing.assert_close(torch.sigmoid(logits), probability)


@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_settings_are_inferred_from_weights(norm):
    """Widths, channels and normalisation are read from the shapes of the weights."""
    made = network(2, 5, (3, 4, 6), norm=norm)
    assert inferred(made.state_dict()) == {
        "in_channels": 2,
        "out_channels": 5,
        "widths": (3, 4, 6),
        "norm": norm,
    }


@pytest.mark.parametrize("name", ["rsunet", "rsunet-isotropic"])
@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
def test_weights_are_enough(tmp_path, name, prefix):
    """A built-in name and a weight file give the network that was saved, to the byte."""
    settings = ISOTROPIC if name.endswith("isotropic") else {}
    made = network(1, 3, (3, 4), **settings)
    state = {f"{prefix}{key}": value for key, value in made.state_dict().items()}
    if prefix:
        state["criterion.weight"] = torch.ones(3)
    torch.save({"state_dict": state}, tmp_path / "w.pt")
    backend = create_backend("universal", model=name, weights=str(tmp_path / "w.pt"), **SIZES)
    batch = torch.rand(2, 1, 4, 32, 32)
    with torch.inference_mode():
        expected = made(batch)
    torch.testing.assert_close(backend(batch), expected, rtol=0, atol=1e-5)
    assert backend.divisor == made.divisor


def test_config_beside_the_weights_wins(tmp_path):
    """What shapes do not tell is taken from config, such as a pooling or a missing sigmoid."""
    made = network(1, 3, (3, 4), pooling=(2, 2, 2), sigmoid=False)
    config = {"pooling": (2, 2, 2), "sigmoid": False}
    torch.save({"state_dict": made.state_dict(), "config": config}, tmp_path / "w.pt")
    backend = create_backend("pytorch", model="rsunet", weights=str(tmp_path / "w.pt"), **SIZES)
    assert backend.divisor == Zyx(2, 2, 2)
    assert float(backend(torch.rand(1, 1, 4, 32, 32)).min()) < 0


@pytest.mark.parametrize(
    "config",
    [{"widths": [10**6] * 5}, {"widths": [4000] * 16}, {"widths": [28] * 10**4}, {"widths": []},
     {"widths": "28"}, {"widths": torch.tensor([28, 36])}, {"widths": [True]}, {"widths": [2.5]},
     {"in_channels": 1.0}, {"out_channels": True}, {"pooling": (1, 10**9, 2)},
     {"pooling": (1, 2)}, {"embedding": (63, 63, 63)}, {"embedding": (0, 5, 5)},
     {"norm": ["batch"]}, {"norm": "x" * 10**6}, {"sigmoid": "no"}, {"sigmoid": None}],
    ids=lambda config: str(config)[:40],
)  # fmt: skip
def test_a_config_of_a_stranger_takes_no_memory(tmp_path, config):
    """It is refused in one sentence before a network is made, however large that would be."""
    made = models.create_model("rsunet", 1, 3)
    torch.save({"state_dict": made.state_dict(), "config": config}, tmp_path / "w.pt")
    state, config = read_weights(str(tmp_path / "w.pt"))

    def create():
        with pytest.raises(ModelError, match="check the entry config of the weight file") as caught:
            models.create_model("rsunet", 1, 3, state=state, config=config)
        assert len(str(caught.value)) < 1000

    assert peak_of(create).resident < 50_000_000


def test_wrong_config(tmp_path):
    """A config with an unknown key is refused with what it asked for."""
    made = network(1, 3, (3, 4))
    torch.save({"state_dict": made.state_dict(), "config": {"depth": 3}}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"'depth'.*check the entry config of the weight file"):
        create_backend("pytorch", model="rsunet", weights=str(tmp_path / "w.pt"), **SIZES)


@pytest.mark.parametrize(
    ("channels", "message"),
    [((1, 2), "use --num-output-channels 2"), ((2, 3), "use --num-input-channels 2")],
)
def test_channels_of_the_weights(tmp_path, channels, message):
    """Weights of a network with other channels than asked for name the option."""
    torch.save(network(*channels, (3, 4)).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelError, match=message):
        create_backend("pytorch", model="rsunet", weights=str(tmp_path / "w.pt"), **SIZES)


def test_weights_of_the_other_variant(tmp_path):
    """Weights of the isotropic variant do not fit the other, and the keys are listed."""
    torch.save(network(1, 3, (3, 4), **ISOTROPIC).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"embed_in\.conv\.weight is \(3, 1, 5, 5, 5\)"):
        create_backend("pytorch", model="rsunet", weights=str(tmp_path / "w.pt"), **SIZES)


def test_weights_of_something_else(tmp_path):
    """Weights of another network are refused with their first keys."""
    torch.save(torch.nn.Conv3d(1, 3, 3).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelError, match="first keys weight, bias, do not belong to an RSUNet"):
        create_backend("pytorch", model="rsunet", weights=str(tmp_path / "w.pt"), **SIZES)


def test_random_weights_are_the_same_each_time(caplog):
    """Without weights a loud warning is given, and the weights are seeded."""
    before = torch.random.get_rng_state()
    first = models.create_model("rsunet", 1, 3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    second = models.create_model("rsunet", 1, 3).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    create_backend("universal", model="rsunet", **SIZES)
    assert "NO WEIGHTS" in caplog.text


def test_untrained_network_is_well_conditioned():
    """Without training the output is not saturated, so that measurements with it mean something."""
    made = models.create_model("rsunet", 1, 3)
    made.sigmoid = False
    with torch.inference_mode():
        logits = made(torch.rand(1, 1, 4, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert 0.05 < float(logits.std()) < 2
    assert float(logits.abs().max()) < 5


def test_unknown_names():
    """A network or variant that does not exist is answered with those that do."""
    with pytest.raises(OptionError, match="available: rsunet, rsunet-isotropic"):
        models.create_model("rsunet-iso", 1, 3)
    with pytest.raises(OptionError, match="'unet' does not exist; available: rsunet"):
        models.create_model("unet", 1, 3)
    assert models.is_built_in("rsunet-isotropic")
    assert not models.is_built_in("rsunet.py")
    assert not models.is_built_in("folder/rsunet")


@pytest.mark.parametrize("widths", [(4,), (3, 4), (28, 36, 48, 64, 80)])
@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_as_many_weights_as_the_file_holds(widths, norm):
    """The count that is compared with the file is that of the convolutions, to the last weight."""
    made = network(2, 3, widths, norm=norm)
    convolutions = [m for m in made.modules() if isinstance(m, torch.nn.Conv3d)]
    count = sum(m.weight.numel() for m in convolutions)
    settings = {
        "in_channels": 2, "out_channels": 3, "widths": widths, "embedding": (1, 5, 5),
    }  # fmt: skip
    _check_size(settings, {"all": torch.empty(count)})
    with pytest.raises(ValueError, match=f"{count} weights, but .* contains only {count - 1}"):
        _check_size(settings, {"all": torch.empty(count - 1)})
