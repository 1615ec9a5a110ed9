"""mask-out-objects as an operator and on a line."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.mask_out_objects import ObjectMasker, mask_out_objects
from chunkflow_py.ops.save_h5 import save_h5


def chunk_of(array: np.ndarray) -> Chunk:
    """Return labels at a place."""
    return Chunk(array, (3, 4, 5), (40, 4, 4), "segmentation")


LABELS = np.repeat(np.array([0, 1, 2, 2**63], np.uint64), [1, 2, 3, 4]).reshape(1, 2, 5)


def test_place_type_and_channel_stay() -> None:
    """Labels with a channel axis keep it, uint64 its large ids; a threshold is the least size."""
    masked = mask_out_objects(chunk_of(LABELS[None]), 3)
    assert (masked.shape, masked.dtype) == ((1, 1, 2, 5), np.uint64)
    assert (masked.voxel_offset, masked.kind) == ((3, 4, 5), "segmentation")
    assert np.unique(masked.array).tolist() == [0, 2, 2**63]
    with pytest.raises(ChunkError, match="channel"):
        mask_out_objects(chunk_of(np.zeros((2, 4, 4, 4), np.uint8)), 3)


def test_ids_of_a_line_and_of_files(tmp_path, monkeypatch) -> None:
    """Ids come from the line, from a file by its path, or by its URL."""
    monkeypatch.chdir(tmp_path)
    save_h5(chunk_of(LABELS), "in.h5")
    (tmp_path / "ids.json").write_text(json.dumps([1, 2**63]))
    for said in (f"1,{2**63}", "ids.json", f"file://{tmp_path}/ids.json", f"{tmp_path}/ids.json"):
        line = f"load-h5 -f in.h5 mask-out-objects -s {said} save-h5 -f out.h5"
        result = CliRunner().invoke(cli, line.split())
        assert result.exit_code == 0, result.output
        assert np.unique(load_h5("out.h5").array).tolist() == [0, 1, 2**63]
    result = CliRunner().invoke(cli, ["create-chunk", "mask-out-objects", "-s", "a,b"])
    assert result.exit_code == 2
    assert ObjectMasker(None, "ids.json").needed_files == {"ids.json": "data"}
    assert ObjectMasker(None, "s3://bucket/ids.json").needed_files == {}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
def test_negative_ids_are_ids(dtype) -> None:
    """They are counted and kept like others; the library alone crashes on negative int8."""
    labels = np.repeat(np.array([0, -3, 5, -128], dtype), [5, 2, 3, 90]).reshape(1, 10, 10)
    assert np.unique(mask_out_objects(chunk_of(labels), 3).array).tolist() == [-128, 0, 5]
    assert np.unique(mask_out_objects(chunk_of(labels), 3, {5, 125}).array).tolist() == [0, 5]
