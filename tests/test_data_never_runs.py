"""Data are never executed: malicious data are placed wherever the package reads files.

Each trap makes a file if it is unpickled or evaluated. docs/security.md names these tests.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from chunkflow_py import Points, Skeleton, Synapses, open_volume
from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.inference.normalization import read_statistics
from chunkflow_py.ops.load_npy import load_npy
from chunkflow_py.queue.box_file import read_regions
from chunkflow_py.queue.message_body import parse_body
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.ledger.ledger_segments import SegmentHeader
from chunkflow_py.run.run_spec import Spec
from chunkflow_py.segmentation.labels.label_table import INDEX, LabelTable
from chunkflow_py.segmentation.labels.links import links_in
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import checksum_of
from chunkflow_py.store.task_counts import CountStore
from chunkflow_py.tasks.task_plan import plan_from_json

BOX = "0-4_0-4_0-4"
BODY = "import pathlib; pathlib.Path('sprung').touch()"


class Trap:
    """Makes the file `sprung` when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (BODY,)


def as_pickle() -> bytes:
    """Return a pickle that is a trap."""
    return pickle.dumps(Trap())


def as_python() -> bytes:
    """Return a Python expression that is a trap."""
    return b"__import__('pathlib').Path('sprung').touch()"


def as_npy() -> bytes:
    """Return an array file of objects that are traps."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], object), allow_pickle=True)
    return buffer.getvalue()


def as_npz() -> bytes:
    """Return an archive of such array files."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict.fromkeys(("about", "pairs"), np.array([Trap()], object)))
    return buffer.getvalue()


def put(name: str, data: bytes) -> str:
    """Write a file into the working folder; return its name."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(data)
    return name


def table(data: bytes) -> None:
    """Look up a label in a table whose segment is *data*, with a matching checksum."""
    index = {"format": "chunkflow labels 1", "entries": 1, "first": [0]}
    put(f"t/{INDEX}", json.dumps(index | {"checksums": [checksum_of(data)]}).encode())
    put("t/000000.npy", data)
    found = LabelTable(open_store("t"))
    assert found.index["format"]
    found.new_ids(np.array([1], np.uint64))


def metadata(data: bytes) -> None:
    """Metadata with a trap as ``data_type``, and the trap in place of the metadata."""
    said = {
        "type": "image", "data_type": data.decode("latin-1"), "num_channels": 1,
        "scales": [{
            "key": "1", "size": [4, 4, 4], "resolution": [1, 1, 1], "chunk_sizes": [[4, 4, 4]],
            "encoding": "raw", "voxel_offset": [0, 0, 0],
        }],
    }  # fmt: skip
    put("v/info", json.dumps(said).encode())
    with pytest.raises(VolumeError, match="is damaged"):
        open_volume("precomputed://file://v")
    put("v/info", data)
    open_volume("precomputed://file://v")


READERS = {
    "messages of a queue": lambda data: parse_body(data.decode("latin-1")),
    "specs of runs": Spec.parse,
    "plans of tasks": lambda data: plan_from_json({"kind": "grid", "indexes": None}, data),
    "records": Record.from_json,
    "segments of a ledger": lambda data: SegmentHeader.from_line(
        data.partition(b"\n")[0], 2048, "page"
    ),
    "statistics of tasks": lambda data: (
        put(f"s/{BOX}.npz", data) and list(CountStore("s", "test").read())
    ),
    "statistics files": lambda data: read_statistics(put("statistics.json", data)),
    "links of labels": lambda data: put(f"l/{BOX}.npz", data) and list(links_in(open_store("l"))),
    "tables of labels": table,
    "metadata of volumes": metadata,
    "arrays": lambda data: load_npy(put("array.npy", data)),
    "box files": lambda data: read_regions(put("boxes.npy", data)),
    "points": Points.from_hdf5,
    "synapses": lambda data: Synapses.from_bytes(data, "synapses"),
    "skeletons": Skeleton.from_precomputed,
    "skeletons as text": lambda data: Skeleton.from_swc(data.decode("latin-1")),
}


@pytest.mark.parametrize("trap", [as_pickle, as_python, as_npy, as_npz])
@pytest.mark.parametrize("what", READERS)
def test_what_is_read_is_refused_and_not_run(what, trap, tmp_path, monkeypatch):
    """Queue messages, specs, records, statistics, links, tables, metadata, arrays, skeletons."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ChunkflowError, ValueError, TypeError)) as caught:
        READERS[what](trap())
    assert not Path("sprung").exists(), caught.value


@pytest.mark.parametrize("spring", [
    lambda: pickle.loads(as_pickle()),
    lambda: eval(as_python()),
    lambda: np.load(io.BytesIO(as_npy()), allow_pickle=True),
    lambda: np.load(io.BytesIO(as_npz()), allow_pickle=True)["about"],
])  # fmt: skip
def test_traps_are_traps(spring, tmp_path, monkeypatch):
    """Each trap would run in a reader that executes its input."""
    monkeypatch.chdir(tmp_path)
    spring()
    assert Path("sprung").exists()
