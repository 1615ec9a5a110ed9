"""Settings of the engine: what they derive, and what they refuse."""

from dataclasses import replace

import pytest

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError, OutOfMemoryError
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.network_output import NetworkOutput
from chunkflow_py.inference.patch_grid import PatchGeometry

ONE = EngineSettings(PatchGeometry(Zyx(2, 4, 4), Zyx(2, 4, 4), Zyx(0, 1, 1)))
TWO = (NetworkOutput("a", 3, "affinity"), NetworkOutput("b", 1, "probability"))


@pytest.mark.parametrize(
    ("more", "channels", "dtype", "kind"),
    [
        ({}, 3, "float32", "affinity"),
        ({"num_output_channels": 1}, 1, "float32", "probability"),
        ({"output_dtype": "uint8"}, 3, "uint8", "affinity"),
        ({"output_dtype": "float16", "output_kind": "vector"}, 3, "float16", "vector"),
        ({"output_dtype": "argmax"}, 1, "uint8", "segmentation"),
        ({"num_output_channels": 4, "mask_myelin_threshold": 0.3}, 3, "float32", "affinity"),
        (
            {"num_output_channels": 4, "mask_myelin_threshold": 0.3, "output_dtype": "argmax"},
            1, "uint8", "segmentation",
        ),
        ({"num_output_channels": 4, "outputs": TWO}, 4, "float32", "probability"),
    ],
)  # fmt: skip
def test_what_comes_out(more, channels, dtype, kind):
    """Channels, type and meaning follow from the options: myelin is dropped, argmax is one."""
    setting = replace(ONE, **more)
    assert (setting.output_channels, setting.stored_dtype, setting.kind) == (channels, dtype, kind)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_input_channels": 0}, "num_input_channels is 0; it must be at least 1"),
        ({"output_kind": "vector", "num_output_channels": 4}, "three channels .* output has 4"),
        ({"output_kind": "embedding", "output_dtype": "uint8"}, "uint8 scales .* or --activation"),
        ({"output_dtype": "argmax", "num_output_channels": 257}, "2 to 256 .* has 257"),
        (
            {"output_dtype": "argmax", "num_output_channels": 2, "mask_myelin_threshold": 0.5},
            "2 to 256 .* has 1; set --num-output-channels",
        ),
        (
            {"num_output_channels": 5, "outputs": TWO},
            "a, b have 4 channels in all, .*; use --num.* 4",
        ),
        (
            {"num_output_channels": 4, "outputs": TWO, "mask_myelin_threshold": 0.5},
            "--mask-myelin-threshold needs a network with one output",
        ),
    ],
)
def test_contradictions_are_refused_with_both_values_and_a_remedy(more, said):
    """Each is found when the settings are made."""
    with pytest.raises(OptionError, match=said):
        replace(ONE, **more)


def test_an_activation_makes_any_output_fit_for_uint8():
    """After sigmoid or softmax, logits are in [0, 1]."""
    for activation in ("sigmoid", "softmax"):
        made = replace(ONE, output_kind="logit", output_dtype="uint8", activation=activation)
        assert made.stored_dtype == "uint8"


def test_the_window_is_made_once_and_the_grid_follows_the_domain():
    """The window has the output patch's size; the grid is placed over the domain."""
    assert ONE.window is ONE.window
    assert ONE.window.shape == (2, 4, 4)
    domain = BoundingBox.from_size((5, 6, 7), (4, 9, 9))
    grid = replace(ONE, keep_stride=True, pad="edge").grid(domain)
    assert (grid.domain, grid.pad, grid.keep_stride) == (domain, "edge", True)


def test_a_patch_beyond_the_memory_is_refused_by_its_size():
    """It is the patch that has to shrink, not the chunk or the tasks; nothing is allocated."""
    size = Zyx(9600, 20480, 20480)
    settings = EngineSettings(PatchGeometry(size, size, Zyx(0, 0, 0)))
    with pytest.raises(OutOfMemoryError, match=r"\(9600, 20480, 20480\) .* --input-patch-size"):
        _ = settings.window
