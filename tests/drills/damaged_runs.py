"""Small runs of many kinds, made by the real command line, that can be damaged again and again.

```
Recipe -- submit, work --> folder with input, run, queue, outputs -- copied --> restored in place
```

The region is cut into eight tasks. Nothing is stored of a block of task 2, which is dark, and of
the whole of task 5, which is zero.
"""

import json
import shutil
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drills.damage_checker import Output, Task, contents
from drills.ledger_bytes import LedgerFiles

TASK = (8, 16, 16)
COUNT = (2, 2, 2)
BLOCK = (4, 16, 16)
SHAPE = (24, 48, 48)  # of the input, around the region
CORNER = (8, 16, 16)  # of the region
THRESHOLD = 100
POISON = Path(__file__).parent / "raising.py"
WORKER = ("--threads", 1, "--lease", 3, "--worker-name", "drill")


class Step(NamedTuple):
    """A step of a run.

    Attributes:
        name: of it.
        tasks: that it has.
        output: that it writes.
        compute: input voxels of the run, and the threshold -> voxels of the region.
    """

    name: str
    tasks: tuple
    output: Output
    compute: object


@dataclass
class Recipe:
    """How a run is made.

    Attributes:
        name: of the recipe.
        steps: of the run, in order.
        make: folder -> nothing; makes what the command line needs to be there.
        commands: of the command line, before `work`.
        rounds: arguments of each `work`, one after the other.
        dead: numbers of tasks that fail whatever is done.
        skips: whether tasks without signal are recorded as skipped.
        loose: whether the records are as they were before they were folded.
    """

    name: str
    steps: tuple
    commands: tuple
    make: object = None
    rounds: tuple = ((),)
    dead: tuple = ()
    skips: bool = False
    loose: bool = False
    variables: dict = field(default_factory=dict)


def region(corner=CORNER, count=COUNT, size=TASK):
    """Return the tasks of a grid, and the options of generate-tasks that make it."""
    tasks = []
    for number, cell in enumerate(product(*map(range, count))):
        start = tuple(c + i * n for c, i, n in zip(corner, cell, size))
        tasks.append(Task(number, start, tuple(np.add(start, size).tolist())))
    extent = np.multiply(count, size).tolist()
    words = ("generate-tasks", "--roi-start", *corner, "--roi-size", *extent, "--chunk-size", *size)
    return tuple(tasks), words


def voxels():
    """Return the input: random, but for a block of task 2 that is dark and task 5 that is zero."""
    array = np.random.default_rng(5).integers(1, 255, SHAPE, np.uint8)
    tasks, _ = region()
    dark = box_slices(tasks[2])
    array[dark][: BLOCK[0]] %= 50
    array[box_slices(tasks[5])] = 0
    return array


def box_slices(task, corner=(0, 0, 0)):
    """Return where the voxels of a task are in an array that begins at a corner."""
    return tuple(slice(a - c, b - c) for a, b, c in zip(task.start, task.stop, corner))


def above(array, threshold):
    """Return what `threshold` makes of voxels."""
    return (array > threshold).astype(np.uint8)


def make_zarr(folder):
    """Write the input as a zarr array."""
    import zarr

    array = zarr.create_array(str(folder / "in.zarr"), shape=SHAPE, chunks=TASK, dtype="u1")
    array[:] = voxels()


def make_n5(folder):
    """Write the input as an N5 array."""
    import tensorstore

    tensorstore.open(
        {"driver": "n5", "kvstore": f"file://{folder}/in.n5",
         "metadata": {"compression": {"type": "gzip"}, "dataType": "uint8",
                      "dimensions": SHAPE[::-1], "blockSize": TASK[::-1]}},
        create=True, context=tensorstore.Context(),
    ).result().write(voxels().T).result()  # fmt: skip


class Run:
    """A run of which there is a copy, and which can be restored from it.

    Args:
        recipe: by which it was made.
        folder: in which all of it is.
        program: runs commands.

    Attributes:
        facts: what the metadata of each output mean, as other programs read them, by step.
        verified: what `verify` says before anything is damaged.
    """

    def __init__(self, recipe, folder, program):
        """Make it."""
        self.recipe, self.folder, self._program = recipe, Path(folder), program
        self.kept = self.folder.with_name(f"{self.folder.name}.kept")
        self.folder.mkdir(parents=True)
        (recipe.make or make_zarr)(self.folder)
        self.act({})
        for command in recipe.commands:
            ended = self(*command)
            assert ended.code == 0, ended
        if recipe.dead:
            self.act(dict.fromkeys(recipe.dead, "raise"))
        self.is_complete = False
        for options in recipe.rounds:
            ended = self.work(*options)
            assert ended.code in (0, 1, 75), ended
            self.is_complete = ended.code == (1 if recipe.dead else 0)
        if recipe.loose:
            for step in recipe.steps:
                self.ledger(step).unfold()
        self.facts = {}
        for step in recipe.steps:
            # of files one a task there are as many as tasks that have ended
            found, facts = contents(step.output, self.folder)
            self.facts[step.name] = facts
            if self.is_complete:
                assert (found == self.expected(step)).all() or recipe.dead, step.name
        self.verified = self("verify", self.address)
        assert self.verified.code == (0 if self.is_complete and not recipe.dead else 1)
        shutil.copytree(self.folder, self.kept)

    def __call__(self, *argv, mutation=""):
        """Run a command in the folder."""
        return self._program(*argv, cwd=self.folder, mutation=mutation)

    @property
    def address(self):
        """Of the run, not pinned: whoever can write there can change what is done."""
        return str(self.folder / "a.run")

    def work(self, *options, mutation=""):
        """Start a worker, and wait for its end."""
        failures = ("--max-failures", 1) if self.recipe.dead else ()
        return self("work", self.address, *WORKER, *failures, *options, mutation=mutation)

    def act(self, acts):
        """Say what tasks do from now on, by number; see `raising`."""
        tasks = self.recipe.steps[0].tasks
        said = {",".join(map(str, tasks[number].start)): act for number, act in acts.items()}
        (self.folder / "acts.json").write_text(json.dumps(said))

    def restore(self):
        """Bring back all as it was."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)

    def heal(self, path):
        """Bring back one file or folder as it was, or remove what was not there."""
        kept = self.kept / Path(path).relative_to(self.folder)
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)
        if kept.is_dir():
            shutil.copytree(kept, path)
        elif kept.exists():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, path)

    def ledger(self, step):
        """Return the files of the ledger of a step."""
        return LedgerFiles(self.folder / "a.run" / "ledger" / step.name)

    def threshold(self):
        """Return by what workers of the spec as it is now separate dark from bright."""
        spec = json.loads((self.folder / "a.run" / "spec.json").read_bytes())
        words = spec["stages"][-1]["words"]
        return float(words[words.index("--threshold") + 1])

    def expected(self, step):
        """Return the voxels of a step's output, in its own box."""
        whole = np.zeros(SHAPE, np.uint8)
        computed = step.compute(voxels(), self.threshold())
        for task in step.tasks:
            whole[box_slices(task)] = computed[box_slices(task)]
        return whole[self.box_of(step.output)]

    def box_of(self, output):
        """Return where an output is in the input."""
        shape = SHAPE if output.corner == (0, 0, 0) else np.multiply(COUNT, TASK)
        return tuple(slice(c, c + int(n)) for c, n in zip(output.corner, shape))


# --- the recipes ----------------------------------------------------------------------------------

TASKS, GENERATE = region()
LOAD = ("load-zarr", "--store", "in.zarr")
CUT = ("threshold", "--threshold", THRESHOLD)
SUBMIT = ("submit", "--run", "a.run", "--no-rehearse")
KIND = ("-d", "uint8", "-s", 40, 4, 4, "-t", "segmentation")
WHOLE = ("-z", *SHAPE, *KIND)
PART = ("-z", *np.multiply(COUNT, TASK).tolist(), "-o", *CORNER, *KIND)


def _threshold(array, threshold):
    return above(array, threshold)


def _of_inverse(array, threshold):
    return above(255 - array, threshold)


def _inverse(array, _):
    return 255 - array


def _one(name, output, create, save=None, **more):
    """Return a recipe of one step."""
    load, middle = more.pop("load", LOAD), more.pop("middle", CUT)
    source, tasks = more.pop("source", GENERATE), more.pop("tasks", TASKS)
    options = more.pop("options", ())
    save = save or ("save-volume", "-v", output.place)
    steps = (Step("cut", tasks, output, _threshold),)
    line = (*SUBMIT, "--stage", "cut", *options, *source, *load, *middle, *save)
    commands = (("create-volume", *create), line) if create else (line,)
    return Recipe(name, steps, commands, **more)


def _two(name, **more):
    """Return a recipe of two steps, of which the second reads what the first has made."""
    big, generate_big = region(count=(1, 1, 2), size=(16, 32, 16))
    steps = (
        Step("turn", TASKS, Output("zarr", "one.zarr"), _inverse),
        Step("cut", big, Output("precomputed", "out", CORNER), _of_inverse),
    )
    image = ("-z", *SHAPE, "-d", "uint8", "-s", 40, 4, 4, "-t", "image")
    commands = (
        ("create-volume", "-v", "zarr://one.zarr", *image, "-b", *BLOCK),
        ("create-volume", "-v", "precomputed://file://out", *PART, "-b", *BLOCK),
        (*SUBMIT, "--stage", "turn", *GENERATE, *LOAD, "inverse", "save-zarr", "-s", "one.zarr",
         "then", "--stage", "cut", *generate_big, "load-zarr", "--store", "one.zarr", *CUT,
         "save-volume", "-v", "out"),
    )  # fmt: skip
    return Recipe(name, steps, commands, **more)


def recipes():
    """Return all recipes, by name."""
    zarr = Output("zarr", "out.zarr")
    cut = Output("zarr", "out.zarr", CORNER)
    shards = cut._replace(blocks=TASK)
    pre = Output("precomputed", "out", CORNER)
    make = ("-v", "zarr://out.zarr", *WHOLE, "-b", *BLOCK)
    poison = ("plugin", "-f", POISON, "-i", "chunk", "--args", "acts=acts.json;log=log")
    boxes = ("generate-tasks", "--bbox-file", "boxes.csv")
    half = (("--max-tasks", 3),)
    found = (
        _one("zarr", zarr, make),
        _one("loose", zarr, make, loose=True),
        _one("half", zarr, make, rounds=half),
        _one("zarr2", zarr, (*make, "--ome-version", "0.4")),
        _one("shards", shards, ("-v", "zarr://out.zarr", *PART, "-b", 4, 8, 8,
                                "--shard-size", *TASK)),
        _one("precomputed", pre, ("-v", "precomputed://file://out", *PART, "-b", *BLOCK)),
        _one("precomputed-shards", pre, ("-v", "precomputed://file://out", *PART, "-b", 4, 8, 8,
                                         "--shard-size", *TASK)),
        _one("files", Output("files", "out", CORNER), (), ("save-h5", "-f", "out/f_")),
        _one("from-n5", zarr, make, load=("load-volume", "-v", "in.n5"), make=make_n5,
             loose=True),
        _one("skips", zarr, make, middle=("skip-all-zero", *CUT), skips=True),
        _one("dead", zarr, make, middle=(*poison, *CUT), dead=(3,)),
        _one("poison", zarr, make, middle=(*poison, *CUT), rounds=()),
        _one("mixed", zarr, make, options=("--device-class", "any")),
        _one("listed", zarr, make, source=boxes, make=_make_boxes),
        _two("steps"),
        _two("half-steps", rounds=(("--max-tasks", 9),)),
    )  # fmt: skip
    return {recipe.name: recipe for recipe in found}


def _make_boxes(folder):
    """Write the input and the boxes of the tasks."""
    make_zarr(folder)
    (folder / "boxes.csv").write_text("".join(f"{task.box}\n" for task in TASKS))
