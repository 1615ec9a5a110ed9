"""The run directory: created once, protected by its digest, and read by workers."""

from __future__ import annotations

import json

import pytest

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.run_directory import ProfileError, RunDirectory
from chunkflow_py.run.run_spec import File, RunStep, Spec, sha256_of
from chunkflow_py.tasks.task_plan import GridPlan

PLAN = GridPlan(BoxGrid.covering(BoundingBox.parse("0-8_0-8_0-8"), Zyx(4, 4, 4)))
PROFILE = {"torch": "2", "threads": "4"}


def spec_of(tmp_path, **changes):
    """Return spec, plans and files of a small run."""
    path = tmp_path / "net.py"
    path.write_text("x = 1")
    file = File("net.py", sha256_of(path.read_bytes()), "code")
    said, content = PLAN.to_json()
    stage = RunStep(
        name="infer", arguments=("inference", "-m", file.placeholder), source=(), mip=0, options=(),
        plan=said, plan_sha256=sha256_of(content), tasks=len(PLAN), files=(file,), **changes,
    )  # fmt: skip
    return Spec((stage,), "sqlite:///q", "/", "1", {}), {"infer": content}, {file: path}


@pytest.fixture
def home(tmp_path):
    """Return the directory of a run with one step."""
    home = RunDirectory(str(tmp_path / "run"))
    assert home.create(*spec_of(tmp_path))
    return RunDirectory(home.url)


def test_a_run_is_found_by_its_address(home):
    """The address with the digest opens the run; plan and files are returned unchanged."""
    again = RunDirectory.parse(home.address)
    assert again.spec.content == home.spec.content
    assert RunDirectory.parse(f"{home.url}/#sha256={home.spec.digest}").spec.steps
    assert [again.plan("infer").region(k) for k in again.plan("infer")] == [
        PLAN.region(k) for k in PLAN
    ]


def test_the_same_run_twice_is_one(home, tmp_path):
    """Creating the same run again returns the existing run, which is not new."""
    assert not RunDirectory(home.url).create(*spec_of(tmp_path))


def test_another_run_at_the_same_place_is_refused(home, tmp_path):
    """The error names the differences, and the existing run does not change."""
    before = home.store.get("spec.json")
    with pytest.raises(OptionError, match="device-class differs.*--fork"):
        RunDirectory(home.url).create(*spec_of(tmp_path, device_class="any"))
    assert home.store.get("spec.json") == before


def test_a_changed_spec_is_refused(home):
    """An attacker who can write to the bucket cannot change what workers execute."""
    address = home.address
    home.store.put("spec.json", home.spec.content.replace(b"inference", b"plugin"))
    with pytest.raises(OptionError, match="not the spec that was submitted"):
        _ = RunDirectory.parse(address).spec


def test_an_edited_spec_is_refused_without_a_pin(home):
    """An accidental edit of the spec is detected, so that all tasks use one threshold."""
    edited = home.spec.content.replace(b"inference", b"plugin")
    home.store.put("spec.json", edited)
    with pytest.raises(OptionError, match=r"spec\.json has the SHA-256 .* was submitted; find out"):
        _ = RunDirectory(home.url).spec


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 99, b"{}{}"])
def test_what_is_no_spec_is_named(home, content):
    """The error names the file, with and without a stored SHA-256."""
    home.store.put("spec.json", content)
    with pytest.raises(OptionError, match=r"spec\.json has the SHA-256"):
        _ = RunDirectory(home.url).spec
    home.store.delete("spec.sha256")
    with pytest.raises(OptionError, match=r"spec\.json: "):
        _ = RunDirectory(home.url).spec


def test_without_the_pin_a_changed_spec_would_run(home, monkeypatch):
    """Without the safeguard of the test above, the changed spec is accepted."""
    monkeypatch.setattr(
        "chunkflow_py.run.run_directory.removed", lambda name: name == "pinned-spec"
    )
    address = home.address
    home.store.put("spec.json", home.spec.content.replace(b"inference", b"plugin"))
    assert RunDirectory.parse(address).spec.steps[0].arguments[0] == "plugin"


def test_a_changed_plan_is_refused(tmp_path):
    """The spec has the SHA-256 of the plan."""
    home = RunDirectory(str(tmp_path / "run"))
    home.create(*spec_of(tmp_path))
    home.store.put("plan/infer", b"other")
    with pytest.raises(OptionError, match="not the plan"):
        RunDirectory(home.url).plan("infer")


def test_a_changed_file_is_refused(home, monkeypatch, tmp_path):
    """Code runs only if its SHA-256 is in the spec, in the store and in the local cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (file,) = home.spec.steps[0].files
    path = home.fetch(file)
    assert path.read_text() == "x = 1"
    path.write_text("evil()")
    assert home.fetch(file).read_text() == "x = 1"
    path.unlink()
    home.store.put(file.key, b"evil()")
    with pytest.raises(OptionError, match="not the file that was submitted"):
        home.fetch(file)
    home.store.delete(file.key)
    with pytest.raises(OptionError, match="is missing"):
        home.fetch(file)


def test_no_run_says_how_to_make_one(tmp_path):
    """The error for a wrong address says how to create a run."""
    with pytest.raises(OptionError, match="no run at.*submit"):
        _ = RunDirectory.parse(str(tmp_path / "none")).spec
    with pytest.raises(OptionError, match="must be sha256="):
        RunDirectory.parse("s3://bucket/run#md5=1")


def test_a_store_that_overwrites_is_refused(tmp_path):
    """Put-if-absent is tested before records depend on it; the test object is deleted."""
    home = RunDirectory(str(tmp_path / "run"))
    home.check_store()
    assert list(home.store.list()) == []

    class Overwriting(type(home.store)):
        def put_if_absent(self, key, data):
            self.put(key, data)
            return True

    home.store = Overwriting(str(tmp_path / "other"))
    with pytest.raises(VolumeError, match="put-if-absent"):
        home.check_store()


def test_the_first_worker_sets_the_profile(home):
    """A machine with another profile is refused; the error names the differences."""
    home.check_profile("infer", None)
    home.check_profile("infer", PROFILE)
    RunDirectory(home.url).check_profile("infer", dict(PROFILE))
    with pytest.raises(ProfileError, match="threads is 8, not 4"):
        RunDirectory(home.url).check_profile("infer", PROFILE | {"threads": "8"})


def test_a_mixed_fleet_has_no_profile(tmp_path):
    """With --device-class any, every profile is accepted."""
    home = RunDirectory(str(tmp_path / "run"))
    home.create(*spec_of(tmp_path, device_class="any"))
    home.check_profile("infer", PROFILE)
    home.check_profile("infer", PROFILE | {"threads": "8"})


def test_a_stage_closes_and_opens_again(home):
    """The current step is the first one that is not closed."""
    assert home.current_step() == "infer"
    home.ledger("infer").record([Record(3, "box", "done", "5bec", "a", "w")])
    home.close("infer")
    assert home.current_step() is None
    assert home.counts("infer").done == 1
    home.ledger("infer").reopen([3])
    assert home.counts("infer").done == 0, "what is counted is what is recorded now"
    home.reopen("infer")
    assert home.counts("infer").done == 0
    assert home.current_step() == "infer"
    assert not home.is_sent("infer")
    home.set_sent("infer", 8)
    assert json.loads(home.store.get("stages/infer/sent")) == {"tasks": 8}


@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_a_store_that_cannot_be_written_says_so(s3):
    """The error names the failed write, not the failed deletion of the test object."""
    with pytest.raises(VolumeError, match="cannot write .*no-such-bucket"):
        RunDirectory("s3://no-such-bucket/run").check_store()
