"""Decompressors stop at the expected size, whatever the data contain."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import re
import struct
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numcodecs import blosc, lz4

import chunkflow_py
from chunkflow_py.core.decoding import (
    CODECS,
    DOCUMENT_BYTES,
    TooLargeError,
    decode,
    npy,
    npz,
    parse_json,
    unpack_lzma,
)

ENCODERS = {
    "raw": bytes,
    "blosc": lambda data: blosc.compress(data, b"lz4", 5, 1),
    "brotli": lambda data: bytes(imagecodecs.brotli_encode(data)),
    "bz2": bz2.compress,
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "gzip members": lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]),
    "lz4": lz4.compress,
    "lzf": lambda data: bytes(imagecodecs.lzf_encode(data)),
    "xz": lzma.compress,
    "zlib": zlib.compress,
    "zstd": lambda data: bytes(imagecodecs.zstd_encode(data)),
}
# brotli does not tell why it stops
TOO_LARGE = (TooLargeError, imagecodecs.BrotliError)


def test_every_codec_is_tested():
    """A new codec needs an encoder here."""
    assert ENCODERS.keys() == CODECS.keys()


@pytest.mark.parametrize("codec", CODECS)
@given(
    data=st.binary(min_size=20, max_size=2000) | st.integers(20, 300_000).map(bytes),
    room=st.integers(-20, 20),
)
@example(data=bytes(300_000), room=-1)
@example(data=bytes(300_000), room=0)
def test_no_more_than_is_expected(codec, data, room):
    """Data of the expected size are returned; one byte more is an error."""
    packed, most = ENCODERS[codec](data), len(data) + room
    if room < 0:
        with pytest.raises(TOO_LARGE):
            decode(codec, packed, most)
    else:
        assert bytes(decode(codec, packed, most)) == data


@pytest.mark.parametrize("codec", [name for name in CODECS if name not in ("raw", "lzf")])
def test_torn_data_are_an_error(codec):
    """Truncated data are an error."""
    data = np.random.default_rng(0).integers(0, 9, 50_000, np.uint8).tobytes()
    packed = ENCODERS[codec](data)
    for end in (1, 7, len(packed) // 2, len(packed) - 1):
        with pytest.raises(Exception, match=r"."):
            decode(codec, packed[:end], len(data))


def test_many_streams_end():
    """Streams without content, each of which costs a copy of the rest, are counted."""
    for codec, empty in (("bz2", bz2.compress(b"")), ("gzip members", gzip.compress(b""))):
        with pytest.raises(ValueError, match="more streams than the 256 allowed"):
            decode(codec, empty * 50_000, 100)


def test_dictionaries_of_lzma_are_bounded():
    """Neither a header nor the metadata of an array make a decoder allocate gigabytes."""
    packed = lzma.compress(bytes(100), lzma.FORMAT_ALONE)
    with pytest.raises(lzma.LZMAError, match="Memory"):
        decode("xz", packed[:1] + b"\xff\xff\xff\xff" + packed[5:], 100)
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    with pytest.raises(ValueError, match="lzma dictionary has 1073741824 bytes"):
        unpack_lzma(b"", 100, lzma.FORMAT_RAW, filters)
    raw = lzma.compress(bytes(100), lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2}])
    with pytest.raises(TooLargeError):
        unpack_lzma(raw, 99, lzma.FORMAT_RAW, [{"id": lzma.FILTER_LZMA2}])


def test_headers_of_arrays_are_believed_in_nothing():
    """An array file must match its header, and contain numbers of the expected size."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(100, dtype=np.int64))
    data = buffer.getvalue()
    assert npy(data, 800).tolist() == [*range(100)]
    with pytest.raises(TooLargeError):
        npy(data, 799)
    for damaged in (data[:-1], data + b"x", data.replace(b"(100,)", b"(999,)")):
        with pytest.raises(ValueError, match="the array has"):
            npy(damaged, 10_000)
    objects = io.BytesIO()
    np.save(objects, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        npy(objects.getvalue(), 10_000)


def test_lengths_of_archives_are_believed_in_nothing():
    """A member list with lengths that are too short, too long or too many is an error."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(10_000), b=np.ones(3))
    data = buffer.getvalue()
    assert {name: each.shape for name, each in npz(data).items()} == {"a": (10_000,), "b": (3,)}
    with pytest.raises(TooLargeError):
        npz(data, 80_000)
    place = data.rindex(b"PK\x01\x02", 0, data.rindex(b"PK\x01\x02")) + 24  # of the first array
    for length in (50, 1 << 31):
        lying = data[:place] + struct.pack("<I", length) + data[place + 4 :]
        with pytest.raises((ValueError, EOFError, zipfile.BadZipFile)):
            npz(lying)


def test_documents_end():
    """JSON that is too long, nested too deeply or has too long numbers is no JSON."""
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    other_encodings = ["[]".encode(name) for name in ("utf-8-sig", "utf-16", "utf-32-le")]
    endless = (b"[" * 100_000, b" " * (DOCUMENT_BYTES + 1), b"9" * 10_000)
    for bad in (*endless, b"\xff", *other_encodings):
        with pytest.raises(ValueError, match=r"."):
            parse_json(bad)
    assert parse_json(b" " * DOCUMENT_BYTES + b"1", None) == 1


# A module that may call a decompressor itself, and why.
ALLOWED = {
    "core/decoding.py": "is what all others call",
    "volume/files/mrc.py": "reads 1024 bytes of a file to learn how long it is",
    "volume/precomputed/precomputed_codec.py": "looks whether voxels begin like gzip, with a bound",
    "store/web_store.py": "undoes what a server did on the way",
    "run/ledger/ledger_segments.py": "segments of a ledger",
    "planning/tune_process.py": "reads what this process has written",
}
UNBOUNDED = re.compile(
    r"\b(?:gzip|bz2|lzma|zlib)\.(?:open|decompress|decompressobj)\(|[a-z]_decode\(|"
    r"\.decompress\(|np\.load\((?![^)]*mmap_mode)"
)


def test_nobody_else_decompresses():
    """Decompressors are called in one module, where their output is limited."""
    root = Path(chunkflow_py.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if UNBOUNDED.search(path.read_text(encoding="utf-8"))
    }
    assert found <= ALLOWED.keys(), found - ALLOWED.keys()


def test_nobody_else_opens_what_is_in_an_hdf5_file():
    """Names in HDF5 files are resolved by `hdf5_io`, which never leaves the file."""
    root = Path(chunkflow_py.__file__).parent
    for path in root.rglob("*.py"):
        if path.name != "hdf5_io.py" and "h5py" in (text := path.read_text(encoding="utf-8")):
            assert not re.search(r"\bfile(?:\.get\(|\[)|\.attrs\.get|\[\(\)\]", text), path


def test_arrays_are_decoded_in_many_threads_at_once():
    """NumPy parses headers by Python's parser, which fails in threads before Python 3.11.8."""
    array = np.arange(6, dtype=np.uint16).reshape(2, 3, order="F")
    file = io.BytesIO()
    np.save(file, array)

    def yield_to_others(*_):
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.set_threshold(5)  # a collection, and so a change of thread, in the middle of the parser
    gc.callbacks.append(yield_to_others)
    try:
        with ThreadPoolExecutor(8) as pool:
            decoded = list(pool.map(lambda _: npy(file.getvalue(), 100), range(200)))
    finally:
        gc.callbacks.remove(yield_to_others)
        gc.set_threshold(*threshold)
    assert all((each == array).all() and each.flags.writeable for each in decoded)
