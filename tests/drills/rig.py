"""A real run by the real command line, and workers that a drill kills, stops and starts again.

```
input (random voxels) -- load-volume, poison, threshold, save-volume --> output
                              |
                              log: a line for each time that a task was computed
```

A task is a box of 8 x 16 x 16 voxels, and writes two blocks. The drill says where run, queue and
output are, so that the same drill runs on files and on emulators of a cloud.
"""

import json
import random
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.submit import bodies
from chunkflow_py.volume import open_volume
from drills.worker import PROGRAM, Worker, environment

TASK = (8, 16, 16)
BLOCK = (4, 16, 16)
SMALL_BLOCK = (1, 16, 16)  # more of a task than are written at the same time
LARGEST = (20, 10, 10)  # tasks of the input along each axis: 2,000
EMPTY = slice(11, None, 13)  # tasks for which the input is zero, so that nothing is stored
STAGE = "drill"
THRESHOLD = 100
PATIENCE_S = 90  # of a drill for its workers; machines that run drills are busy
POISON = Path(__file__).parent / "poison.py"


def make_input(place, grid=LARGEST):
    """Write random voxels for a grid of tasks; some boxes of tasks are zero."""
    import zarr

    shape = [count * extent for count, extent in zip(grid, TASK)]
    voxels = np.random.default_rng(5).integers(1, 255, shape, np.uint8)
    for number in range(int(np.prod(grid)))[EMPTY]:
        voxels[slices(corner_of(number, grid))] = 0
    array = zarr.create_array(str(place), shape=shape, chunks=TASK, dtype="u1")
    array[:] = voxels
    return place


def corner_of(number, grid):
    """Return the first voxel of a task of a grid."""
    rest, x = divmod(number, grid[2])
    z, y = divmod(rest, grid[1])
    return z * TASK[0], y * TASK[1], x * TASK[2]


def slices(corner):
    """Return the voxels of the task at a corner."""
    return tuple(slice(start, start + extent) for start, extent in zip(corner, TASK))


class Call(NamedTuple):
    """A time that a task was computed.

    Attributes:
        number: of the task.
        supervisor: process id of the worker.
        when: seconds of the monotonic clock.
    """

    number: int
    supervisor: int
    when: float


class Drill:
    """One run.

    Args:
        folder: an empty folder, for everything that is not said to be elsewhere.
        source: the input; see `make_input`.
        grid: tasks along z, y, x; numbered in this order.
        acts: number of a task -> what it does, see `poison`; ``None`` -> what all others do.
        run, queue, output: URLs; all three are files in *folder* by default.
        variables: of the environment, for all processes.
        middle: words of the line between the plugin and the output.
        loading: options of load-volume.
        block: of the output, voxels, zyx.

    Attributes:
        workers: all that were started, in order.
        acts: what tasks do now.
        random: what the drill draws from; its seed is printed.
    """

    def __init__(
        self,
        folder,
        source,
        grid=(2, 2, 2),
        acts=None,
        *,
        run=None,
        queue=None,
        output=None,
        variables=None,
        middle=("threshold", "-t", THRESHOLD),
        loading=(),
        block=BLOCK,
        seed=None,
    ):
        self.folder, self.source, self.grid = Path(folder), source, grid
        self.folder.mkdir(exist_ok=True)
        self.url = run or str(self.folder / "drill.run")
        self.queue_url = queue or f"sqlite://{self.folder}/queue.sqlite"
        self.output = output or f"zarr://{self.folder}/out.zarr"
        self.variables = {"XDG_CACHE_HOME": str(self.folder / "cache")} | (variables or {})
        self.middle, self.loading, self.block_size = middle, loading, block
        self.workers, self.begun, self.address = [], [], None
        self.log = self.folder / "computed"
        self.log.touch()
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self.random = random.Random(self.seed)
        print(f"drill in {folder}: seed {self.seed}")  # noqa: T201 pytest shows it with a failure
        self.act(acts or {})

    def act(self, acts):
        """Say what tasks do from now on."""
        self.acts = acts
        said = {
            "" if number is None else ",".join(map(str, corner_of(number, self.grid))): act
            for number, act in acts.items()
        }
        temporary = self.folder / "acts.new"
        temporary.write_text(json.dumps(said))
        temporary.replace(self.folder / "acts.json")

    # --- the command line ------------------------------------------------------------------------

    @property
    def source_words(self):
        """Words of generate-tasks."""
        size = [count * extent for count, extent in zip(self.grid, TASK)]
        return ["generate-tasks", "--roi-start", 0, 0, 0, "--roi-size", *size, "-c", *TASK]

    def line_words(self, output, *, plain=False):
        """Words of the rest of the line; *plain*: without the plugin."""
        arguments = f"acts={self.folder}/acts.json;log={self.log}"
        poison = [] if plain else ["plugin", "-f", POISON, "-i", "chunk", "--args", arguments]
        return [
            *("load-volume", "-v", f"zarr://{self.source}", *self.loading, *poison),
            *(*self.middle, "save-volume", "-v", output, "-p", 1),
        ]

    def call(self, *words, unsafe=""):
        """Run the program to its end."""
        more = {"CHUNKFLOW_UNSAFE": unsafe} if unsafe else {}
        return subprocess.run(
            [*PROGRAM, *map(str, words)],
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE_S,
            env=environment(**self.variables, **more),
            cwd=self.folder,
        )

    def must(self, *words):
        """Run the program to its end, which has to be a good one; return its output."""
        done = self.call(*words)
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout

    def create_output(self, place=None):
        """Make the volume, which no plugin can tell beforehand."""
        size = [count * extent for count, extent in zip(self.grid, TASK)]
        self.must(
            *("create-volume", "-v", place or self.output, "-z", *size, "-d", "uint8"),
            *("-s", 40, 4, 4, "-b", *self.block_size, "-t", "segmentation"),
        )

    def submit(self, *options):
        """Submit the run; return what is printed."""
        self.create_output()
        said = self.must(
            *("submit", "--run", self.url, "--queue", self.queue_url, "--stage", STAGE),
            *("--no-rehearse", *options, *self.source_words, *self.line_words(self.output)),
        )
        self.address = said.rpartition("'")[0].rpartition("'")[2]
        return said

    def begin(self, *words):
        """Start the program, as one of several; return the process."""
        with (self.folder / "begun.log").open("ab") as output:
            process = subprocess.Popen(
                [*PROGRAM, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(**self.variables),
                cwd=self.folder,
            )
        self.begun.append(process)
        return process

    def work(self, *options, failpoint="", unsafe="", ahead=None):
        """Start a worker."""
        name = f"w{len(self.workers)}"
        worker = Worker(self, name, options, failpoint=failpoint, unsafe=unsafe, ahead=ahead)
        self.workers.append(worker)
        return worker

    def status(self):
        """Return what `status --json` says."""
        return json.loads(self.must("status", self.url, "--json"))

    # --- looking from outside --------------------------------------------------------------------

    @property
    def home(self):
        """The run, opened anew."""
        return RunDirectory(self.url)

    @property
    def tasks(self):
        """How many there are."""
        return int(np.prod(self.grid))

    @property
    def blocks(self):
        """How many blocks a task writes."""
        return int(np.prod([task // block for task, block in zip(TASK, self.block_size)]))

    def records(self):
        """Return the records, by number; two of one task are an error."""
        found = {}
        for record in self.home.ledger(STAGE).records():
            assert record.number not in found, f"task {record.number} has two records"
            found[record.number] = record
        return found

    def block(self, number):
        """Return the path of a block that a task has stored, where that is a file."""
        stored = next(each for each in self.records()[number].written if each.size)
        return stored.url.removeprefix("file://")

    def counts(self):
        """Return what the queue counts."""
        with closing(open_queue(self.queue_url)) as queue:
            return queue.counts()

    def dead_letters(self):
        """Return what was put aside."""
        with closing(open_queue(self.queue_url)) as queue:
            return list(queue.dead_letters())

    def send(self, bodies):
        """Put messages into the queue, as anybody could."""
        with closing(open_queue(self.queue_url)) as queue:
            return queue.send(bodies)

    def bodies(self):
        """Yield the messages of all tasks, in order."""
        return bodies(self.home, STAGE, range(self.tasks))

    def body(self, number):
        """Return the message of a task."""
        return next(iter(bodies(self.home, STAGE, [number])))

    def calls(self):
        """Return each time that a task was computed, in order."""
        numbers = {corner_of(number, self.grid): number for number in range(self.tasks)}
        found = []
        for line in self.log.read_text().splitlines():
            corner, supervisor, when = line.split()
            number = numbers[tuple(map(int, corner.split(",")))]
            found.append(Call(number, int(supervisor), float(when)))
        return found

    def computed(self):
        """Return how often each task was computed."""
        return Counter(call.number for call in self.calls())

    def voxels(self, place=None):
        """Return the decoded output, (z, y, x)."""
        volume = open_volume(place or self.output)
        array = np.asarray(volume.read(volume.bounds).array)
        return array.reshape(array.shape[-3:])

    # --- waiting ---------------------------------------------------------------------------------

    def until(self, condition, what, patience_s=PATIENCE_S):
        """Wait for something; say what if it does not come."""
        deadline = time.monotonic() + patience_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                said = "\n".join(f"--- {w.name}\n{w.said()[-1500:]}" for w in self.workers)
                msg = f"{what} did not come within {patience_s} s (seed {self.seed})\n{said}"
                raise AssertionError(msg)
            time.sleep(0.02)
        return found

    def wait(self, *workers, patience_s=PATIENCE_S):
        """Wait for workers to end, all by default; return their exit codes."""
        chosen = workers or self.workers
        self.until(
            lambda: all(worker.process.poll() is not None for worker in chosen),
            f"the end of {', '.join(w.name for w in chosen if w.is_alive)}",
            patience_s,
        )
        return [worker.process.returncode for worker in chosen]

    def alive(self):
        """Return the workers that have not ended."""
        return [worker for worker in self.workers if worker.is_alive]

    def churn(
        self, number, options, *, every_s, until, spared=(), only=None, patience_s=PATIENCE_S
    ):
        """Keep a number of workers going, and kill one now and then; return how many were killed.

        Between two kills, at least one task is computed. Otherwise, workers on a slow machine would
        be killed before they have begun.

        Args:
            number: of workers.
            options: of each.
            every_s: least time between two kills, seconds.
            until: ends it when true; so does the first worker that ends by itself.
            spared: workers that are not killed.
            only: ``all``, ``supervisor`` or ``child``, at random if not said.
            patience_s: after which it has taken too long, since the last task was computed.
        """
        kills, next_kill, seen = 0, time.monotonic() + every_s, self.log.stat().st_size
        at_kill, deadline = seen, time.monotonic() + patience_s
        while not until() and time.monotonic() < deadline:
            if any(not w.is_alive and not w.is_killed for w in self.workers):
                break
            while len(self.alive()) < number:
                self.work(*options)
            now, size = time.monotonic(), self.log.stat().st_size
            if size > seen:
                seen, deadline = size, now + patience_s
            if now >= next_kill and size > at_kill:
                next_kill, at_kill = now + every_s, size
                victim = self.random.choice([w for w in self.alive() if w not in spared])
                how = only or self.random.choice(("all", "supervisor", "child"))
                if how == "child":
                    kills += victim.kill_child()
                else:
                    victim.kill() if how == "all" else victim.kill_supervisor()
                    kills += 1
            time.sleep(0.05)
        while len(self.alive()) < number and not until():
            self.work(*options)
        return kills

    def close(self):
        """End everything that was started."""
        for worker in self.workers:
            worker.kill()
        for process in self.begun:
            process.kill()
            process.wait()
