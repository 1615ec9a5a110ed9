"""Runs that are damaged at random: `verify` never says that all is well where something is wrong.

Three things must hold, whatever was done to a run:

* **No false success**: where `verify` exits with 0, the outputs are those that NumPy makes of the
  input, the metadata mean what they should to other programs, and each task has a record.
* **No false alarm**: what harms nothing changes nothing of what `verify` says.
* **It goes on**: every command ends in time, with a documented exit code and without a traceback;
  `repair` and `work` bring the run to a good end. Where something is in the way that nobody may
  remove unasked, a message names it, and the run goes on when it is gone.

`DRILL_SEED` draws other damages than the ones that are always drawn.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rigs.variants import gate_runs

from drills.damage_checker import wrong_output, wrong_records
from drills.damaged_runs import Run, recipes
from drills.damages import DAMAGES, Site, damage_at_random
from drills.warm_program import WarmProgram

PATIENCE_S = 90  # of a command; machines that run drills are busy
CODES = {
    "verify": {0, 1},
    "status": {0, 1},
    "repair": {0, 1},
    "retry": {0, 1},
    "work": {0, 1, 2, 75},
}
FIRST_SEED = int(os.environ.get("DRILL_SEED", "0"))
SAMPLE, MANY = 1, 36  # damaged runs of a recipe
UNEXPECTED = ("Traceback (most recent call last)", "add --debug")
NO_START = 70, "has failed to start"  # exit code where the output cannot be opened, and why
ROUNDS = 3  # of repair, work and verify
RECIPES = {name: recipe for name, recipe in recipes().items() if recipe.rounds}


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """Return what makes the run of a recipe, once."""
    folder = tmp_path_factory.mktemp("damaged")
    program = WarmProgram(folder / "program", PATIENCE_S)
    made = {}

    def make(name):
        if name not in made:
            made[name] = Run(RECIPES[name], folder / name, program)
        return made[name]

    yield make
    program.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", gate_runs(RECIPES, "precomputed-shards", "steps"))
def test_some_damages(make_run, name):
    """No false success, no false alarm, and it goes on; see above."""
    check(make_run(name), range(SAMPLE))


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_many_damages(make_run, name):
    """No false success, no false alarm, and it goes on; see above."""
    check(make_run(name), range(SAMPLE, SAMPLE + MANY))


def test_the_checker_is_independent():
    """The checker and what it reads ledgers with share no code with the package."""
    names = "drills.damage_checker, drills.ledger_bytes"
    program = f"import {names}, sys; sys.exit('chunkflow_py' in sys.modules)"
    folder = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


def test_there_are_enough():
    """A pass of all drills damages at least 500 runs."""
    assert len(RECIPES) * MANY >= 500


def check(run, numbers):
    """Damage a run again and again; fail with all that does not hold."""
    found = []
    for number in numbers:
        drill = DamagedRun(run, f"{run.recipe.name}-{FIRST_SEED + number}")
        found += drill.findings()
    assert not found, f"{len(found)} findings\n" + "\n".join(found)


# --- a drill that cannot fail proves nothing ------------------------------------------------------

VERIFY, REPAIR = "chunkflow_py.run.verify", "chunkflow_py.run.repair"
DOCUMENTS, RECORD = "chunkflow_py.run.metadata_documents", "chunkflow_py.run.ledger.ledger_record"
# What of the package is removed, in which module; recipe and damages by which it is noticed.
#
# Not here is what another safeguard makes up for, so that removing it alone deceives nobody: the
# length of an object (its checksum covers it), objects that are no outputs (those that are must be
# there as well), the checksum of a page's body (`verify` reads the lines, each with its own).
SAFEGUARDS = {
    "every task needs a record": (
        VERIFY, "if not recorded[number >> 3] >> (number & 7) & 1:", "if False:",
        "zarr", ("record_and_blocks_lost", "page_lines_removed"),
    ),
    "a failed task is no success": (
        VERIFY, 'yield Damage(record.number, record.box, "failed", record.reason or "")', "pass",
        "dead", ("stray_names",),
    ),
    "a record is of the task's box": (
        VERIFY, "if record.box != str(self._plan.region(number)):", "if False:",
        "loose", ("forged_another_box",),
    ),
    "a record is of the run's spec": (
        VERIFY, "if self._spec is not None and record.spec != self._spec:", "if False:",
        "zarr", ("spec_replaced",),
    ),
    "a record covers the box": (
        VERIFY, 'if record.state == "done" and absent:', "if False:",
        "zarr", ("forged_without_objects", "forged_fewer_objects"),
    ),
    "nothing lies where a task was skipped": (
        VERIFY, 'elif record.state == "skipped" and not self._coverage.skips_stored:',
        "elif False:", "skips", ("block_unexpected",),
    ),
    "nothing lies where nothing was stored": (
        VERIFY, 'return "unexpected", f"nothing', 'return None and f"nothing',
        "zarr", ("block_unexpected",),
    ),
    "objects are there": (
        VERIFY, 'return "missing", f"{recorded.size}', 'return None and f"{recorded.size}',
        "precomputed", ("block_deleted",),
    ),
    "objects have their checksum": (
        VERIFY, "if recorded.checksum is not None and found.checksum != recorded.checksum:",
        "if False:", "shards", ("block_bytes", "block_swap"),
    ),
    "metadata is compared": (
        VERIFY, 'yield Damage(None, "", "metadata", reason, url)', "pass",
        "zarr2", ("metadata_value", "metadata_removed", "metadata_deleted"),
    ),
    "metadata has each field": (
        DOCUMENTS, 'return f"{where} is missing"', "continue", "zarr", ("metadata_removed",),
    ),
    "metadata has each value": (
        DOCUMENTS, "type(recorded) is type(current) and recorded == current", "True",
        "precomputed", ("metadata_value",),
    ),
    "lines of the ledger are sealed": (
        RECORD, "if not tab or seal !=", "if seal is None and seal !=",
        "loose", ("ledger_bytes",),
    ),
}  # fmt: skip
TRIES = 30

MUTATION = """
import importlib.machinery, sys
for name in [name for name in sys.modules if name.split(".")[0] == "chunkflow_py"]:
    del sys.modules[name]
class Loader(importlib.machinery.SourceFileLoader):
    original = importlib.machinery.SourceFileLoader.get_code
def get_code(loader, name):
    if name != {module!r}:
        return Loader.original(loader, name)
    source = loader.get_data(loader.path).decode()
    assert source.count({old!r}) == 1, "the safeguard is not where it was"
    return compile(source.replace({old!r}, {new!r}), loader.path, "exec", dont_inherit=True)
importlib.machinery.SourceFileLoader.get_code = get_code
"""


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SAFEGUARDS)
def test_without_a_safeguard(make_run, name):
    """Without any of the things that `verify` compares, the drill meets a false success."""
    module, old, new, recipe, damages = SAFEGUARDS[name]
    mutation = MUTATION.format(module=module, old=old, new=new)
    run = make_run(recipe)
    for number in range(TRIES):
        drill = DamagedRun(run, f"{name}-{number}", damages, mutation)
        if drill.verify().code == 0 and drill.found:
            assert drill.found[0].startswith("FALSE SUCCESS")
            return
        assert "Traceback" not in drill.history[-1].text, drill.history[-1]
    pytest.fail(f"{TRIES} damaged runs, and not one false success")


class HungError(Exception):
    """A command did not end; there is no use in waiting for the next ones."""


class DamagedRun:
    """A run that is restored, damaged, and brought to a good end.

    Args:
        run: that is damaged.
        seed: of the damages.
        only: names of damages to draw from; all by default.
        mutation: statements that are executed before each command.
    """

    def __init__(self, run, seed, only=None, mutation=""):
        self.run, self.seed, self.mutation = run, seed, mutation
        run.restore()
        self.site = Site(run, seed)
        count = 1 if only else self.site.random.randint(1, 4)
        self.done = damage_at_random(self.site, count, only)
        self.history, self.found = [], []

    def findings(self):
        """Do all of it; return what does not hold, with all that was done."""
        with suppress(HungError):
            self.drill()
        return self.story() if self.found else []

    def drill(self):
        """Verify, look, work, repair, until all is well again."""
        is_harmless = all(DAMAGES[name].harmless for name, _ in self.done)
        first = self.verify()
        if is_harmless and (first.code, first.output) != self.run.verified[1:3]:
            self.found.append("FALSE ALARM: nothing was damaged")
        self.call("status", *self.site.random.choice([(), ("--json",), ("--failures",)]))
        if self.site.random.random() < 0.2:
            self.work()
            self.verify()
        self.converge()

    def converge(self):
        """Repair and work until `verify` has nothing to say, and mend by hand what it names."""
        while not self.is_mended():
            if not self.site.blocking:
                self.found.append(f"NO GOOD END after {ROUNDS} repairs")
                return
            self.mend_by_hand()
            self.verify()
        if self.run.recipe.dead and not self.found:
            self.run.act({})
            if self.call("retry", "--failed").code and self.site.blocking:
                self.mend_by_hand()
                self.call("repair")
                self.call("retry", "--failed")
            self.work()
            if self.verify().code:
                self.found.append("NO GOOD END after the cause of failures was mended")

    def mend_by_hand(self):
        """Put back what is in the way of every command, once a command has named it."""
        named = [path for path in self.site.blocking if self.is_named(path)]
        if not named:
            self.found.append(f"NOT NAMED: any of {self.site.blocking}, which is in the way")
        for path in named or self.site.blocking[:]:
            self.run.heal(path)
            self.site.blocking.remove(path)

    def is_mended(self):
        """Repair and work; return whether there is nothing left to do."""
        for _ in range(ROUNDS):
            if self.is_good():
                return True
            is_given_up = self.failed() > len(self.run.recipe.dead)
            self.call("repair")
            if is_given_up:
                self.call("retry", "--failed")
            self.work()
            self.verify()
        return self.is_good()

    def is_good(self):
        """Return whether `verify` has found nothing, but for tasks that cannot be done."""
        ended = self.history[-1]
        if ended.argv[0] != "verify":
            return False
        is_all = self.failed() == len(ended.output.splitlines()) == len(self.run.recipe.dead) > 0
        return ended.code == 0 or (ended.code == 1 and is_all)

    def failed(self):
        """Return how many tasks have failed for good, by what was verified last."""
        return sum(": failed (" in line for line in self.history[-1].output.splitlines())

    def is_named(self, path):
        """Return whether a command that has failed named a path."""
        names = {str(path), str(path.relative_to(self.run.folder))}
        names |= {self.run.address} if path.stem == "spec" else set()
        return any(e.code and any(name in e.text for name in names) for e in self.history)

    # --- commands ---------------------------------------------------------------------------------

    def verify(self):
        """Verify, and look by other means if it says that all is well."""
        ended = self.call("verify")
        if ended.code == 0:
            self.found += [f"FALSE SUCCESS: {what}" for what in self.wrong()]
        return ended

    def work(self):
        """Start a worker, and wait for its end."""
        return self.note(self.run.work(mutation=self.mutation))

    def call(self, verb, *options):
        """Run a command on the run."""
        return self.note(self.run(verb, self.run.address, *options, mutation=self.mutation))

    def note(self, ended):
        """Keep what a command has left; see whether it has ended as it should."""
        verb = ended.argv[0]
        self.history.append(ended)
        if ended.code is None:
            self.found.append(f"HANG: {verb} did not end within {PATIENCE_S} s")
            raise HungError
        is_known = ended.code in CODES[verb] or (
            ended.code == NO_START[0] and NO_START[1] in ended.errors
        )
        if not is_known and not (ended.code == 2 and self.site.blocking):
            self.found.append(f"EXIT CODE: {verb} ended with {ended.code}")
        if any(sign in ended.errors for sign in UNEXPECTED):
            self.found.append(f"UNEXPECTED: {verb}: {ended.text[-400:]}")
        return ended

    # --- what is so -------------------------------------------------------------------------------

    def wrong(self):
        """Yield what is wrong with the run, as other programs see it."""
        for step in self.run.recipe.steps:
            yield from wrong_output(
                step.output, self.run.folder, self.run.expected(step), self.run.facts[step.name]
            )
            folder = self.run.folder / "a.run" / "ledger" / step.name
            yield from wrong_records(folder, step.tasks)

    def story(self):
        """Return the findings, and all that led to them."""
        damages = [f"  {name}: {what}" for name, what in self.done]
        commands = [str(ended) for ended in self.history]
        return [f"=== seed {self.seed}", *self.found, *damages, *commands]
