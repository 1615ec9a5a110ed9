"""Queues, leases and ledger beside their limits and beside the tools of the field, in turn.

    python benchmarks/queues.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

Every measurement is a process of its own. Queues of SQS are on an emulator on loopback
(`tests/rigs/build.py` makes it); the peers' environments are made by `benchmarks/peers/build.py`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet_report import lines as fleet_lines
from peers.build import python_of
from processes import HERE, RESULTS, ROOT, run_json, say
from queues_report import lines
from recorded import Benchmark, add_run, read_json
from table import as_markdown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from records import Report

FLEET = [RESULTS / f"fleet{kind}.json" for kind in ("", "-exchange", "-growth")]
CLIENTS = 2  # processors of those who talk to the emulator, which has the others
CONNECTIONS = 8  # as many as `chunkflow_py.queue.sqs_queue` sends over
WORKERS = 4
SLEEP_S = 0.2
PLUGIN = str(HERE / "peers" / "pause.py")

Job = dict[str, Any]


def cases(*, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Return what is run, by name; for each contestant how many tasks.

    Args:
        quick: a tenth of the tasks, to see whether everything runs; nothing to be recorded.
    """
    part = 10 if quick else 1
    return {
        "send to SQS": {
            "kind": "send",
            "tasks": {"ours": 20_000 // part, "boto3": 20_000 // part},
        },
        "receive and delete on SQS": {
            "kind": "receive",
            "tasks": {
                "ours": 10_000 // part,
                "chunkflow": 1000 // part,
                "boto3": 10_000 // part,
                "ours, one by one": 1000 // part,
            },
        },
        "memory of generate-tasks": {
            "kind": "memory",
            "tasks": {f"{10**n:,} boxes": 10**n for n in range(4, 6 if quick else 8)},
            "rounds": 1,
        },
        "tasks that do nothing, 4 workers": {
            "kind": "nothing",
            "tasks": {
                "no queue": 20_000 // part,
                "embedded": 20_000 // part,
                "directory": 10_000 // part,
                "SQS": 10_000 // part,
                "python-task-queue": 2000 // part,
                "daisy": 20_000 // part,
            },
            "processes": WORKERS,
        },
        f"tasks of {SLEEP_S} s of sleep": {
            "kind": "sleep",
            "tasks": {f"{n} worker{'s' * (n > 1)}": 100 * max(1, n // part) for n in (1, 2, 4, 8)},
            "seconds": SLEEP_S,
            "rounds": 1,
        },
    }


class Rig:
    """Where things are.

    Args:
        folder: for queues and runs.
        variables: that send clients to the emulator of SQS; ``None`` without one.
        processors: of this machine that may be used.
    """

    def __init__(
        self, folder: Path, variables: dict[str, str] | None, processors: tuple[int, ...]
    ) -> None:
        """Keep them."""
        self.folder, self.variables, self.processors = folder, variables, processors

    def queue(self, kind: str) -> str:
        """Return the URL of a new queue."""
        name = f"benchmark-{secrets.token_hex(6)}"
        paths = {"embedded": f"sqlite://{self.folder}/{name}.sqlite", "SQS": f"sqs://{name}"}
        return paths.get(kind, f"file://{self.folder}/{name}")

    def ours(self, **job: Any) -> Job:
        """Run this package."""
        return self._run(sys.executable, "run_queue_ours.py", {"plugin": PLUGIN, **job})

    def peer(self, environment: str | None, script: str, **job: Any) -> Job:
        """Run somebody else."""
        python = python_of(environment) if environment else sys.executable
        return self._run(python, script, job)

    def _run(self, python: Path | str, script: str, job: Job) -> Job:
        if str(job.get("queue", "")).startswith("sqs://") and self.variables is None:
            return {"error": "the emulator of SQS is not there; make rigs"}
        folder = str(self.folder)
        return run_json(python, script, {"folder": folder, **job}, environment=self.variables)


@contextmanager
def rigged(folder: Path) -> Iterator[Rig]:
    """Start the emulator on the processors that its clients do not use."""
    sys.path.insert(0, str(ROOT / "tests"))
    from rigs import servers  # type: ignore[import-not-found]
    from rigs.s3 import environment  # type: ignore[import-not-found]

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "fauxqs").mkdir(parents=True)
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        os.sched_setaffinity(0, allowed[CLIENTS:] or allowed)
        try:
            address = stack.enter_context(servers.fauxqs(folder / "fauxqs"))
        except servers.ServerMissingError as error:
            say(str(error))
            rig = Rig(folder, None, allowed)
        else:
            rig = Rig(folder, environment(address, folder), allowed)
        try:
            yield rig
        finally:
            os.sched_setaffinity(0, allowed)
    shutil.rmtree(folder)


# --- contestants ---------------------------------------------------------------------------------


def send(rig: Rig, case: Job, contestant: str) -> Job:
    """Send boxes to a new queue of SQS."""
    job = {"what": "send", "queue": rig.queue("SQS"), "tasks": case["tasks"][contestant]}
    if contestant == "ours":
        return rig.ours(**job)
    return rig.peer(None, "run_queue_boto3.py", connections=CONNECTIONS, **job)


def receive(rig: Rig, case: Job, contestant: str) -> Job:
    """Receive and delete what was sent before; none is left behind that others would pay for."""
    job = {"queue": rig.queue("SQS"), "tasks": case["tasks"][contestant]}
    sent = rig.peer(None, "run_queue_boto3.py", what="send", connections=CONNECTIONS, **job)
    if "error" in sent:
        return sent
    if contestant == "chunkflow":
        return rig.peer("chunkflow", "run_queue_chunkflow.py", **job)
    if contestant == "boto3":
        return rig.peer(None, "run_queue_boto3.py", what="receive", **job)
    return rig.ours(what="receive" if contestant == "ours" else "fetch", **job)


def memory(rig: Rig, case: Job, contestant: str) -> Job:
    """Send boxes to a new embedded queue."""
    found = rig.ours(what="send", queue=rig.queue("embedded"), tasks=case["tasks"][contestant])
    for path in rig.folder.glob("*.sqlite*"):
        path.unlink()
    return found


def nothing(rig: Rig, case: Job, contestant: str) -> Job:
    """Work off tasks that do nothing."""
    tasks, processes = case["tasks"][contestant], case["processes"]
    match contestant:
        case "no queue":
            return rig.ours(what="line", tasks=tasks)
        case "python-task-queue" | "daisy":
            job = {"peer": contestant.removeprefix("python-"), "processes": processes}
            return rig.peer("queues", "run_queue_peers.py", tasks=tasks, **job)
    job = {"queue": rig.queue(contestant), "processes": processes, "seconds": 0}
    return rig.ours(what="work", tasks=tasks, **job)


def sleep(rig: Rig, case: Job, contestant: str) -> Job:
    """Work off tasks that sleep."""
    job = {"processes": int(contestant.partition(" ")[0]), "seconds": case["seconds"]}
    tasks = case["tasks"][contestant]
    return rig.ours(what="work", queue=rig.queue("embedded"), tasks=tasks, **job)


# --- the whole -----------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run the cases of the report, and add their runs."""
    runs = {"send": send, "receive": receive, "memory": memory, "nothing": nothing, "sleep": sleep}
    with rigged(arguments.folder) as rig:
        for name, case in report["cases"].items():
            talks = case["kind"] in ("send", "receive")
            os.sched_setaffinity(0, rig.processors[:CLIENTS] if talks else rig.processors)
            for number in range(min(arguments.rounds, case.get("rounds", arguments.rounds))):
                for contestant in case["tasks"]:
                    run = runs[case["kind"]](rig, case, contestant)
                    add_run(report, name, contestant, number, run)


BENCHMARK = Benchmark(
    name="queue",
    script="queues.py",
    purpose=__doc__,
    libraries=("boto3", "botocore"),
    cases=cases,
    lines=lines,
    fills="for queues; 2 GB, removed",
    quick="one round, few tasks",
)


def documented() -> str:
    """Return machine, versions and tables of what is recorded, those of fleets included."""
    report = BENCHMARK.recorded()
    text = "\n" if report is None else BENCHMARK.described(report)
    for path in FLEET:
        if path.exists():
            text += f"{as_markdown(fleet_lines(read_json(path)))}\nRecorded in "
            text += f"`benchmarks/results/{path.name}`.\n\n"
    return text


if __name__ == "__main__":
    BENCHMARK.run(measure, documented)
