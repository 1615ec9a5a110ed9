"""Supervisors with simple lines on a row of tasks, each one voxel, in this process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.queue.message_body import Body
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.worker.supervisor import Supervisor, WorkerListener
from chunkflow_py.run.worker.worker_limits import WorkerSettings
from chunkflow_py.run.worker.worker_pool import ProcessStart
from chunkflow_py.store import open_store
from chunkflow_py.tasks.task_plan import GridPlan
from rigs import lines

QUICK = {
    "retry_s": 0.05,
    "receive_wait_s": 0.2,
    "disk_wait_s": 0.3,
    "watches_notices": False,
    "grace_s": 20.0,
}
LONG_S = 60.0


class Notes(WorkerListener):
    """Remembers what a supervisor has said."""

    def __init__(self):
        self.ready, self.failures, self.records, self.messages = [], [], [], []

    def process_ready(self, number, profile):
        self.ready.append((number, profile))

    def task_ended(self, record):
        self.records.append(record)

    def task_failed(self, failure):
        self.failures.append(failure)

    def changed(self, message):
        self.messages.append(message)


def row(count):
    """Return a plan of *count* tasks."""
    whole = BoundingBox((0, 0, 0), (1, 1, count))
    return GridPlan(BoxGrid.covering(whole, Zyx(1, 1, 1)))


@dataclass
class Stage:
    """One stage of a run in a folder, and its queue."""

    folder: Path
    count: int
    url: str = ""
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self):
        self.plan = row(self.count)
        self.url = self.url or f"memory://{uuid4().hex}"
        self.queue = open_queue(self.url, create=True)
        self.output = self.folder / "output"
        self.output.mkdir(exist_ok=True)
        self.ledger = Ledger(open_store(str(self.folder / "run")), "infer", self.plan.span)

    def send(self, numbers=None, **said):
        """Send tasks; all of them unless said."""
        numbers = self.plan if numbers is None else numbers
        self.queue.send([str(Body(self.plan.region(n), **said)) for n in numbers])

    def supervisor(self, acts=None, *, line=None, seconds=0.0, ahead=0, **settings):
        """Return a supervisor whose line does *acts*, see `rigs.lines.Acts`."""
        said = {
            name: settings.pop(name)
            for name in (
                *("run", "stages", "is_wanted", "check_profile", "environment", "threads"),
                *("stop_reason", "registration", "fate_of"),
            )
            if name in settings
        }
        make = line or partial(lines.acts, str(self.output), acts or {}, seconds, ahead)
        start = ProcessStart(make, said.pop("environment", {}), said.pop("threads", None))
        return Supervisor(
            stage="infer",
            spec="5bec",
            plan=self.plan,
            queue=self.queue,
            ledger=self.ledger,
            start=start,
            settings=WorkerSettings(**QUICK | settings),
            worker="tester",
            listener=self.notes,
            **{"check_profile": lambda profile: None} | said,
        )

    def work(self, *args, **settings):
        """Run a supervisor to its end."""
        return self.supervisor(*args, **settings).run()

    def states(self):
        """Return number of each task that has ended -> how."""
        return {record.number: record.state for record in self.ledger.records()}

    def attempts(self, number):
        """Return how often a line was called on a task."""
        path = self.output / f"{number}.begun"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_until_begun(self, *numbers):
        """Wait until a line was called on all of these."""
        wait_for(lambda: all(self.attempts(number) for number in numbers))


def wait_for(is_so):
    """Wait until something is so."""
    deadline = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Background:
    """Runs a supervisor in a thread."""

    def __init__(self, supervisor):
        self.supervisor, self.outcome, self.error = supervisor, None, None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.outcome = self.supervisor.run()
        except Exception as error:  # noqa: BLE001 the test looks at it
            self.error = error

    def wait(self, timeout_s=LONG_S):
        """Wait for the end; return the outcome."""
        self.thread.join(timeout_s)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error
        return self.outcome
