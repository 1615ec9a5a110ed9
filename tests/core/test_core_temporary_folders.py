"""Temporary folders are deleted however the process ends by itself."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
from chunkflow_py.core.temporary_folders import end_process, temporary_folder

for name in ("one-", "two-"):
    (temporary_folder(name) / "network.pt").write_bytes(b"weights")
{end}
"""
BUSY = "threading.Thread(target=time.sleep, args=(60,)).start(); "


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise ValueError", 1), ("sys.exit(3)", 3), (BUSY + "end_process(4)", 4)],
)
def test_folders_are_deleted_when_the_process_ends(tmp_path, monkeypatch, end, code):
    """`end_process` waits for no thread."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = [sys.executable, "-c", PROGRAM.format(end=end)]
    ended = subprocess.run(program, capture_output=True, timeout=50, check=False)
    assert ended.returncode == code, ended.stderr
    assert not list(tmp_path.iterdir())


def test_folders_of_a_killed_process_stay(tmp_path, monkeypatch):
    """The test above would find folders that are not deleted."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = PROGRAM.format(end="import os; os.kill(os.getpid(), 9)")
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert len(list(tmp_path.iterdir())) == 2
