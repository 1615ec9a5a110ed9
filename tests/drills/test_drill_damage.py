"""What is damaged before, during and after a run; and who creates a volume at the same time."""

from pathlib import Path

import pytest

from drills.invariants import check, findings
from drills.rig import corner_of, make_input

pytestmark = pytest.mark.drill


@pytest.mark.long
def test_verify_and_repair(make_drill, expected):
    """Exactly what is damaged or missing is listed, and exactly that is done again."""
    drill = make_drill((2, 2, 4))
    drill.submit()
    drill.work()
    assert drill.wait() == [0]
    records = drill.records()
    changed, removed = (Path(url) for url in (drill.block(3), drill.block(9)))
    changed.write_bytes(flipped(changed.read_bytes()))
    removed.unlink()
    assert {words[:2] for words in findings(drill, expected(drill))} >= {"I1", "I3"}
    listed = drill.call("verify", drill.url)
    assert listed.returncode == 1
    lines = listed.stdout.splitlines()
    assert len(lines) == 2
    assert records[3].box in lines[0]
    assert str(changed) in lines[0]
    assert records[9].box in lines[1]
    assert str(removed) in lines[1]
    drill.must("repair", drill.url)
    drill.work()
    assert drill.wait()[1] == 0
    again = {number for number, times in drill.computed().items() if times > 1}
    assert again == {3, 9}
    untouched = {number: record for number, record in records.items() if number not in again}
    check(drill, expected(drill), faults=1, earlier=untouched)
    assert drill.call("verify", drill.url).returncode == 0


def flipped(data):
    """Return as many bytes, of which one in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :]


@pytest.mark.parametrize("policy", ["--fill-missing", "--no-fill-missing"])
@pytest.mark.long
def test_a_missing_input_block(make_drill, expected, tmp_path, policy):
    """It is read as zeros, or stops the task, which is named with the block; as was asked for."""
    grid = (1, 2, 2)
    source = make_input(tmp_path / "in.zarr", grid)
    drill = make_drill(grid, folder=tmp_path / "drill", source=source, loading=(policy,))
    drill.submit()
    z, y, x = corner_of(2, grid)
    (source / "c" / f"{z // 8}" / f"{y // 16}" / f"{x // 16}").unlink()
    drill.work("--max-failures", 1)
    if policy == "--fill-missing":
        assert drill.wait() == [0]
        check(drill, expected(drill))
    else:
        assert drill.wait() == [1]
        check(drill, expected(drill), dead=[2])
        assert "c/0/1/0" in drill.records()[2].reason


@pytest.mark.long
def test_eight_create_one_volume(make_drill, expected):
    """Eight lines that start together make one volume, of which nothing is torn or lost."""
    drill = make_drill((2, 2, 4))
    drill.must(*drill.source_words, "-q", drill.queue_url)
    place = drill.output.removeprefix("zarr://")
    line = [
        *("fetch-task-from-sqs", "-q", drill.queue_url, "-r", 1, "-v", 60),
        *("load-volume", "-v", f"zarr://{drill.source}", *drill.middle),
        *("save-volume", "-v", drill.output, "-b", 4, 16, 16),
    ]
    started = [drill.begin(*line) for _ in range(8)]
    codes = [process.wait(90) for process in started]
    assert codes == [0] * 8, (drill.folder / "begun.log").read_text()
    size = [count * extent for count, extent in zip(drill.grid, (8, 16, 16))]
    region = tuple(slice(0, extent) for extent in size)
    assert (drill.voxels()[region] == expected(drill)).all()
    metadata = sorted(path.name for path in Path(place).rglob("*") if path.suffix == ".json")
    assert metadata == ["zarr.json", "zarr.json"]  # of the group, and of its one array
    assert (
        sum(path.is_file() for path in Path(place).rglob("c/*/*/*")) <= drill.blocks * drill.tasks
    )
