"""Levels of whole sections: luminance levels of igneous, and what is missing."""

import json

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.filters.section_levels import SectionLevels
from chunkflow_py.filters.volume_statistics import KIND, count_chunk
from chunkflow_py.ops.normalize_contrast import normalize_contrast
from chunkflow_py.store.task_counts import CountStore


def sections(depth=4, dtype=np.uint8):
    """Return sections that are brighter the higher they are, at z from 10 on."""
    rng = np.random.default_rng(1)
    base = np.arange(depth)[:, None, None] * 20
    return Chunk((base + rng.integers(1, 90, (depth, 8, 8))).astype(dtype), (10, 0, 0))


def write_luminance(folder, chunk):
    """Write what igneous writes: one JSON object a section."""
    folder.mkdir(exist_ok=True)
    for z, section in enumerate(chunk.array, chunk.bbox.start.z):
        levels = np.bincount(section.ravel(), minlength=256).tolist()
        about = {"patch_size": [1024, 1024, 1], "num_patches": 4, "coverage_ratio": 0.5}
        (folder / str(z)).write_text(json.dumps({"levels": levels} | about))


@pytest.mark.parametrize("per_section", [True, False])
def test_luminance_levels(tmp_path, per_section):
    """Sections are stretched by the levels of igneous, also those of a part of them."""
    chunk = sections()
    write_luminance(tmp_path / "2", chunk)
    expected = normalize_contrast(chunk, per_section=per_section).array
    part = chunk.cut(BoundingBox.parse("11-13_2-7_0-3"))
    found = normalize_contrast(part, per_section=per_section, levels=str(tmp_path / "2"))
    assert np.array_equal(found.array, expected[1:3, 2:7, 0:3])
    several = Chunk(np.stack([chunk.array] * 2), (10, 0, 0))
    both = normalize_contrast(several, per_section=per_section, levels=str(tmp_path / "2"))
    assert np.array_equal(both.array[1], expected)


def test_missing_and_damaged_sections_are_named(tmp_path):
    """A section without levels is an error that names it and what makes them."""
    chunk = sections()
    levels = str(tmp_path / "2")
    for setup in (lambda: None, lambda: write_luminance(tmp_path / "2", chunk)):
        setup()
        deeper = Chunk(np.zeros((6, 2, 2), np.uint8), (9, 0, 0))
        with pytest.raises(VolumeNotFoundError, match=r"section 9 .*compute-statistics --stat"):
            normalize_contrast(deeper, levels=levels)
    (tmp_path / "2" / "12").write_text('{"levels": ["many"]}')
    with pytest.raises(VolumeError, match="2/12 does not contain luminance levels"):
        normalize_contrast(chunk, levels=levels)
    (tmp_path / "2" / "12").write_text(json.dumps({"levels": [1] * 300}))
    with pytest.raises(ChunkError, match="300 intensities, but the chunk is uint8, which has 256"):
        normalize_contrast(chunk, levels=levels)


def store(folder, chunk, *boxes, **options):
    """Count boxes of a chunk as compute-statistics does."""
    counts = CountStore(str(folder), KIND)
    for text in boxes:
        counts.put(count_chunk(chunk, Region.parse(text), **options))


def test_sections_that_are_not_counted_whole_are_refused(tmp_path):
    """A part of a section would give other limits once the rest is counted; unless asked for."""
    chunk = sections(dtype=np.uint16)
    store(tmp_path, chunk, "10-12_0-8_0-4", "12-14_0-8_0-8")
    with pytest.raises(ChunkError, match=r"cover 0.5 of section 10,"):
        normalize_contrast(chunk, levels=str(tmp_path))
    upper = chunk.cut(BoundingBox.parse("12-14_0-8_0-8"))
    assert normalize_contrast(upper, levels=str(tmp_path)).array.max() == 255
    half = SectionLevels(str(tmp_path), min_coverage=0.5)
    expected = normalize_contrast(chunk.cut(BoundingBox.parse("10-12_0-8_0-4"))).array
    found = normalize_contrast(chunk, levels=half).array
    assert np.array_equal(found[:2, :, :4], expected)


def test_other_images_are_refused(tmp_path):
    """Histograms of another type or number of channels, or not of sections, are no levels."""
    chunk = sections()
    box = str(chunk.bbox)
    store(tmp_path / "a", chunk, box)
    with pytest.raises(ChunkError, match="are of uint8 voxels, but the chunk is uint16"):
        normalize_contrast(sections(dtype=np.uint16), levels=str(tmp_path / "a"))
    store(tmp_path / "b", Chunk(np.stack([chunk.array] * 2), (10, 0, 0)), box)
    with pytest.raises(ChunkError, match="have 2 channels, but chunk .* has 1"):
        normalize_contrast(chunk, levels=str(tmp_path / "b"))
    store(tmp_path / "c", chunk, box, per_section=False)
    with pytest.raises(ChunkError, match="not for each section"):
        normalize_contrast(chunk, levels=str(tmp_path / "c"))
    whole = normalize_contrast(chunk, levels=str(tmp_path / "c"), per_section=False)
    assert np.array_equal(whole.array, normalize_contrast(chunk, per_section=False).array)
