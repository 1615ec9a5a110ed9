"""Files of boxes, as they are written for jobs and read from people."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoxGrid, Region, Zyx
from chunkflow_py.errors import OptionError, VolumeNotFoundError
from chunkflow_py.queue.box_file import read_regions, write_boxes
from chunkflow_py.tasks.task_order import ORDERS
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan

TWO = [Region.parse("0-64_0-512_-8-512"), Region.parse("64-128_0-512_0-512")]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def written(name, text):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return written


@pytest.mark.parametrize(
    "text",
    [
        "0,64,0,512,-8,512\n64,128,0,512,0,512\n",
        "z0,z1,y0,y1,x0,x1\n0,64,0,512,-8,512\n64,128,0,512,0,512",
        "name,x_start,x_stop,Y_START,y_stop,z_start,z_stop\n"
        "soma,-8,512,0,512,0,64\n\n,0,512,0,512,64,128",
        "start_z,start_y,start_x,stop_z,stop_y,stop_x\r\n0,0,-8,64,512,512\r\n64,0,0,128,512,512\r\n",
        "0-64_0-512_-8-512\n64-128_0-512_0-512",
        "bbox\n0-64_0-512_-8-512\n64-128_0-512_0-512\n",
        'note,bbox\n"a, b",0-64_0-512_-8-512\n, 64-128_0-512_0-512\n',
        "\ufeffbox\n0-64_0-512_-8-512\n64-128_0-512_0-512\n",
    ],
)
def test_csv_says_boxes_in_several_ways(write, text):
    """With names of columns or without, as numbers or as box strings."""
    assert read_regions(write("roi.csv", text)) == TWO


@pytest.mark.parametrize(
    "said",
    [
        ["0-64_0-512_-8-512", "64-128_0-512_0-512"],
        [{"start": [0, 0, -8], "stop": [64, 512, 512]}, [[64, 128], [0, 512], [0, 512]]],
    ],
)
def test_json_says_boxes_in_several_ways(write, said):
    """As strings, by start and stop, or by axes."""
    assert read_regions(write("roi.JSON", json.dumps(said))) == TWO


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "t1_0-64_0-512_-8-512\nt0_64-128_0-512_0-512\n64-128_0-512_0-512"),
        ("a.csv", "bbox\nt1_0-64_0-512_-8-512\nt0_64-128_0-512_0-512\n64-128_0-512_0-512"),
        ("a.json", '["t1_0-64_0-512_-8-512", "t0_64-128_0-512_0-512", "64-128_0-512_0-512"]'),
    ],
)
def test_box_strings_may_have_a_time(write, name, text):
    """They are written as everywhere else, with a time index first."""
    found = read_regions(write(name, text))
    assert [(region.time, region.bbox) for region in found] == [
        (1, TWO[0].bbox), (0, TWO[1].bbox), (None, TWO[1].bbox),
    ]  # fmt: skip


def test_times_are_not_lost_in_a_file(tmp_path):
    """A .npy file has no place for a time, so that tasks with one are refused."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(2, 2, 2), Zyx(2, 2, 2), Zyx(1, 1, 2))
    for plan in (GridPlan(grid, times=2), ListPlan([Region.parse("t1_0-2_0-2_0-2")])):
        with pytest.raises(OptionError, match="--queue-name"):
            write_boxes(tmp_path / "a.npy", plan)
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize("dtype", ["i8", "u4", ">i2"])
def test_npy_is_read_as_it_is_written(tmp_path, dtype):
    """Rows of six integers of any width, in either order of bytes."""
    rows = np.array([[0, 0, 8, 64, 512, 512], [64, 0, 0, 128, 512, 512]], dtype)
    np.save(tmp_path / "roi.npy", rows)
    assert list(map(str, read_regions(tmp_path / "roi.npy"))) == [
        "0-64_0-512_8-512", "64-128_0-512_0-512",
    ]  # fmt: skip


def test_a_box_that_comes_again_counts_once(write, caplog):
    """Repeated boxes are left out, and their number is told."""
    caplog.set_level("INFO")
    path = write("roi.csv", "0-1_0-1_0-1\n0-1_0-1_1-2\n0-1_0-1_0-1\n0-1_0-1_0-1\n")
    assert list(map(str, read_regions(path))) == ["0-1_0-1_0-1", "0-1_0-1_1-2"]
    assert f"2 of the 4 boxes in {path} are duplicates and are ignored" in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.builds(Zyx, *[st.integers(1, 5)] * 3), st.sampled_from(ORDERS), st.none() | st.just(1),
    st.data(),
)  # fmt: skip
def test_what_is_written_is_read_again(tmp_path, count, order, clip, data):
    """The file of a plan holds the boxes of its tasks in their order: kept ones, and of a part."""
    last = Zyx(-3, 0, 2) + Zyx(2, 3, 4) * (count - 1)
    grid = BoxGrid(Zyx(-3, 0, 2), Zyx(2, 3, 4), Zyx(2, 3, 4), count, clip and last + clip)
    value = data.draw(st.integers(1, 2 ** len(grid) - 1))
    kept = value.to_bytes(-(-len(grid) // 8), "little")
    part = range(data.draw(st.integers(0, value.bit_count() - 1)), value.bit_count())
    plan = GridPlan(grid, order=order, kept=kept, indexes=part)
    expected = [plan.region(number) for number in plan]
    for written in (plan, ListPlan(expected)):
        write_boxes(tmp_path / "tasks.npy", written)
        assert read_regions(tmp_path / "tasks.npy") == expected


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "contains no boxes"),
        ("a.csv", "z0,z1,y0,y1,x0,x1\n", "contains no boxes"),
        ("a.csv", "z0,z1,y0,y1,x0\n0,1,0,1,0", "names the columns z0, z1, y0, y1, x0, but"),
        ("a.csv", "bbox,z0\n0-1_0-1_0-1,0", "names the columns bbox, z0, but"),
        ("a.csv", "z0,z_start,z1,y0,y1,x0,x1\n0,0,1,0,1,0,1", "columns z0,z1,.* each once"),
        ("a.csv", "a,b,c\n1,2,3", "names the columns a, b, c, but boxes need one column bbox"),
        ("a.csv", "0,1,0,1,0,1\n0,1,0,1,0", "line 2 .* has 5 columns, but the first row has 6"),
        ("a.csv", "0,1,0,1", "line 1 .* has 4 columns, but a file without a header row"),
        ("a.csv", "0,1,0,1,0,1\n\n0,1,0,1,0,1.5", "line 3 .* contains '1.5' instead of a whole"),
        ("a.csv", "0,1,0,1,0,1\n0,1,0,1,0,", "line 2 .* contains '' instead of a whole number"),
        ("a.csv", "0;1;0;1;0;1", "names the columns 0;1;0;1;0;1, but"),
        ("a.csv", f"0,1,0,1,0,{LONG}", "contains '99999.*…"),
        ("a.csv", f"0-1_0-1_0-{LONG}", "line 1 .* is not a box"),
        ("a.csv", "0-1_0-1_0-1-2", "line 1 .*'0-1_0-1_0-1-2' is not a box such as"),
        ("a.csv", "0,0,0,64,512,512", "line 1 .* goes from 0 to 0 along z; the stop of a box"),
        ("a.csv", "9-3_0-1_0-1", "line 1 .* is not a box .*lies before its start"),
        ("a.csv", f"0,1,0,1,0,{2**62 + 1}", f"goes from 0 to {2**62 + 1} along x; .*within"),
        ("a.csv", '"0-1_0-1_0-1', "is not a valid .csv file of boxes: unexpected end of data"),
        ("a.json", "", "is not a valid .json file of boxes"),
        ("a.json", "[" * 100_000, "is not a valid .json file of boxes"),
        ("a.json", "{}", "contains {} instead of a list"),
        ("a.json", "[]", "contains no boxes"),
        ("a.json", '["0-1_0-1_0-1", "x"]', "item 1 .*'x' is not a box"),
        ("a.json", "[3]", "item 0 .* is 3, which is not a box; write"),
        ("a.json", '[{"start": [0, 0, 0]}]', "item 0 .* which is not a box; write"),
        ("a.json", '[{"start": [0, 0, 0], "stop": [1, 1]}]', r"contains \[1, 1\] instead of three"),
        ("a.json", '[{"start": [0, 0, 0], "stop": 1}]', "contains 1 instead of three whole"),
        ("a.json", '[{"start": [0, 0, 0], "stop": [1, 1, true]}]', "instead of three whole"),
        ("a.json", '[{"start": [0, 0, 0], "stop": [1, 1, "1"]}]', "instead of three whole"),
        ("a.json", "[[[0, 1], [0, 1], [0, 1.0]]]", r"contains \[1, 1, 1.0\] instead of three"),
        ("a.json", "[[[0, 1], [0, 1]]]", r"contains \[0, 0\] instead of three whole"),
        ("a.json", "[[[0, 1], [0, 1], [0]]]", "which is not a box; write"),
        ("a.json", "[[[0, 1], [0, 1], [0, NaN]]]", "instead of three whole"),
        ("a.npy", "no array", "is not a valid .npy file of boxes"),
        ("a.npy", "", "is not a valid .npy file of boxes"),
        ("a.txt", "0-1_0-1_0-1", r"\(\.txt\) must be a .csv, .json or .npy file"),
        ("a", "0-1_0-1_0-1", r"\(no extension\) must be a .csv"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_named_with_its_place(write, name, text, words):
    """The error names the file, the row or item, and what is wrong there."""
    path = write(name, text)
    with pytest.raises(OptionError, match=words) as caught:
        read_regions(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_text_that_is_no_text_is_refused(tmp_path):
    """Bytes that are not UTF-8 are one sentence as well."""
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe0\x00")
    with pytest.raises(OptionError, match=r"a\.csv is not a valid \.csv file of boxes"):
        read_regions(tmp_path / "a.csv")


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_is_unpickled(tmp_path):
    """Code in an array, or in a file of another kind under its name, does not run."""
    trap = tmp_path / "trap"
    np.save(tmp_path / "array.npy", np.array([Trap(trap)], object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Trap(trap)))
    for name in ("array.npy", "pickle.npy"):
        with pytest.raises(OptionError, match=r"is not a valid \.npy file of boxes"):
            read_regions(tmp_path / name)
    assert not trap.exists()


@pytest.mark.parametrize(
    "array", [np.zeros((2, 6)), np.zeros((2, 6), bool), np.zeros((2, 7), int), np.zeros(6, int)]
)
def test_arrays_of_something_else_are_refused(tmp_path, array):
    """Real numbers, truth values and other shapes are no boxes."""
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(OptionError, match=r"boxes are integers of shape \(n, 6\)"):
        read_regions(tmp_path / "a.npy")


def test_an_archive_of_arrays_is_refused(tmp_path):
    """A .npz under the name of a .npy is told for what it is."""
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, np.zeros((1, 6), int))
    with pytest.raises(OptionError, match="is an archive of arrays"):
        read_regions(tmp_path / "a.npy")


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    """A missing file is said to be missing."""
    with pytest.raises(VolumeNotFoundError, match=r"cannot read .*none\.csv"):
        read_regions(tmp_path / "none.csv")
