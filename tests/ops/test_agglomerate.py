"""agglomerate as an operator, from Python, on a line, and as the plugin it once was."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.agglomerate import Agglomerator, agglomerate, command


def two_cells() -> Chunk:
    """Return affinities of two cells that meet at x = 6 with affinity 0.4."""
    array = np.full((3, 6, 8, 12), 0.99, np.float32)
    array[0, :, :, 6] = 0.4
    return Chunk(array, (10, -20, 30), (40, 4, 4), "affinity")


def test_place_and_kind() -> None:
    """The segments lie where the affinities lay, as a segmentation without channels."""
    chunk = two_cells()
    segments = agglomerate(chunk, threshold=0.5)
    assert (segments.bbox, segments.voxel_size_nm) == (chunk.bbox, (40, 4, 4))
    assert (segments.kind, segments.ndim, segments.array.max()) == ("segmentation", 3, 2)


def test_default_threshold_merges_above_an_affinity_of_0_3() -> None:
    """The default of 0.7 is on 1 - mean affinity: 0.4 is merged."""
    assert agglomerate(two_cells()).array.max() == 1


def test_arguments_of_the_plugin() -> None:
    """The arguments of the plugin of the same name work, with no fragments or an array."""
    settings = {"aff_threshold_low": 0.001, "aff_threshold_high": 0.9999, "flip_channel": True}
    fragments = np.ones((6, 8, 12), np.uint64)
    assert agglomerate(two_cells(), None, threshold=0.5, **settings).array.max() == 2
    assert agglomerate(two_cells(), fragments, threshold=0.5, **settings).array.max() == 1


def test_fragments_of_the_task() -> None:
    """--fragments-name merges the labels of another chunk of the task."""
    affinity = two_cells()
    thirds = np.repeat(np.arange(1, 4), 4) * np.ones((6, 8, 1), np.uint32)
    task = Task(items={"chunk": affinity, "pieces": affinity.with_array(thirds.astype("u4"))})
    body = Agglomerator("chunk", "seg", "pieces", {"threshold": 0.5})
    labels = body(task).chunk("seg").array
    assert labels[0, 0].tolist() == [1] * 12  # no border of the pieces lies on that of the cells


def test_fragments_of_another_box_are_refused() -> None:
    """Fragments that lie elsewhere are refused with both boxes and the common one."""
    affinity = two_cells()
    fragments = Chunk(np.ones((6, 8, 12), np.uint32), (11, -20, 30))
    with pytest.raises(ChunkError, match="11-17_.*10-16_.*cut both to 11-16_"):
        agglomerate(affinity, fragments)
    fragments = Chunk(fragments.array, (100, -20, 30))
    with pytest.raises(ChunkError, match="100-106_.*10-16_.*load both for the same box"):
        agglomerate(affinity, fragments)


def test_names_on_the_line() -> None:
    """The pipeline is told which items are read and made, so that it can check the line."""
    stage = command.main(["-i", "aff", "-o", "seg", "--fragments-name", "f"], standalone_mode=False)
    assert set(stage.inputs) == {"aff", "f"}
    assert stage.outputs == ("seg",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "1.5"], "nearest value that works is 1"),
        (["--threshold", "-0.1"], "nearest value that works is 0"),
        (["--aff-threshold-low", "0.5", "--aff-threshold-high", "0.5"], "must be below"),
        (["--fragments", "seeded", "--fragments-name", "chunk"], "leave one of them out"),
        (["--fragments", "other"], "'waterz', 'seeded'"),
    ],
)
def test_bad_options_end_the_line_before_it_starts(words: list[str], message: str) -> None:
    """Options that cannot work are a usage error (2), before anything is made."""
    result = CliRunner().invoke(cli, ["create-chunk", "agglomerate", *words])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_chunk_without_affinities_is_explained() -> None:
    """An image instead of affinities fails with one sentence (1)."""
    result = CliRunner().invoke(cli, ["create-chunk", "-s", "4", "4", "4", "agglomerate"])
    assert result.exit_code == 1
    assert "(3, z, y, x), got (4, 4, 4)" in result.output


def test_a_score_of_ones_own_is_code():
    """A scoring function that waterz would compile is code; the usual one is not."""
    (usual,) = read_line(["agglomerate"])
    assert usual.body.code == ()
    (own,) = read_line(["agglomerate", "--scoring-function", "One<Two>"])
    assert own.body.code == ("the scoring function One<Two>, as C++",)
