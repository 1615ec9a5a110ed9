"""What verify and repair make of runs that were damaged or forged, by the command line.

Each test damages a run that is complete in a way that a reader of the output would suffer from.
"""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from cli.test_cli_runs import folder, voxels, work
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.variants import gate_runs

from chunkflow_py.run.ledger.ledger_record import sealed
from chunkflow_py.run.run_directory import RunDirectory

__all__ = ["folder"]

STAGE = "threshold"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a run that is complete, as one worker left it."""
    from contextlib import chdir

    made = tmp_path_factory.mktemp("done")
    with chdir(made):
        say(f"--quiet {IMAGE} {SAVE} image.zarr")
        say(f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr")
        work("work r")
        say("verify r")
    return made


@pytest.fixture
def run(done, tmp_path, monkeypatch):
    """The run, in the place where it was made; it is put back afterwards."""
    kept = tmp_path / "kept"
    shutil.copytree(done, kept)
    monkeypatch.chdir(done)
    yield done
    shutil.rmtree(done)
    shutil.copytree(kept, done)


def page(run):
    """Return the only page of the ledger."""
    (found,) = (run / f"r/ledger/{STAGE}/pages").iterdir()
    return found


def lines_of(run):
    """Return the lines of the page's body."""
    return gzip.decompress(page(run).read_bytes().partition(b"\n")[2]).splitlines(keepends=True)


def replace_lines(run, lines):
    """Give the page other lines, under a header that fits them."""
    header, _, _ = page(run).read_bytes().partition(b"\n")
    said = json.loads(header.decode().rpartition("\t")[0])
    body = gzip.compress(b"".join(lines))
    said["body"] = [len(body), zlib.crc32(body)]
    header = sealed(json.dumps(said, separators=(",", ":"))).encode()
    page(run).write_bytes(header + b"\n" + body)


def changed(run, **changes):
    """Forge the first record of the page, with a seal that fits."""
    lines = lines_of(run)
    kind, generation, text = lines[0].decode().rstrip("\n").rpartition("\t")[0].split(" ", 2)
    record = json.loads(text) | changes
    text = json.dumps(record, separators=(",", ":"))
    lines[0] = f"{sealed(f'{kind} {generation} {text}')}\n".encode()
    replace_lines(run, lines)
    return record


def mend(run, tasks):
    """Repair, work, and see that all is well."""
    before = voxels("mask.zarr") if tasks == 0 else None
    told = say("repair r")
    assert f"sent {tasks} task" in told
    work("work r")
    assert "verified: all 8 tasks" in say("verify r")
    if before is not None:
        np.testing.assert_array_equal(voxels("mask.zarr"), before)
    return told


def without(lines, index):
    return lines[:index] + lines[index + 1 :]


DAMAGES = {
    "empty": lambda data: b"",
    "header-only": lambda data: data.partition(b"\n")[0] + b"\n",
    "header-cut": lambda data: data[:200],
    "body-cut": lambda data: data[: len(data) // 2],
    "no-header": lambda data: data.partition(b"\n")[2],
}


@pytest.mark.parametrize("damage", gate_runs(DAMAGES, "body-cut"))
def test_a_damaged_page(run, damage):
    """Tasks with unreadable records are listed with the segment; verify continues."""
    where = page(run)
    where.write_bytes(DAMAGES[damage](where.read_bytes()))
    found = say("verify r", code=1)
    assert "not recorded" in found
    assert str(where) in found
    say("status r")
    count = sum(line.startswith(f"{STAGE} ") for line in found.splitlines())
    mend(run, count)


def test_a_record_is_gone_from_a_page(run):
    """A page whose header counts a record that its body does not have is not believed."""
    path = Path(
        json.loads(lines_of(run)[2].decode().split(" ", 2)[2].partition("\t")[0])["written"][0][0][
            7:
        ]
    )
    path.unlink()
    replace_lines(run, without(lines_of(run), 2))
    found = say("verify r", code=1).splitlines()
    assert "not recorded" in found[0]
    assert "1 finding;" in found[-1]
    mend(run, 1)


@pytest.mark.long
def test_a_page_that_says_everything_twice(run):
    """A finding is listed once, however often the ledger holds a record."""
    path = Path(changed(run)["written"][0][0].removeprefix("file://"))
    path.unlink()
    replace_lines(run, lines_of(run) * 2)
    assert "1 finding;" in say("verify r", code=1).splitlines()[-1]
    mend(run, 1)


@pytest.mark.parametrize("kept", gate_runs([0, 200], 0))
def test_a_damaged_loose_record(run, kept, tmp_path):
    """An empty or cut record counts as none: listed by name, sent again, and put in order."""
    say(f"submit --run again {LINE} threshold -t 100 {SAVE} again.zarr")
    work("work again --max-tasks 3", code=75)
    loose = next((run / f"again/ledger/{STAGE}/loose").rglob("*.record"))
    content = loose.read_bytes()
    loose.unlink()  # the others keep theirs: the file has several names
    loose.write_bytes(content[:kept])
    assert str(loose) in say("verify again", code=1)
    say("status again")
    say("repair again")
    work("work again")
    assert "verified: all 8 tasks" in say("verify again")
    np.testing.assert_array_equal(voxels("again.zarr"), voxels("mask.zarr"))


@pytest.mark.long
def test_an_empty_record_whose_message_waits(run):
    """A worker that repeats such a task replaces the unreadable record."""
    say(f"submit --run again {LINE} threshold -t 100 {SAVE} again.zarr")
    folder = run / f"again/ledger/{STAGE}/loose/0"
    folder.mkdir(parents=True)
    (folder / "0.5.0.record").touch()
    work("work again")
    assert "verified: all 8 tasks" in say("verify again")


@pytest.mark.parametrize(
    "stray",
    gate_runs(
        [
            "pages/.nfs000123", "pages/0~", "pages/x/0", "pages/00", "pages/99999",
            "loose/0/a.b.c.d", "loose/0/0.1.0.record~", "loose/0/1.1.0.record",
            "loose/0/0.999999.0.record", "loose/0/0.1.0.strange", "loose/0/.nfs1", "loose/x",
            "loose/0/0.1.99999999999.record",
        ],
        "pages/0~", "loose/0/.nfs1", "loose/0/0.1.0.record~",
    ),
)  # fmt: skip
def test_stray_names(run, stray):
    """Files of editors, file servers and other programs in a ledger are ignored."""
    path = run / f"r/ledger/{STAGE}/{stray}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"something else")
    assert "verified: all 8 tasks" in say("verify r")
    assert "complete" in say("status r")
    mend(run, 0)


@pytest.mark.parametrize("key", ["zarr.json", "0/zarr.json"])
def test_metadata_is_gone(run, key):
    """Metadata of an output belongs to it: its loss is found, and repaired without a task."""
    before = voxels("mask.zarr")
    (run / "mask.zarr" / key).unlink()
    assert f"mask.zarr/{key} has changed (the file is missing)" in say("verify r", code=1)
    assert f"mask.zarr/{key}" in mend_metadata()
    np.testing.assert_array_equal(voxels("mask.zarr"), before)


def mend_metadata():
    told = say("repair r")
    assert "restored" in told
    assert "sent 0 tasks" in told
    assert "verified: all 8 tasks" in say("verify r")
    return told


def test_metadata_is_changed(run):
    """A changed fill value is reported with both values; added attributes stay."""
    path = run / "mask.zarr/0/zarr.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"fill_value": 77}))
    assert "fill_value is 77, not " in say("verify r", code=1)
    group = run / "mask.zarr/zarr.json"
    document = json.loads(group.read_text())
    document["attributes"]["mine"] = [1, 2]
    group.write_text(json.dumps(document))
    mend_metadata()
    assert json.loads(path.read_text()) == said
    assert json.loads(group.read_text()) == document


@pytest.mark.long
def test_a_record_that_names_nothing(run):
    """A task that is recorded as done without output is reported and repeated."""
    forged = changed(run, written=[])
    Path(run / "mask.zarr/0/c/0/0/0").unlink()
    found = say("verify r", code=1)
    assert forged["box"] in found
    assert "the record of the task lists only 0 of the" in found
    mend(run, 1)


@pytest.mark.long
def test_a_record_of_another_spec(run):
    """Records of a spec that was changed meanwhile are found."""
    changed(run, spec="0" * 32)
    assert "other spec" in say("verify r", code=1)
    mend(run, 1)


@pytest.mark.long
def test_a_record_of_another_box(run):
    """A record that is about another box is none of its task."""
    changed(run, box="0-1_0-1_0-1")
    assert "not recorded" in say("verify r", code=1)
    mend(run, 1)


def test_a_record_does_not_open_other_files(run, tmp_path):
    """A path that is not an output of the step is reported, but not opened."""
    secret = tmp_path / "secret"
    secret.write_text("the text of another file" * 3210)
    inside = f"file://{run}/mask.zarr/../../{secret.name}"
    record = changed(run)
    changed(run, written=[*record["written"], [f"file://{secret}", 3, "00"], [inside, 3, "00"]])
    found = say("verify r", code=1)
    assert f"{secret} is not in an output of this step" in found
    without_paths = found.replace(str(tmp_path.parent), "")
    assert str(secret.stat().st_size) not in without_paths.replace(",", "")
    assert "the text of another file" not in found
    assert "2 findings" in found
    mend(run, 1)


def test_a_skipped_task_has_stored_nothing(run):
    """Where a task was skipped, nothing may lie where it would have stored."""
    record = changed(run)
    changed(run, state="skipped", written=[], reason="all zero")
    assert "is unexpected (nothing was recorded" in say("verify r", code=1)
    for url, _, _ in record["written"]:
        Path(url.removeprefix("file://")).unlink(missing_ok=True)
    say("verify r")


def test_a_page_of_a_complete_run_is_gone(run):
    """A worker does not call a run complete whose records are gone."""
    page(run).unlink()
    assert "no longer recorded; run chunkflow verify to list these" in work("work r", code=75)
    mend(run, 8)


def test_a_run_of_an_older_version(run):
    """Verify checks a run of an older version in part; other subcommands refuse it."""
    home = RunDirectory("r")
    said = json.loads((run / "r/spec.json").read_bytes())
    said["format"], said["version"] = "chunkflow run 1", "0.1.0"
    for stage in said["stages"]:
        del stage["outputs"]
    content = json.dumps(said, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    records = list(home.ledger(STAGE).records())
    (run / "r/spec.json").write_bytes(content)
    (run / "r/spec.sha256").unlink()  # which those runs have not
    shutil.rmtree(run / "r/ledger")
    loose = run / f"r/ledger/{STAGE}/loose/0"
    loose.mkdir(parents=True)
    for record in records:
        (loose / f"0.{record.number}.0.record").write_text(record.to_json())
    assert "8 of 8 tasks done" in say("status r")
    assert "recorded by an older version of chunkflow_py (0.1.0)" in say("verify r", code=1)
    Path(records[0].written[0].url.removeprefix("file://")).unlink()
    assert "is missing" in say("verify r", code=1)
    for line in ("work r", "repair r", "retry r --failed"):
        assert "made by chunkflow_py 0.1.0" in say(line, code=2)
