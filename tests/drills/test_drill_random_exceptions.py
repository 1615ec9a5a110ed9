"""Operators that fail in every way in which code can fail, on tasks drawn at random.

Whatever an operator does, the worker ends in time. A task that fails whatever is done is given up
with a reason, and no other task is. `verify` lists just these; when their cause is mended, `retry`
brings the run to a good end.
"""

import os
import random

import pytest
from rigs.variants import gate_runs

from drills import raising
from drills.damage_checker import wrong_output, wrong_records
from drills.damaged_runs import Run, box_slices, recipes
from drills.warm_program import WarmProgram

PATIENCE_S = 60
FIRST_SEED = int(os.environ.get("DRILL_SEED", "0"))
SAMPLE, MANY = 2, 60
UNEXPECTED = ("Traceback (most recent call last)", "add --debug")
CAP = 2  # failures after which a task is given up
WORKERS = 4  # one after the other: one that is short of memory stops


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was submitted."""
    folder = tmp_path_factory.mktemp("poison")
    program = WarmProgram(folder / "program", PATIENCE_S)
    yield Run(recipes()["poison"], folder / "run", program)
    program.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", gate_runs(range(SAMPLE), 0))
def test_some_exceptions(run, seed):
    """Every way to fail is an outcome; see above."""
    check(run, seed)


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SAMPLE, SAMPLE + MANY))
def test_many_exceptions(run, seed):
    """Every way to fail is an outcome; see above."""
    check(run, seed)


def draw(seed, tasks):
    """Return what tasks do, by number; and which of them fail whatever is done."""
    drawn = random.Random(f"exceptions-{FIRST_SEED + seed}")
    numbers = drawn.sample(range(tasks), 3)
    kinds = drawn.choices([raising.POISON, raising.PASSING, raising.DEAF], [8, 1, 1], k=3)
    acts = {}
    for number, kind in zip(numbers, kinds):
        act = drawn.choice(sorted(kind))
        is_once = kind is raising.PASSING or drawn.random() < 0.3
        acts[number] = f"{act}@1" if is_once else act
    dead = {n for n, act in acts.items() if "@" not in act and act in raising.POISON}
    return acts, dead, drawn


def check(run, seed):
    """Do it with one seed; fail with all that does not hold."""
    (step,) = run.recipe.steps
    acts, dead, drawn = draw(seed, len(step.tasks))
    run.restore()
    run.act(acts)
    found, history = [], []

    def note(ended, codes):
        history.append(ended)
        if ended.code not in codes:
            found.append(f"{ended.argv[0]} ended with {ended.code}, not {sorted(codes)}")
        if any(sign in ended.errors for sign in UNEXPECTED):
            found.append(f"{ended.argv[0]} has not expected this")
        return ended

    options = ("--max-failures", CAP, "--processes", drawn.choice([1, 1, 2]))
    end = 1 if dead else 0
    for _ in range(WORKERS):
        if note(run.work(*options), {end, 75}).code == end:
            break
    else:
        found.append(f"the run does not end in {WORKERS} workers")
    verified = note(run("verify", run.address), {end})
    note(run("status", run.address, "--failures"), {0})
    records = run.ledger(step).records()
    for task in step.tasks:
        said = records[task.number][1].said if task.number in records else {}
        if (said.get("state") == "dead") != (task.number in dead):
            found.append(f"task {task.number} is {said.get('state')}: {said.get('reason')}")
        if task.number in dead and not said.get("reason"):
            found.append(f"nobody says why task {task.number} was given up")
        if (task.number in dead) != any(task.box in line for line in lines(verified)):
            found.append(f"verify does not tell how task {task.number} ended")
    expected = run.expected(step)
    for number in dead:
        expected[box_slices(step.tasks[number])] = 0
    found += wrong_output(step.output, run.folder, expected, run.facts[step.name])
    run.act({})
    if dead:
        note(run("retry", run.address, "--failed"), {0})
        note(run.work(), {0})
    note(run("verify", run.address), {0})
    ledger = run.folder / "a.run" / "ledger" / step.name
    found += wrong_output(step.output, run.folder, run.expected(step), run.facts[step.name])
    found += wrong_records(ledger, step.tasks)
    assert not found, "\n".join([f"seed {FIRST_SEED + seed}: {acts}", *found, *map(str, history)])


def lines(verified):
    """Return what `verify` has found, in lines."""
    return verified.output.splitlines()
