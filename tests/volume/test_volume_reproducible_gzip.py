"""Tests of chunkflow_py.volume.engine.reproducible_gzip."""

import builtins
import gzip
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunkflow_py.core.allocator import keep_freed_memory
from chunkflow_py.core.decoding import decode
from chunkflow_py.errors import MissingExtraError
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress


def contents():
    """Return what blocks and indices of shards look like, short ones and long ones."""
    rng = np.random.default_rng(0)
    found = []
    for size in (8, 24, 48, 96, 192, 400, 1000, 4096, 65536, 200_000):
        found.append(rng.integers(1, 100, size, "u1").tobytes())
        found.append(rng.integers(0, 4, size, "u1").tobytes())
        found.append(np.cumsum(rng.integers(1, 900, size // 8 or 1)).astype("<u8").tobytes())
        found.append((b"abc" * size)[:size])
    rng = np.random.default_rng(1)
    found.append(np.rint(rng.normal(128, 20, 1 << 17)).astype("u1").tobytes())  # like an image
    found.append((found[-1][:100] + bytes(400)) * 300)  # with runs
    found.append(rng.integers(0, 255, 1 << 15, "u1").astype("f4").tobytes())
    return found


def test_same_bytes_whatever_memory_held():
    """Compressed bytes depend on nothing but the content: not on the thread, nor on old memory."""
    keep_freed_memory()  # so that memory comes back as it was left
    known = contents()
    variants = [Counter() for _ in known]

    def work(seed):
        rng = random.Random(seed)
        for _ in range(3):
            old = [bytearray(rng.randbytes(rng.choice([60_000, 131_072, 262_144])))]
            old += [bytearray((data * (200_000 // len(data) + 1))[:131_072]) for data in known[::5]]
            del old
            for index, data in enumerate(known):
                variants[index][gzip_compress(data)] += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(24)))
    assert [len(found) for found in variants] == [1] * len(known)


@pytest.mark.parametrize("level", [1, 5, 9])
def test_read_by_all(level):
    """Any reader of gzip reads it; the header holds no time."""
    for data in contents():
        packed = gzip_compress(data, level)
        assert gzip.decompress(packed) == decode("gzip", packed, len(data)) == data
        assert packed[4:8] == bytes(4)
    assert decode("gzip", gzip.compress(data), len(data)) == data


@pytest.mark.parametrize("missing", [False, True])
def test_damage(missing, monkeypatch):
    """What is torn or changed is an error, with and without the faster library."""
    data = np.random.default_rng(1).integers(0, 255, 5000, "u1").tobytes()
    packed = gzip_compress(data)
    if missing:
        hide_imagecodecs(monkeypatch)
    assert decode("gzip", packed, len(data)) == data
    middle = len(packed) // 2
    changed = packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]
    for bad in (b"", packed[:-1], packed[:middle], changed, b"x" + packed):
        with pytest.raises(Exception, match=r"(?i)gzip|deflate|error|decode|end"):
            decode("gzip", bad, len(data))


def hide_imagecodecs(monkeypatch):
    """Make this look like an installation without imagecodecs."""
    real = builtins.__import__

    def without(name, *rest):
        if name in ("imagecodecs", "zlib_ng"):
            raise ImportError(name, name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)


def test_writing_without_imagecodecs(monkeypatch):
    """Other bytes would break the promise of one answer: nothing is written instead."""
    hide_imagecodecs(monkeypatch)
    with pytest.raises(MissingExtraError, match="writing gzip needs imagecodecs"):
        gzip_compress(b"voxels")


def test_noise_is_not_searched():
    """Voxels without repetitions take hardly more than the smallest, those with some far less."""
    image = np.rint(np.random.default_rng(1).normal(128, 20, 1 << 18)).astype("u1").tobytes()
    assert len(gzip_compress(image)) < 1.02 * len(gzip_compress(image, 2))
    labels = np.repeat(np.arange(1 << 12, dtype="<u8"), 16).tobytes()
    assert len(gzip_compress(labels)) < 0.05 * len(labels)
