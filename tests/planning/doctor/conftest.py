"""The program, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Report:
    """What doctor has printed.

    Attributes:
        code: with which it ended.
        findings: of ``--json``.
        output: all that it printed.
    """

    def __init__(self, done):
        self.code, self.output = done.returncode, done.stdout + done.stderr
        start = done.stdout.find("{")
        self.findings = json.loads(done.stdout[start:])["findings"] if start >= 0 else []

    def problem(self):
        """Return the only problem, text and remedy; fail if there is none, or the code says so."""
        found = [each for each in self.findings if each["level"] == "problem"]
        assert len(found) == 1, self.output
        assert self.code == 1
        return f"{found[0]['check']}: {found[0]['text']}; {found[0]['remedy']}"

    def notes(self):
        """Return text and remedy of the notes; fail if there is a problem."""
        assert self.code == 0, self.output
        return [
            f"{each['check']}: {each['text']}; {each['remedy']}"
            for each in self.findings
            if each["level"] == "note"
        ]


@pytest.fixture
def doctor(tmp_path):
    """Return a function that runs ``chunkflow doctor --json --only CHECKS`` in an empty folder."""

    def run(only, *args, before=(), program=(sys.executable, "-m", "chunkflow_py"), **variables):
        settings = {"HOME": str(tmp_path), "OMP_NUM_THREADS": None} | variables
        environment = {k: v for k, v in (os.environ | settings).items() if v is not None}
        command = [*before, *program, "doctor", "--json", "--only", only, *args]
        return Report(
            subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True,
                timeout=100, check=False,
            )
        )  # fmt: skip

    return run
