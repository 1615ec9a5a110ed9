"""connected-components as an operator."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.connected_components import connected_components


def test_place_and_kind() -> None:
    """The labels lie where the map lay, in its domain, as a segmentation without channels."""
    domain = BoundingBox((-8, -4, -4), (64, 64, 64))
    array = np.random.default_rng(0).random((3, 4, 5, 6)).astype(np.float32)
    chunk = Chunk(array, (-4, 8, 0), (40, 4, 4), "affinity", domain)
    before = array.copy()
    labels = connected_components(chunk, 0.5)
    assert (labels.bbox, labels.voxel_size_nm) == (chunk.bbox, (40, 4, 4))
    assert (labels.kind, labels.domain, labels.ndim) == ("segmentation", domain, 3)
    assert np.array_equal(array, before)


@pytest.mark.parametrize("connectivity", ["6", "18", "26"])
def test_on_a_line(connectivity: str) -> None:
    """The command takes the three connectivities and a threshold."""
    line = ["create-chunk", "-s", "8", "8", "8", "connected-components", "-t", "100"]
    result = CliRunner().invoke(cli, [*line, "-c", connectivity])
    assert result.exit_code == 0, result.output


def test_unknown_connectivity_is_a_usage_error() -> None:
    """A connectivity of 8 ends the line with 2 before it starts."""
    result = CliRunner().invoke(cli, ["create-chunk", "connected-components", "-c", "8"])
    assert result.exit_code == 2
    assert "'6', '18', '26'" in result.output


def test_a_map_without_threshold_is_explained() -> None:
    """A floating-point map without --threshold fails with one sentence."""
    result = CliRunner().invoke(
        cli, ["create-chunk", "-s", "4", "4", "4", "-d", "float32", "connected-components"]
    )
    assert result.exit_code == 1
    assert "float32" in result.output
    assert "--threshold" in result.output
