"""Runs whose ledger, spec or tasks were made by an attacker."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.planted import failure, planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
from chunkflow_py.monitor.dashboard.run_watch import RunWatch
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_spec import Spec
from chunkflow_py.tasks.task_plan import GridPlan

PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(1, 2, 2)))
SECRET = "https://me:GEHEIM@host/em?X-Amz-Signature=GEHEIM"
STEERING = f"\x1b]52;c;cm0=\x07\x1b[2J\x9b31m\u202egnp\u2066\u200b\u2028\x00\ud800 {SECRET}\nforged"
anything = st.text(st.characters(exclude_categories=()), max_size=30)


def forged(made, **texts):
    """Return a record or failure with these values, which were not checked."""
    for name, value in texts.items():
        object.__setattr__(made, name, value)
    return made


def shown_of(home, folder):
    """Return everything about a run that is shown to people and programs."""
    yield say(f"status {home.url} --failures")
    yield say(f"status {home.url} --json")
    yield say(f"verify {home.url}", code=1)
    yield say(f"verify {home.url} --json", code=1)
    say(f"report {home.url} --output {folder}/report.html")
    yield Path(f"{folder}/report.html").read_text("utf-8")


@settings(max_examples=5, deadline=None)
@given(anything)
@example(STEERING)
@example("x" * 100_000 + STEERING)
def test_no_text_of_a_ledger_steers_or_tells(text):
    """Terminal, JSON and pages show no control characters and no passwords of a ledger."""
    with tempfile.TemporaryDirectory() as folder:
        home = planted_run(f"{folder}/r", {"infer": PLAN})
        ledger = home.ledger("infer")
        names = {"worker": text, "reason": text}
        ledger.record(
            [
                forged(record(PLAN, 0, "dead"), **names, profile=text, attempt=text),
                forged(record(PLAN, 1, "skipped"), **names, seconds={text: 1.0}),
            ]
        )
        ledger.fail(forged(failure(PLAN, 2), **names, traceback=text))
        home = RunDirectory(home.url)
        for shown in (*shown_of(home, folder), *pages_of(home)):
            assert all(each.isprintable() or each in "\n\t" for each in shown)
            assert "GEHEIM" not in shown
            assert len(shown) < 500_000
            shown.encode()
        assert "\nforged" not in say(f"verify {home.url}", code=1)


def pages_of(home):
    """Return the responses of the dashboard."""
    with closing(RunWatch(home, 0.5)) as watch:
        server = DashboardServer(watch)
        try:
            for name in (
                "status.json?stage=infer",
                "task.json?stage=infer&number=0",
                "task.json?stage=infer&number=2",
                "brief.json?stage=infer&number=0",
            ):
                with urlopen(server.url + name, timeout=20) as answer:
                    yield json.dumps(json.loads(answer.read()), ensure_ascii=False)
        finally:
            server.stop()


@given(anything, anything)
def test_records_and_failures_are_clean_when_made_and_when_read(text, other):
    """Created and parsed entries are cleaned alike; encoding again changes nothing."""
    raw = {"number": 1, "box": text, "attempt": text, "worker": other}
    for kind, more in (
        (Record, {"state": "dead", "spec": text, "profile": other, "reason": text,
                  "seconds": {other: 1.0}, "finished": 1.0}),
        (FailedAttempt, {"kind": "permanent", "reason": text, "traceback": other, "when": 1.0}),
    ):  # fmt: skip
        made = kind(**raw, **more)
        written = [] if kind is Record else None
        line = json.dumps(raw | more | ({"written": written} if written is not None else {}))
        assert kind.from_json(line) == kind.from_json(made.to_json()) == made
        made.to_json().encode()
        repr(made).encode()


def test_an_error_with_a_lone_surrogate_is_an_error_like_others(tmp_path, monkeypatch):
    """Subcommands accept such an error, and its message becomes a dead letter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    Path("fails.py").write_text("def execute(chunk):\n    raise ValueError('\\ud800 \\x1b[2J')\n")
    say(f"submit --run r --queue sqlite://{tmp_path}/q --no-rehearse {LINE} "
        f"plugin -f fails.py -i chunk -o chunk {SAVE} out.zarr")  # fmt: skip
    line = [sys.executable, "-m", "chunkflow_py", "work", "r", "--max-failures", "1"]
    done = subprocess.run(
        line, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    with closing(open_queue(f"sqlite://{tmp_path}/q")) as queue:
        counts = queue.counts()
        assert (counts.waiting, counts.leased, counts.dead) == (0, 0, 8)
        assert all("ValueError: \\ud800 �[2J" in letter.reason for letter in queue.dead_letters())
    assert "8 failed" in say("status r")
    assert "ValueError: \\ud800 �[2J" in say("verify r", code=1)


# --- specs ---------------------------------------------------------------------------------------


def test_a_digest_has_all_its_digits(tmp_path):
    """Shorter digests can be forged: 8 digits took 22 seconds."""
    home = planted_run(f"{tmp_path}/r", {"infer": PLAN})
    digest = home.spec.digest
    assert RunDirectory.parse(f"{home.url}#sha256={digest}").spec.digest == digest
    for wrong in (digest[:8], digest[:63], digest + "0", digest.upper() + "A", "",
                  digest[:-1] + "g", digest[:-1] + "٣"):  # fmt: skip
        with pytest.raises(OptionError, match="must be sha256= and 64 digits"):
            RunDirectory.parse(f"{home.url}#sha256={wrong}")
    other = ("0" if digest[-1] != "0" else "1").join([digest[:-1], ""])
    with pytest.raises(OptionError, match="not the spec that was submitted"):
        _ = RunDirectory.parse(f"{home.url}#sha256={other}").spec


@pytest.mark.parametrize(
    "change",
    [lambda c: c + b" ", lambda c: b" " + c, lambda c: c.replace(b":", b": ", 1),
     lambda c: c.removesuffix(b"\n"), lambda c: c.replace(b'"infer"', b'"\\u0069nfer"', 1),
     lambda c: c.replace(b"{", b'{"version":"0",', 1),
     lambda c: c.replace(b'"mip":0', b'"mip":NaN'), lambda c: c.replace(b'"mip":0', b'"mip":1e999'),
     lambda c: c.replace(b'"mip":0', b'"mip":' + b"1" * 5000), lambda c: b"[" * 100_000,
     lambda c: b"\xef\xbb\xbf" + c, lambda c: c.decode().encode("utf-16"), lambda c: c + c,
     lambda c: c + b"\0", lambda c: c.replace(b'"mip":0', b'"mip":-0')],
    ids=range(15),
)  # fmt: skip
def test_a_spec_has_one_spelling(tmp_path, change):
    """A spec that is not byte for byte what submit writes is refused."""
    content = planted_run(f"{tmp_path}/r", {"infer": PLAN}).spec.content
    assert Spec.parse(content).content == content
    changed = change(content)
    assert changed != content
    with pytest.raises(OptionError, match="the file is not the spec of a run") as caught:
        Spec.parse(changed)
    assert len(str(caught.value)) < 500
