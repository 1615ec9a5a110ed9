"""`chunkflow plan`: what a line will take, and all that does not fit, without making anything."""

import json
from pathlib import Path

import pytest
from rigs.command_line import say

from chunkflow_py.pipeline.forecast import RESIDENT
from chunkflow_py.volume import open_volume

TASKS = "generate-tasks -v zarr://image.zarr --chunk-size 8 16 16"
LOAD = "load-zarr --store image.zarr"
NETWORK = "inference -f identity -s 8 16 16 -v 2 4 4 -c 1"
SAVE = "save-zarr --store out.zarr"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with an image of 16 x 64 x 64 voxels."""
    monkeypatch.chdir(tmp_path)
    image = "create-chunk --size 16 64 64 --pattern random"
    say(f"--quiet {image} save-zarr --store image.zarr --chunk-size 8 16 16")


def plan(line, options="", code=0):
    """Return the plan of the first step, as data."""
    _, brace, data = say(f"--quiet plan --json {options} {line}", code).partition("{")
    return json.loads(brace + data)["stages"][0]  # warnings stand before it


def test_a_line_is_told_by_a_rehearsal_that_leaves_nothing(tmp_path):
    """Memory, time and stored bytes are measured; there is nothing new in the folder."""
    output = say(f"--quiet plan {TASKS} {LOAD} -e auto gaussian-filter --sigma 1 {SAVE}")
    assert [path.name for path in tmp_path.iterdir()] == ["image.zarr"]
    for words in (
        "tasks        32 of 8 16 16",
        "times the voxels that tasks cover",
        "32 PUT requests, 1 a task",
        "(measured, at the peak of a pilot)",
        "tasks done on this machine, with output to a temporary folder",
        "stored (measured)",
    ):
        assert words in output
    assert output.rstrip().endswith("the run fits")


def test_several_processes_are_rehearsed_side_by_side():
    """The plan states the memory of a machine, the cost, and its assumptions."""
    options = "--machines 2 --processes 2 --instance g5.xlarge"
    found = plan(f"{TASKS} {LOAD} {SAVE}", options)
    assert found["machine_hours"] == pytest.approx(2 * found["duration"]["seconds"] / 3600)
    assert found["cost"]["parts"]["machines"] == pytest.approx(found["machine_hours"] * 1.006)
    assert found["spot"]["dollars"] < found["cost"]["dollars"]
    assert "g5.xlarge is assumed to be as fast as this machine (cpu)" in found["notes"]
    assert found["memory"]["bytes"] > 30e6


def test_quotas_are_part_of_a_plan():
    """A quota that is too small is a problem; other limits of services are stated."""
    options = "--no-rehearse --machines 20 --instance g5.xlarge --seconds-per-task 40"
    line = f"{TASKS} {LOAD} {SAVE}"
    found = plan(line, options)
    vcpus, messages = found["quotas"]
    assert (vcpus["amount"], vcpus["quota"], vcpus["is_exceeded"]) == (80, None, False)
    assert (messages["quota"], messages["is_exceeded"]) == (120_000, False)
    assert 20 <= messages["amount"] <= 20 * 8
    assert "quotas       80 vCPUs (g5.xlarge; your quota is not known)" in say(
        f"plan {options} {line}"
    )
    assert not plan(line, f"{options} --vcpu-quota 80")["misfits"]
    (problem,) = plan(line, f"{options} --vcpu-quota 63", code=2)["misfits"]
    assert problem.startswith("the run needs 80 of 63 vCPUs (--vcpu-quota); give --machines 15, or")
    assert "add --instance TYPE" in say(f"plan --no-rehearse --vcpu-quota 3 {line}", 2)
    assert plan(line, "--no-rehearse")["quotas"] == []


def test_every_misfit_is_told_at_once_with_what_fits():
    """Blocks, margins, missing files, places and memory: one run of plan names them all."""
    line = (
        "generate-tasks --roi-size 24 60 60 --chunk-size 8 20 20 "
        f"{LOAD} inference -f identity -s 8 16 16 -v 2 4 4 -c 1 {SAVE} --chunk-size 8 16 16 "
        "load-h5 -f nothing.h5 -o more save-zarr -i more --store image.zarr"
    )
    found = plan(line, "--no-rehearse --memory 20MB", code=2)
    said = "\n".join(found["misfits"])
    for words in (
        "nothing.h5 does not exist",
        "task sizes that work: (8, 16, 16) or (8, 32, 32)",
        "add --expand-margin-size auto",
        "which load-zarr reads",
        "9 of 27 tasks are outside the input volume, whose box is 0-16_0-64_0-64 (zyx, voxels); "
        "the nearest region inside is --roi-start 0 0 0 --roi-stop 16 64 64",
        "of memory, but a machine has 20.0 MB",
    ):
        assert words in said
    assert len(found["misfits"]) == len(set(found["misfits"])) >= 6
    assert not Path("out.zarr").exists()
    assert found["duration"] is None


@pytest.mark.parametrize(
    ("present", "patch", "overlap"),
    [("8 16 16", "8 16 16", "2 4 4"), ("8 48 48", "8 24 24", "4 6 6")],
)
def test_a_better_size_is_told_and_holds(present, patch, overlap):
    """The suggested size fits the outputs and has the stated amplification.

    Tasks of 48 voxels end beyond the volume; larger ones would lie outside of it.
    """
    network = f"inference -f identity -s {patch} -v {overlap} -c 1"
    line = f"{{}} {LOAD} -e auto {network} {SAVE} --chunk-size 8 16 16"
    tasks = "generate-tasks -v zarr://image.zarr"
    found = plan(line.format(f"{tasks} --chunk-size {present}"), "--no-rehearse")
    better = found["suggestion"]
    assert 1 <= better["amplification"] < better["instead_of"]
    assert better["instead_of"] == pytest.approx(found["patches"][0]["amplification"])
    assert any("not multiples of the patch stride" in note for note in found["notes"])
    size = " ".join(map(str, better["size"]))
    tasks = f"generate-tasks -v zarr://image.zarr --respect-stop --chunk-size {size}"
    again = plan(line.format(tasks), "--no-rehearse")
    assert again["misfits"] == []
    assert again["suggestion"] is None
    assert again["patches"][0]["amplification"] == pytest.approx(better["amplification"])


@pytest.mark.parametrize("processes", [1, 3, 4, 32])
def test_a_better_size_leaves_work_for_every_process(processes):
    """Fewer voxels computed are no gain where workers get no task."""
    line = f"{TASKS} {LOAD} -e auto {NETWORK} {SAVE} --chunk-size 8 16 16"
    better = plan(line, f"--no-rehearse --memory 1TB --processes {processes}")["suggestion"]
    tasks = 1
    for length, size in zip((16, 64, 64), better["size"] if better else (8, 16, 16), strict=True):
        tasks *= -(-length // size)
    assert tasks >= processes


def test_what_is_not_measured_is_not_said_to_fit():
    """Without a pilot run, the last line says that the memory of a network is unknown."""
    line = f"{TASKS} {LOAD} -e auto {NETWORK} {SAVE} --chunk-size 8 16 16"
    told = say(f"--quiet plan --no-rehearse --memory 8GB {line}").splitlines()[-1]
    assert told.startswith("no problem found, but the memory of inference is not")
    assert "--no-rehearse" in told
    line = f"{TASKS} {LOAD} {SAVE}"
    assert say(f"--quiet plan --no-rehearse {line}").splitlines()[-1] == "the run fits"


def test_too_little_memory_names_tasks_that_fit():
    """Filters have smaller tasks, in whole blocks; processes share what there is."""
    size = "-z 512 2048 2048 -d uint8 -s 8 8 8"
    say(f"--quiet create-volume -v zarr://huge.zarr {size} -b 64 64 64")
    line = (
        "generate-tasks -v zarr://huge.zarr --chunk-size 512 1024 1024 load-zarr --store huge.zarr "
        "-e auto gaussian-filter --sigma 1 save-zarr --store out.zarr --chunk-size 64 64 64"
    )
    options = "--no-rehearse --memory 4GB --processes 2"
    found = plan(line, options, code=2)
    (misfit,) = found["misfits"]
    assert "2 processes each need" in misfit
    assert "give --chunk-size" in misfit
    size = found["suggestion"]["size"]
    assert not any(length % 64 for length in size)
    again = plan(line.replace("512 1024 1024", " ".join(map(str, size))), "--no-rehearse")
    grown = again["memory"]["parts"][RESIDENT] - found["memory"]["parts"][RESIDENT]
    told = found["suggestion"]["memory_bytes"]
    assert again["memory"]["bytes"] - grown == pytest.approx(told, rel=0.15)
    assert told <= 2e9


def test_seconds_that_are_told_are_taken():
    """Given speeds and times replace the measured ones."""
    options = "--no-rehearse --seconds-per-task 90 --machines 4 --price 3"
    found = plan(f"{TASKS} {LOAD} {SAVE}", options)
    assert found["duration"]["seconds"] == 8 * 90
    assert found["duration"]["how"] == "from --seconds-per-task"
    assert found["cost"]["dollars"] == pytest.approx(4 * 720 / 3600 * 3)


def test_what_is_there_is_planned_as_it_is():
    """An output that exists decides blocks and type, and is not touched."""
    say(f"--quiet {TASKS} {LOAD} threshold --threshold 300 {SAVE} --chunk-size 4 8 8")
    before = open_volume("zarr://out.zarr")
    found = plan(f"{TASKS} {LOAD} threshold --threshold 10 {SAVE}")
    assert found["writes"][0]["requests"] == 2 * 2 * 2 * 32
    assert found["writes"][0]["unit"] == list(before.write_unit)
    assert not before.read(before.bounds).array.any()


def test_stages_are_planned_one_by_one():
    """A step may read a volume that an earlier step will create."""
    line = (
        f"{TASKS} {LOAD} threshold --threshold 10 {SAVE} then "
        "generate-tasks -v zarr://out.zarr -c 8 16 16 load-zarr --store out.zarr save-zarr -s b"
    )
    output = say(f"--quiet plan --no-rehearse {line}")
    assert "step threshold" in output
    assert "this step reads a volume that does not exist yet" in output
    assert "the run fits" in output


def test_only_tasks_that_are_made_are_counted():
    """A mask, or a part of the tasks, has its share of bytes, requests and patches."""
    line = f"{LOAD} -e auto {NETWORK} {SAVE}"
    whole = plan(f"{TASKS} {line}", "--no-rehearse")
    half = plan(f"{TASKS} --task-index-start 8 --task-index-stop 24 {line}", "--no-rehearse")
    assert (whole["tasks"], half["tasks"]) == (32, 16)
    for part, name in (("reads", "total_bytes"), ("reads", "requests"), ("reads", "volume_bytes"),
                       ("writes", "total_bytes"), ("writes", "requests"), ("patches", "computed"),
                       ("patches", "ideal")):  # fmt: skip
        assert half[part][0][name] == pytest.approx(whole[part][0][name] / 2, abs=1), (part, name)
    for part in ("reads", "patches"):
        assert half[part][0]["amplification"] == whole[part][0]["amplification"]
    assert half["suggestion"]["amplification"] == whole["suggestion"]["amplification"]


def test_tasks_that_are_not_made_may_lie_anywhere():
    """Only those that are made have to lie in the volume."""
    beyond = "generate-tasks --roi-size 16 64 128 --chunk-size 8 16 16"
    found = plan(f"{beyond} {LOAD} {SAVE}", "--no-rehearse", 2)
    assert found["misfits"][0].startswith("32 of 64 tasks are outside the input")
    found = plan(f"{beyond} --task-index-stop 4 {LOAD} {SAVE}", "--no-rehearse")
    assert found["misfits"] == []


def test_one_box_is_planned_like_many():
    """A pipeline on the box of create-bbox has a pilot run, too."""
    found = plan(f"create-bbox -s 0 0 0 -z 8 32 32 {LOAD} {SAVE}")
    assert (found["tasks"], found["task_size"], found["misfits"]) == (1, [8, 32, 32], [])
    assert "1 of 1 tasks done" in found["duration"]["how"]


def test_too_little_time_for_a_rehearsal_is_said():
    """What to change is its time: it was rehearsed."""
    found = plan(f"{TASKS} {LOAD} {SAVE}", "--seconds 0.01")
    (note,) = (note for note in found["notes"] if "duration is not known" in note)
    assert "the pilot ended after 0.01 s, so raise --seconds" in note


def test_a_line_without_tasks_is_one():
    """It reads its volume whole."""
    found = plan(f"{LOAD} threshold --threshold 10 save-h5 -f mask.h5", "--no-rehearse")
    assert (found["tasks"], found["task_size"]) == (1, [16, 64, 64])
    assert found["reads"][0]["amplification"] == 1
    assert found["misfits"] == []


def test_what_would_leave_marks_is_left_out():
    """Only savers whose place can be exchanged are rehearsed; the others are named."""
    found = plan(f"{TASKS} skip-task-by-file -p no_ {LOAD} save-h5 -f a_ mark-complete -p no_")
    assert found["duration"]["task_s"] > 0
    note = "the pilot run leaves these operators out, so the estimated time does not include them: "
    assert f"{note}skip-task-by-file, mark-complete" in found["notes"]
    assert [path.name for path in Path().iterdir()] == ["image.zarr"]


def test_a_task_that_fails_in_a_rehearsal_is_a_misfit():
    """Plan reports errors that the run would have."""
    Path("wrong.py").write_text("def execute(chunk):\n    raise ValueError('no such thing')\n")
    found = plan(f"{TASKS} {LOAD} plugin -f wrong.py -i chunk -o chunk {SAVE}", code=2)
    assert "no such thing" in found["misfits"][0]
    assert any(
        "the pilot failed, so correct this first, or give" in note for note in found["notes"]
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan", "there is no pipeline to plan"),
        (f"plan --instance g5.large {TASKS} {LOAD} {SAVE}", "similar ones are g5.xlarge"),
        (f"plan {LOAD} {TASKS} {SAVE}", "step 1 begins with load-zarr"),
        (
            f"plan submit --run r {TASKS} {LOAD} {SAVE}",
            "contains submit, which cannot be part of a pipeline",
        ),
        (f"plan fetch-task-from-sqs -q sqlite://q {LOAD} {SAVE}", "does not know all its tasks"),
    ],
)
def test_what_cannot_be_planned_is_said(line, message):
    """Each ends with 2 and says what to change."""
    assert message in say(f"--quiet {line}", 2)


def test_what_does_not_fit_here_may_fit_elsewhere():
    """A pipeline that does not fit this machine is planned for a larger one."""
    size = "-z 8192 8192 8192 -d uint8 -s 8 8 8"
    say(f"--quiet create-volume -v zarr://huge.zarr {size} -b 64 64 64")
    tasks = "generate-tasks -v zarr://huge.zarr --chunk-size 8192 4096 4096"
    line = f"{tasks} load-zarr --store huge.zarr threshold --threshold 9 {SAVE}"
    found = plan(line, "--memory 100TB")
    assert any("does not fit on this machine" in note for note in found["notes"])
    assert found["memory"]["how"] == "estimated"
    assert "of memory, but a machine has" in plan(line, "--no-rehearse", code=2)["misfits"][0]
