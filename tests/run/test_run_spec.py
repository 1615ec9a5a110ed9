"""The two hashes of a run, and parsing of its spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chunkflow_py.cli import catalog
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.run.run_spec import NEWER, File, RunStep, Spec, differences, options_of


def stage(**changes):
    """Return a step with one operator."""
    said = {
        "name": "infer",
        "arguments": ("threshold", "-t", "0.5"),
        "source": ("generate-tasks",),
        "mip": 0,
        "options": (options_of("threshold", {"threshold": 0.5, "parallel": 4}),),
        "plan": {"kind": "grid"},
        "plan_sha256": "0" * 64,
        "tasks": 8,
    }
    return RunStep(**said | changes)


def spec(**changes):
    """Return a spec with one step."""
    said = {
        "steps": (stage(),),
        "queue": "sqs://q",
        "folder": "/",
        "version": "1",
        "reused": {},
    }
    return Spec(**said | changes)


@pytest.mark.parametrize(
    "change",
    [
        {"options": (options_of("threshold", {"threshold": 0.6}),)},
        {"plan": {"kind": "list"}},
        {"plan_sha256": "1" * 64},
        {"files": (File("net.py", "a" * 64, "code"),)},
        {"previous": "b"},
        {"mip": 1},
        {"device_class": "any"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_bytes_changes_the_hash(change):
    """A step that would store other bytes has another hash, and the reason is named."""
    assert stage(**change).hash != stage().hash
    assert differences(stage(), stage(**change))


def test_what_does_not_decide_bytes_does_not():
    """Saver threads, spelling, names and the package version do not change the hash."""
    options = (options_of("threshold", {"threshold": 0.5, "parallel": 1}),)
    other = stage(options=options, arguments=("threshold", "--threshold=0.5"), name="other")
    assert other.hash == stage().hash
    assert spec(version="2").hash == spec().hash


def test_the_digest_covers_every_byte():
    """Any change of the spec changes its digest."""
    for changed in (spec(version="2"), spec(queue="sqs://r"), spec(folder="/tmp")):
        assert changed.digest != spec().digest


def test_a_spec_is_read_as_it_was_written():
    """A parsed spec is equal to the original, and has the same bytes."""
    whole = spec(steps=(stage(files=(File("net.py", "a" * 64, "code"),), code=("net.py",)),))
    found = Spec.parse(whole.content)
    assert found.content == whole.content
    assert found.steps[0].hash == whole.steps[0].hash
    assert found.step("infer").files[0].key == f"files/{'a' * 64}/net.py"


def test_the_address_of_a_file_is_recorded_and_decides_nothing():
    """It is in the spec, not in the hash; the spec of a run without addresses has no such key."""
    local = File("net.py", "a" * 64, "code")
    fetched = replace(local, origin="https://host/net.py")
    one, other = (spec(steps=(stage(files=(file,)),)) for file in (local, fetched))
    assert one.hash == other.hash
    assert b"origin" not in one.content
    assert Spec.parse(other.content).steps[0].files == (fetched,)
    assert Spec.parse(other.content).content == other.content


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": "x"}', b"\xff", b'{"format"'])
def test_what_is_no_spec_is_refused(content):
    """Other content raises one clear error."""
    with pytest.raises(OptionError, match="spec|format"):
        Spec.parse(content)


def test_a_format_to_come_is_refused():
    """The spec of a later format is refused."""
    later = spec().content.replace(b"chunkflow run 2", b"chunkflow run 9")
    with pytest.raises(OptionError, match="chunkflow run 9"):
        Spec.parse(later)


def test_options_are_plain_values():
    """Positions and boxes are converted to JSON, so that hashes do not depend on classes."""
    assert options_of("x", {"size": Zyx(1, 2, 3)}) == ("x", {"size": [1, 2, 3]})


@pytest.mark.parametrize(("name", "key"), NEWER)
def test_newer_options_at_their_defaults_are_not_covered(name, key):
    """A run of an earlier version has the same hash; another value changes it and is named."""
    default = NEWER[name, key]
    older, same, other = (
        stage(options=(options_of(name, {"grid": "auto"} | more),))
        for more in ({}, {key: default}, {key: "another value"})
    )
    assert older.hash == same.hash != other.hash
    assert options_of("another-operator", {key: default})[1] == {key: default}
    option = f"{name} --{key.replace('_', '-')}"
    assert differences(older, other) == [f"{option} is another value, not {default}"]
    assert differences(other, older) == [f"{option} is {default}, not another value"]


def test_the_defaults_of_newer_options_are_those_of_the_commands():
    """Each option exists, and its default is the value that the hash leaves out."""
    for (name, key), default in NEWER.items():
        (option,) = [each for each in catalog.load(name).params if each.name == key]
        assert option.to_info_dict()["default"] == default


def test_an_unknown_stage_is_named():
    """The error lists the steps of the run."""
    with pytest.raises(OptionError, match="no step 'mesh'; its steps are infer"):
        spec().step("mesh")


def test_the_first_stage_is_the_one_that_is_not_taken_over():
    """The first step of a fork is the first that is not reused."""
    two = spec(steps=(stage(), replace(stage(), name="label")), reused={"infer": "file:///old"})
    assert two.first == "label"
