"""Hostile files are refused: in one sentence, at once, and without taking much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rigs.variants import gate_runs

from chunkflow_py.core.decoding import CODECS
from chunkflow_py.volume.engine.image_headers import DECLARED
from chunkflow_py.volume.n5.n5_volume import COMPRESSIONS
from chunkflow_py.volume.precomputed.precomputed_codec import COMPRESSED
from chunkflow_py.volume.precomputed.precomputed_info import ENCODINGS
from chunkflow_py.volume.zarr.zarr_codecs import COMPRESSORS
from hostile.files import BOMBS, CASES

MOST_SECONDS = 2.0
MOST_BYTES = 200_000_000
RUNNER = Path(__file__).with_name("runner.py")
GROUPS = sorted({case.group for case in CASES.values()})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", gate_runs([1, 5], 5))
@pytest.mark.parametrize("group", GROUPS)
def test_hostile_files_are_refused(group, step, tmp_path):
    """Exit code 1 or 2, one sentence, 2 s of the processor and 200 MB at most; nothing is hurt.

    `make test` takes every fifth row of each group, `make drills` all of them.
    """
    commands = []
    rows = [(name, case) for name, case in CASES.items() if case.group == group]
    for number, (name, case) in enumerate(rows[::step]):
        folder = tmp_path / str(number)
        folder.mkdir()
        case.make(folder)
        commands.append([name, [word.replace("{}", str(folder)) for word in case.command]])
    todo = tmp_path / "todo.json"
    todo.write_text(json.dumps(commands))
    done = subprocess.run(
        [sys.executable, RUNNER, todo],
        capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(RUNNER.parents[2])},
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in found] == [name for name, _ in commands], done.stderr[-2000:]
    assert not [f"{each['name']}: {bad}" for each in found for bad in misdeeds(each)]
    for secret in tmp_path.glob("*/secret.txt"):
        assert secret.read_bytes() == b"S" * 64


def misdeeds(found):
    """Yield what is wrong with how a file was refused."""
    sentences = [line for line in found["said"].splitlines() if line.startswith("Error: ")]
    if found["code"] not in (1, 2):
        yield f"ended with {found['code']}: {found['said'][-500:]}"
    if len(sentences) != 1 or "Traceback" in found["said"] or "--debug" in found["said"]:
        yield f"said {found['said'][-500:]}"
    if found["seconds"] > MOST_SECONDS:
        yield f"took {found['seconds']:.1f} s"
    if found["bytes"] > MOST_BYTES:
        yield f"took {found['bytes'] / 1e6:.0f} MB"


def test_the_table_is_long_enough():
    """There are at least 60 hostile files."""
    assert len(CASES) >= 60


def test_every_codec_has_a_bomb():
    """A codec that is added to a table of the package needs a row here."""
    assert {f"zarr: {name} bomb" for name in COMPRESSORS} <= CASES.keys()
    assert {f"n5: {name} bomb" for name in COMPRESSIONS if name != "raw"} <= CASES.keys()
    assert {f"precomputed: {ending} bomb" for ending in (*COMPRESSED, ".gz")} <= CASES.keys()
    of_headers = {name for name in DECLARED if name != "jpeg2000"}
    assert set(ENCODINGS) - of_headers == {"raw", "npz", "npz_uint8", "compressed_segmentation"}
    for encoding in of_headers:
        assert any(row.startswith(f"precomputed: {encoding} of") for row in CASES), encoding
    assert {"lzma" if name == "xz" else name for name in CODECS} - BOMBS.keys() == {
        "raw", "brotli", "gzip members", "lzf",
    }  # fmt: skip
