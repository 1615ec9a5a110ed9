"""Records of stored objects."""

import hashlib

from chunkflow_py.store.store_protocol import Stored, checksum_of


def test_the_checksum_is_the_first_half_of_sha_256() -> None:
    """Anyone can check a stored object with the tools of any system."""
    assert checksum_of(b"abc") == hashlib.sha256(b"abc").hexdigest()[:32]
    assert checksum_of(memoryview(b"abc")) == checksum_of(b"abc")


def test_what_is_stored_has_the_length_in_bytes() -> None:
    """The size of a memoryview of any item type is in bytes."""
    view = memoryview(bytes(8)).cast("I")
    assert Stored.of("mem://a/b", view) == Stored("mem://a/b", 8, checksum_of(bytes(8)))
