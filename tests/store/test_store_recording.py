"""Tests of chunkflow_py.store.recording_store."""

import subprocess
import sys

from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import stored_file
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_protocol import Stored, checksum_of

WITHOUT_CHECKSUMS = """
import sys
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import stored_file
from chunkflow_py.store.recording_store import RecordingStore
store = RecordingStore(open_store(sys.argv[1]))
store.put("a", b"abc")
print(store.written[0].size, store.written[0].checksum, stored_file(sys.argv[1] + "/a").checksum)
"""


def test_what_is_put_is_remembered(tmp_path):
    """A record has address, length and checksum of each object."""
    store = RecordingStore(open_store(str(tmp_path)))
    store.put("a/b", b"abc", content_type="text/plain")
    store.left_out("a/c")
    assert store.written == [
        Stored(f"file://{tmp_path}/a/b", 3, checksum_of(b"abc")),
        Stored(f"file://{tmp_path}/a/c"),
    ]
    assert store.written[0] == stored_file(tmp_path / "a" / "b")


def test_it_is_the_store_in_all_else(tmp_path):
    """Other calls are forwarded to the wrapped store, and not recorded."""
    plain = open_store(str(tmp_path))
    store = RecordingStore(plain)
    assert store.put_if_absent("a", b"1")
    assert not store.put_if_absent("a", b"2")
    assert store.update("a", lambda old: old + b"2") == plain.get("a") == store.get("a") == b"12"
    assert store.get_range("a", 1, 2) == b"2"
    assert (store.size("a"), list(store.list()), store.url) == (2, ["a"], plain.url)
    store.delete("a")
    assert plain.get("a") is None
    assert store.written == []


def test_without_the_safeguard_nothing_is_checked(tmp_path, monkeypatch):
    """Records have no checksums if a drill disables them."""
    monkeypatch.setenv("CHUNKFLOW_UNSAFE", "checksum")
    run = [sys.executable, "-c", WITHOUT_CHECKSUMS, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["3", "None", "None"]
