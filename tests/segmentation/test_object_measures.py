"""Objects of a volume: exact measures, their table, and copies without some objects."""

import csv
import json
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.labels import exact_sums as exact
from chunkflow_py.segmentation.labels import object_measures
from chunkflow_py.segmentation.labels.object_measures import (
    ObjectMeasures,
    columns_of,
    measure,
    summed,
)
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

SIZE_NM = (40.0, 4.0, 5.0)
BOUNDS = BoundingBox.from_size((5, -3, 100), (7, 9, 11))
SPEC = VolumeSpec(
    BOUNDS, SIZE_NM, np.dtype("uint32"), None, "segmentation", Zyx(3, 4, 5), "raw"
)  # fmt: skip


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_sums_of_floats_are_exact(numbers, data):
    """Digits represent the sum of each group without rounding, in any order."""
    values = np.array(numbers, np.float32)
    cut = data.draw(st.integers(0, len(values) - 1))
    starts = np.unique([0, cut])
    digits = exact.carried(exact.sums_of_floats(values, lambda n: np.add.reduceat(n, starts)))
    for group, row in zip(np.split(values, starts[1:]), digits, strict=True):
        expected = sum(Fraction(float(value)) for value in group)
        unit = Fraction(2) ** exact.FLOAT_OFFSET
        assert sum(int(d) * unit * 2 ** (16 * k) for k, d in enumerate(row)) == expected
        assert all(0 <= digit < 2**16 for digit in row[:-1])
        found = exact.as_floats(row[None], exact.FLOAT_OFFSET)[0]
        assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-300)
    swapped = exact.sums_of_floats(values[::-1], lambda n: np.add.reduceat(n, [0]))
    assert exact.carried(swapped).tobytes() == exact.carried(digits.sum(0)[None]).tobytes()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
@settings(max_examples=60, deadline=None)
def test_sums_of_integers_are_exact(numbers):
    """Sums may be larger than 64 bits."""
    digits = exact.carried(exact.of_integers(np.array(numbers, np.int64)).sum(axis=0))
    assert sum(int(digit) << (16 * k) for k, digit in enumerate(digits)) == sum(numbers)


def scene(dtype, channels=2):
    """Return labels and an image."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, BOUNDS.size).astype(np.uint32)
    labels[:, :, 3:6] = 9
    values = rng.normal(0, 1000, (channels, *BOUNDS.size))
    image = np.abs(values).astype(dtype) if np.dtype(dtype).kind == "u" else values.astype(dtype)
    return (
        Chunk(labels, BOUNDS.start, SIZE_NM, "segmentation"),
        Chunk(image, BOUNDS.start, SIZE_NM),
    )


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float16", "float32", "float64"])
def test_measures_are_those_of_scipy(dtype):
    """Sizes, boxes, centroids and intensities, for any division and order of the tasks."""
    labels, image = scene(dtype)
    rng = np.random.default_rng(1)
    stored = []
    for size in (Zyx(7, 9, 11), Zyx(3, 4, 5), Zyx(1, 9, 2)):
        boxes = list(BoxGrid.covering(BOUNDS, size, respect_stop=True))
        rng.shuffle(boxes)
        parts = [measure(labels, Region(box), image) for box in boxes]
        assert {part.settings["intensities"] for part in parts} == {
            dtype if "float" not in dtype else "float32"
        }
        whole = summed(ObjectMeasures(**part.arrays) for part in parts)
        stored.append({name: array.tobytes() for name, array in whole.arrays().items()})
    assert stored[0] == stored[1] == stored[2]
    table = columns_of(whole, BOUNDS, SIZE_NM, ["a", "b"])
    ids = np.arange(1, 10)[np.isin(np.arange(1, 10), labels.array)]
    assert table["label"].tolist() == ids.tolist()
    np.testing.assert_array_equal(table["voxels"], ndimage.sum_labels(
        np.ones(BOUNDS.size), labels.array, ids))  # fmt: skip
    np.testing.assert_allclose(table["volume_um3"], table["voxels"] * 8e-7, rtol=1e-12)
    centres = np.array(ndimage.center_of_mass(np.ones(BOUNDS.size), labels.array, ids))
    for axis, name in enumerate("zyx"):
        place = centres[:, axis] + BOUNDS.start[axis]
        np.testing.assert_allclose(table[f"{name}_centroid"], place, rtol=1e-12)
        np.testing.assert_allclose(table[f"{name}_nm"], (place + 0.5) * SIZE_NM[axis])
        spans = [box[axis] for box in ndimage.find_objects(labels.array) if box]
        starts = [span.start + BOUNDS.start[axis] for span in spans]
        stops = [span.stop + BOUNDS.start[axis] for span in spans]
        assert table[f"{name}_start"].tolist() == starts
        assert table[f"{name}_stop"].tolist() == stops
    values = image.array.astype(np.float32 if image.dtype.kind == "f" else np.int64)
    for name, channel in zip("ab", values, strict=True):
        wide = channel.astype(np.float64)
        mean = ndimage.mean(wide, labels.array, ids)
        np.testing.assert_allclose(table[f"mean_{name}"], mean, rtol=1e-9, atol=1e-9)
        assert table[f"min_{name}"].tolist() == ndimage.minimum(wide, labels.array, ids).tolist()
        assert table[f"max_{name}"].tolist() == ndimage.maximum(wide, labels.array, ids).tolist()


def test_slabs_of_a_large_task(monkeypatch):
    """A task that is measured in slabs gives the same measures."""
    labels, image = scene("float32")
    whole = measure(labels, Region(BOUNDS), image).arrays
    monkeypatch.setattr(object_measures, "_SLAB", 200)
    slabs = measure(labels, Region(BOUNDS), image).arrays
    assert {name: array.tobytes() for name, array in whole.items()} == {
        name: array.tobytes() for name, array in slabs.items()
    }


def test_intensities_that_are_not_finite():
    """NaN and infinity are left out; without any finite voxel, the values are NaN."""
    labels, image = scene("float32", 1)
    image.array[:] = 3
    image.array[0, labels.array == 1] = np.nan
    image.array[0, 0, 0] = np.inf
    (part,) = [ObjectMeasures(**measure(labels, Region(BOUNDS), image).arrays)]
    table = columns_of(part, BOUNDS, SIZE_NM)
    assert np.isnan([table[name][0] for name in ("mean", "min", "max")]).all()
    assert {float(table[name][k]) for name in ("mean", "min", "max") for k in (1, 2)} == {3.0}


def test_zeros_of_both_signs():
    """-0 counts as 0, so that the smallest intensity does not depend on the tasks."""
    labels, image = scene("float32", 1)
    image.array[:] = np.where(np.random.default_rng(2).random(image.array.shape) < 0.5, 0.0, -0.0)
    for size in (Zyx(7, 9, 11), Zyx(3, 4, 5)):
        boxes = BoxGrid.covering(BOUNDS, size, respect_stop=True)
        parts = [measure(labels, Region(box), image) for box in boxes]
        whole = summed(ObjectMeasures(**part.arrays) for part in parts)
        assert not (np.signbit(whole.least) | np.signbit(whole.most)).any()


def test_what_cannot_be_measured():
    """Floating-point labels, and intensities of 64 bits, are refused."""
    labels, image = scene("int16")
    with pytest.raises(ChunkError, match="labels are integers"):
        measure(image, Region(BOUNDS))
    with pytest.raises(ChunkError, match="at most 32 bits"):
        measure(labels, Region(BOUNDS), image.with_array(image.array.astype(np.int64)))


# --- the subcommands ------------------------------------------------------------------------------


def say(*words, code=0):
    """Run a command line; return what it prints."""
    done = CliRunner().invoke(cli, ["--quiet", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Store labels and an image, also as a time series, and go to their folder."""
    monkeypatch.chdir(tmp_path)
    labels, image = scene("uint16")
    image_spec = replace(SPEC, dtype=image.dtype, channels=2, kind="image")
    create_volume(SPEC, "zarr://labels.zarr").write(labels)
    create_volume(image_spec, "zarr://image.zarr", channel_names=["a", "b"]).write(image)
    create_volume(replace(SPEC, dtype=np.dtype("uint64")), "zarr://long.zarr")
    film = create_volume(replace(SPEC, times=2), "zarr://film.zarr")
    for time in range(2):
        film.write(labels.with_array(labels.array * (time + 1)), time=time)
    return tmp_path


def rows(path):
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_do_not_depend_on_tasks(folder):
    """CSV and Parquet hold the same table, for any size of the tasks, and after an interruption."""
    parquet = pytest.importorskip("pyarrow.parquet")
    say("label-statistics", "labels.zarr", "one.csv", "--image", "image.zarr")
    content = (folder / "one.csv").read_bytes()
    for size in ((3, 4, 5), (7, 9, 4)):
        say("label-statistics", "labels.zarr", "two.csv", "--image", "image.zarr", "--overwrite",
            "--task-size", *size)  # fmt: skip
        assert (folder / "two.csv").read_bytes() == content
    say("label-statistics", "labels.zarr", "two.csv", "--image", "image.zarr", "--overwrite",
        "--task-size", 7, 9, 4, "--processes", 2)  # fmt: skip
    assert (folder / "two.csv").read_bytes() == content
    parts = sorted((folder / "two.csv.parts/parts").iterdir())
    assert len(parts) == 3
    parts[1].unlink()
    kept = parts[0].stat().st_mtime_ns
    again = ("label-statistics", "labels.zarr", "two.csv", "--image", "image.zarr")
    said = say(*again, "--task-size", 7, 9, 4)
    assert said == "two.csv: 6 objects\n"
    assert (folder / "two.csv").read_bytes() == content
    assert parts[0].stat().st_mtime_ns == kept
    assert "add --overwrite" in say(*again, "--task-size", 3, 4, 5, code=2)
    say("label-statistics", "labels.zarr", "t.parquet", "--image", "image.zarr")
    stored = parquet.read_table(folder / "t.parquet").to_pydict()
    table = rows(folder / "one.csv")
    assert list(stored) == list(table[0])
    assert [[str(v) for v in stored[name]] for name in stored] == [
        [row[name] for row in table] for name in stored
    ]


def test_measures_of_a_run(folder):
    """measure-labels in a pipeline, and label-statistics --parts, make the same table."""
    say("label-statistics", "labels.zarr", "one.csv", "--image", "image.zarr", "--channels", "1")
    say(
        "generate-tasks", "-v", "labels.zarr", "-c", 3, 4, 5, "load-volume", "-v", "labels.zarr",
        "-o", "labels", "load-volume", "-v", "image.zarr", "-o", "image", "--channels", 1,
        "measure-labels", "-i", "labels", "--image-name", "image", "-s", "parts",
    )  # fmt: skip
    words = ("label-statistics", "labels.zarr", "two.csv", "--image", "image.zarr")
    say(*words, "--channels", "1", "--parts", "parts")
    chosen = ("--min-size", 30, "--no-border")
    one = say("filter-labels", "labels.zarr", "zarr://one.zarr", *chosen)
    two = say("filter-labels", "labels.zarr", "zarr://two.zarr", *chosen, "--parts", "parts")
    assert two == one.replace("one.zarr", "two.zarr")
    assert not (folder / "two.zarr.filter/parts").exists()
    kept = [open_volume(f"{folder}/{name}.zarr").read(BOUNDS).array for name in ("one", "two")]
    np.testing.assert_array_equal(*kept)
    assert (folder / "one.csv").read_bytes() == (folder / "two.csv").read_bytes()
    assert "nothing is measured" in say(*words, "--parts", "p", "--overwrite", code=2)


def test_measures_of_other_volumes(folder):
    """Measures of other voxels or channels are refused; if tasks are missing, a warning says so."""
    say("label-statistics", "labels.zarr", "one.csv", "--task-size", 3, 4, 5)
    words = ("label-statistics", "labels.zarr", "two.csv", "--parts", "one.csv.parts/parts")
    said = say(*words, "--image", "image.zarr", code=2)
    assert "intensities of 0 channels, but 2 channels of --image image.zarr are" in said
    said = say("label-statistics", "film.zarr", *words[2:], code=2)
    assert re.search("measures of 5-8_-3-1_100-105, but film.zarr .* time points 2; use", said)
    assert not (folder / "two.csv").exists()
    next((folder / "one.csv.parts/parts").iterdir()).unlink()
    assert re.search("incomplete: the measures .* cover only a fraction of 0.9", say(*words))


def test_a_time_series(folder):
    """Labels of different time points are different objects."""
    say("label-statistics", "film.zarr", "film.csv")
    table = rows(folder / "film.csv")
    assert [row["time"] for row in table] == ["0"] * 6 + ["1"] * 6
    assert [int(row["label"]) for row in table[6:]] == [2 * int(r["label"]) for r in table[:6]]
    assert [row["voxels"] for row in table[6:]] == [row["voxels"] for row in table[:6]]
    done = say("filter-labels", "film.zarr", "zarr://large.zarr", "--min-size", 150)
    assert "2 of 12 objects kept; removed: 10 too small" in done
    for time, label in enumerate((9, 18)):
        volume = open_volume("large.zarr")
        found = volume.read(volume.bounds, time=time).array
        source = open_volume("film.zarr").read(volume.bounds, time=time).array
        np.testing.assert_array_equal(found, np.where(source == label, label, 0))


def test_an_empty_volume(folder):
    """Without objects, the table has only its header."""
    create_volume(SPEC, "zarr://empty.zarr")
    assert say("label-statistics", "empty.zarr", "empty.csv") == "empty.csv: 0 objects\n"
    assert (folder / "empty.csv").read_text().startswith("label,voxels,volume_um3,z_start")
    assert (folder / "empty.csv").read_text().count("\n") == 1
    said = say("filter-labels", "empty.zarr", "zarr://e.zarr", "--no-border")
    assert "0 of 0 objects kept; removed: none" in said


@pytest.mark.parametrize("size", [(3, 4, 5), (6, 8, 10)])
def test_filters(folder, size):
    """Small, large and cut objects become 0, whatever the tasks are; the rest is kept."""
    array = np.zeros(BOUNDS.size, np.uint32)
    array[1, 1, 1:4] = 3  # three voxels, in two tasks
    array[2, 2:4, 2] = 4  # two
    array[3:6, 3:7, 5:9] = 5  # 48
    array[0, 5, 5:9] = 6  # four, at the border
    create_volume(SPEC, "zarr://in.zarr").write(Chunk(array, BOUNDS.start, kind="segmentation"))
    words = ("filter-labels", "in.zarr", "zarr://out.zarr", "--min-size", 3, "--max-size", 47)
    said = say(*words, "--no-border", "--task-size", *size, "--block-size", 3, 4, 5)
    assert "1 of 4 objects kept; removed: 1 too small, 1 too large, 1 at the border" in said
    out = open_volume("out.zarr")
    assert (out.dtype, out.kind, out.voxel_size_nm) == (np.uint32, "segmentation", SIZE_NM)
    np.testing.assert_array_equal(out.read(BOUNDS).array, np.where(array == 3, 3, 0))
    assert say(*words, "--no-border", "--task-size", *size).startswith("zarr://out.zarr: 1 of 4")
    assert "contains a different copy" in say(*words, "--task-size", *size, code=1)


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        ("label-statistics labels.zarr t.txt", "ends? in .csv or .parquet; use t.csv", 2),
        ("label-statistics image.zarr t.csv", "2 channels of uint16, but labels are", 1),
        ("label-statistics labels.zarr t.csv --image film.zarr", "time points 2, but .* None", 2),
        ("label-statistics labels.zarr t.csv --channels 1", "; add --image", 2),
        (
            "label-statistics labels.zarr t.csv --image image.zarr --channels 2",
            "channels 0 to 1",
            1,
        ),
        ("label-statistics labels.zarr t.csv --image long.zarr", "at most 32 bits", 1),
        ("filter-labels labels.zarr zarr://f.zarr", "would remove nothing; give", 2),
        ("filter-labels labels.zarr zarr://f.zarr --min-size 9 --max-size 3", "swap the two", 2),
        ("filter-labels image.zarr zarr://f.zarr --min-size 9", "labels are integers", 1),
    ],
)
def test_what_is_refused(folder, line, message, code):
    """Each message says what disagrees and what to change; no table is written."""
    said = say(*line.split(), code=code)
    assert re.search(message, said), said
    assert not (folder / "t.csv").exists()


def test_a_dry_run_measures_nothing(folder):
    """Nothing is stored."""
    before = sorted(folder.iterdir())
    say("--dry-run", "label-statistics", "labels.zarr", "t.csv")
    say("--dry-run", "filter-labels", "labels.zarr", "zarr://f.zarr", "--min-size", 2)
    assert sorted(folder.iterdir()) == before
    assert json.loads((folder / "labels.zarr/zarr.json").read_text())
