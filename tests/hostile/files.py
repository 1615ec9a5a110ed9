"""A table of hostile files: how each is made, and the command that opens it.

To add a row, write a function with `@case(group, *command)`, which fills the folder that it is
given; ``{}`` in the command stands for that folder. The rows of a group share one process.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np
import tifffile

SIZE = 64  # of a block, along each axis, voxels of one byte
BOMB = bytes(1 << 28)  # what a block of 2^18 bytes unpacks to
DEEP = b"[" * 200_000 + b"]" * 200_000
SPARSE = 10 << 30  # bytes that take none on the disk


@dataclass(frozen=True)
class Case:
    """One hostile file.

    Attributes:
        make: fills a folder.
        command: that opens it.
        group: of the cases that share a process.
    """

    make: Callable[[Path], Any]
    command: tuple[str, ...]
    group: str


CASES: dict[str, Case] = {}

VOLUME = ("load-volume", "-v", "{}", "-s", "0", "0", "0", "-z", "4", "4", "4", "print-max-id")
HDF5 = ("load-h5", "-f", "{}/a.h5", "print-max-id")
N5 = ("load-n5", "-f", "n5://{}", "-s", "0", "0", "0", "-z", "4", "4", "4", "print-max-id")
SYNAPSES = ("load-synapses", "-f", "{}/a.h5")


def case(group: str, *command: str, name: str | None = None):
    """Enter the function below into the table."""

    def enter(make):
        CASES[f"{group}: {name or make.__name__.replace('_', ' ')}"] = Case(make, command, group)
        return make

    return enter


def sparse(path: Path, size: int = SPARSE) -> None:
    """Make a file of zeros that takes no space."""
    path.touch()
    os.truncate(path, size)


# --- compressed bombs ----------------------------------------------------------------------------


def zstd_without_length(data: bytes) -> bytes:
    """Return zstd that does not say how much it holds: blocks of one repeated byte."""
    block = (1 << 17) - 1
    count = len(data) // block
    head = struct.pack("<IBB", 0xFD2FB528, 0x00, 0x58)  # no length; a window of 2 MiB
    run = (block << 3 | 0b010).to_bytes(3, "little") + b"\0"
    return head + run * count + (0b011).to_bytes(3, "little") + b"\0"


def lzma_of_4_gib_dictionary() -> bytes:
    """Return lzma whose header asks for a dictionary of 4 GiB - 1."""
    packed = lzma.compress(bytes(SIZE**3), lzma.FORMAT_ALONE)
    return packed[:1] + b"\xff\xff\xff\xff" + packed[5:]


BOMBS: dict[str, Callable[[], bytes]] = {
    "blosc": lambda: numcodecs().blosc.compress(BOMB, b"zstd", 5, 0),
    "bz2": lambda: bz2.compress(BOMB),
    "gzip": lambda: bytes(imagecodecs.gzip_encode(BOMB, level=1)),
    "lz4": lambda: numcodecs().lz4.compress(BOMB),
    "lzma": lambda: lzma.compress(BOMB, preset=0),
    "zlib": lambda: zlib.compress(BOMB, 1),
    "zstd": lambda: bytes(imagecodecs.zstd_encode(BOMB, level=1)),
}
_MADE: dict[str, bytes] = {}


def numcodecs() -> Any:
    """Return the library, which is imported late."""
    import numcodecs
    import numcodecs.blosc
    import numcodecs.lz4

    return numcodecs


def bomb(codec: str) -> bytes:
    """Return `BOMB`, compressed."""
    if codec not in _MADE:
        _MADE[codec] = BOMBS[codec]()
    return _MADE[codec]


# --- zarr ----------------------------------------------------------------------------------------


def zarr2(folder: Path, block: bytes = b"", compressor: Any = None, **more: Any) -> None:
    """Make an array of zarr v2 with one block."""
    document = {
        "zarr_format": 2, "shape": [SIZE] * 3, "chunks": [SIZE] * 3, "dtype": "|u1", "order": "C",
        "fill_value": 0, "filters": None, "compressor": compressor, **more,
    }  # fmt: skip
    folder.joinpath(".zarray").write_text(json.dumps(document))
    folder.joinpath("0.0.0").write_bytes(block)


def zarr3(folder: Path, codecs: list[Any], block: bytes = b"", **more: Any) -> None:
    """Make an array of zarr v3 with one object."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [SIZE] * 3}}
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [SIZE] * 3, "data_type": "uint8",
        "chunk_grid": grid, "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": codecs, **more,
    }  # fmt: skip
    folder.joinpath("zarr.json").write_text(json.dumps(document))
    folder.joinpath("c/0/0").mkdir(parents=True)
    folder.joinpath("c/0/0/0").write_bytes(block)


ZSTD3 = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BYTES3 = {"name": "bytes"}


def _of_each_codec(codec: str) -> None:
    @case("zarr", *VOLUME, name=f"{codec} bomb")
    def make(folder):
        zarr2(folder, bomb(codec), {"id": codec})


for _codec in BOMBS:
    _of_each_codec(_codec)


@case("zarr", *VOLUME)
def zstd_bomb_without_a_length(folder):
    zarr2(folder, zstd_without_length(BOMB), {"id": "zstd", "level": 1})


@case("zarr", *VOLUME)
def gzip_bomb_with_the_right_length_at_its_end(folder):
    zarr2(folder, bomb("gzip")[:-4] + struct.pack("<I", SIZE**3), {"id": "gzip", "level": 1})


@case("zarr", *VOLUME)
def lzma_dictionary_of_4_GiB(folder):
    zarr2(folder, lzma_of_4_gib_dictionary(), {"id": "lzma", "format": 2})


@case("zarr", *VOLUME)
def a_hundred_thousand_bz2_streams(folder):
    zarr2(folder, bz2.compress(b"") * 70_000, {"id": "bz2", "level": 1})


@case("zarr", *VOLUME)
def zstd_bomb_in_gzip(folder):
    packed = bytes(imagecodecs.gzip_encode(bomb("zstd"), level=1))
    zarr2(folder, packed, {"id": "gzip", "level": 1}, filters=[{"id": "zstd", "level": 1}])


@case("zarr", *VOLUME)
def zstd_bomb_of_v3(folder):
    zarr3(folder, [BYTES3, ZSTD3], bomb("zstd"))


def shard(entry: tuple[int, int], blocks: bytes) -> bytes:
    """Return a shard of one block, whose index says that it is at *entry*."""
    return blocks + struct.pack("<QQ", *entry)


def sharded(folder: Path, content: bytes) -> None:
    """Make an array of one shard of one block."""
    inside = {"chunk_shape": [SIZE] * 3, "codecs": [BYTES3, ZSTD3], "index_codecs": [BYTES3]}
    zarr3(folder, [{"name": "sharding_indexed", "configuration": inside}], content)


@case("zarr", *VOLUME)
def zstd_bomb_in_a_shard(folder):
    data = bomb("zstd")
    sharded(folder, shard((0, len(data)), data))


@case("zarr", *VOLUME)
def block_of_2_to_the_62_bytes_in_a_shard(folder):
    sharded(folder, shard((0, 1 << 62), b"x" * 100))


@case("zarr", *VOLUME)
def block_of_10_GiB_in_a_shard(folder):
    sharded(folder, b"")
    sparse(folder / "c/0/0/0")


@case("zarr", *VOLUME)
def block_file_of_10_GiB(folder):
    zarr2(folder)
    sparse(folder / "0.0.0")


@case("zarr", *VOLUME)
def block_that_is_a_pipe(folder):
    zarr2(folder)
    folder.joinpath("0.0.0").unlink()
    os.mkfifo(folder / "0.0.0")


@case("zarr", *VOLUME)
def blocks_of_10_to_the_18_voxels(folder):
    zarr2(folder, chunks=[10**6] * 3, shape=[10**6] * 3)


@case("zarr", "load-volume", "-v", "{}", "print-max-id")
def shape_of_10_to_the_18_voxels(folder):
    zarr2(folder, shape=[10**6] * 3)


@case("zarr", *VOLUME)
def billion_channels(folder):
    zarr2(folder, shape=[10**9, 64, 64, 64], chunks=[10**9, 64, 64, 64])


@case("zarr", *VOLUME)
def shape_beyond_64_bits(folder):
    zarr2(folder, shape=[2**63, 2**63, 2**63])


@case("zarr", *VOLUME)
def metadata_nested_too_deep(folder):
    zarr2(folder)
    folder.joinpath(".zattrs").write_bytes(b'{"a":' + DEEP + b"}")


@case("zarr", *VOLUME)
def metadata_of_10_GiB(folder):
    zarr2(folder)
    sparse(folder / ".zattrs")


@case("zarr", *VOLUME)
def metadata_of_many_lists(folder):
    zarr2(folder)
    lists = b"[]," * (20 << 20)
    folder.joinpath(".zattrs").write_bytes(b'{"a":[' + lists + b"0]}")


@case("zarr", *VOLUME)
def zarr_json_of_10_GiB(folder):
    sparse(folder / "zarr.json")


# --- N5 ------------------------------------------------------------------------------------------

N5_NAMES = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma", "zstd": "zstd", "blosc": "blosc"}


def n5(folder: Path, kind: str, content: bytes, extent: int = SIZE, **more: Any) -> None:
    """Make a dataset of one block."""
    document = {
        "dimensions": [SIZE] * 3, "blockSize": [SIZE] * 3, "dataType": "uint8",
        "compression": {"type": kind}, **more,
    }  # fmt: skip
    folder.joinpath("attributes.json").write_text(json.dumps(document))
    folder.joinpath("0/0").mkdir(parents=True)
    folder.joinpath("0/0/0").write_bytes(struct.pack(">HHIII", 0, 3, *[extent] * 3) + content)


def _of_each_n5(kind: str, codec: str) -> None:
    @case("n5", *N5, name=f"{kind} bomb")
    def make(folder):
        n5(folder, kind, bomb(codec))


for _kind, _codec in N5_NAMES.items():
    _of_each_n5(_kind, _codec)


@case("n5", *N5)
def zlib_bomb(folder):
    n5(folder, "gzip", bomb("zlib"), compression={"type": "gzip", "useZlib": True})


@case("n5", *N5)
def lz4_bomb(folder):
    packed = bomb("lz4")[4:]
    part = struct.pack("<8sBiiI", b"LZ4Block", 0x20, len(packed), len(BOMB), 0) + packed
    n5(folder, "lz4", part + struct.pack("<8sBiiI", b"LZ4Block", 0x10, 0, 0, 0))


@case("n5", *N5)
def block_that_says_that_it_is_larger(folder):
    n5(folder, "gzip", bytes(imagecodecs.gzip_encode(BOMB, level=1)), 645)


@case("n5", *N5)
def attributes_of_10_GiB(folder):
    sparse(folder / "attributes.json")


@case("n5", *N5)
def attributes_nested_too_deep(folder):
    n5(folder, "raw", b"")
    folder.joinpath("attributes.json").write_bytes(b'{"a":' + DEEP + b"}")


@case("n5", *N5)
def n5_blocks_of_10_to_the_18_voxels(folder):
    n5(folder, "gzip", b"", dimensions=[10**6] * 3, blockSize=[10**6] * 3)


# --- precomputed ---------------------------------------------------------------------------------

PRECOMPUTED = (
    "load-volume", "-v", "precomputed://{}", "-s", "0", "0", "0", "-z", "4", "4", "4",
    "print-max-id",
)  # fmt: skip


def precomputed(folder: Path, block: bytes = b"", name: str = "", **more: Any) -> None:
    """Make a volume of one block."""
    encoding, dtype = more.pop("encoding", "raw"), more.pop("data_type", "uint8")
    channels = more.pop("num_channels", 1)
    scale = {
        "key": "1", "size": [SIZE] * 3, "voxel_offset": [0] * 3, "chunk_sizes": [[SIZE] * 3],
        "resolution": [1] * 3, "encoding": encoding, **more,
    }  # fmt: skip
    info = {
        "@type": "neuroglancer_multiscale_volume", "type": "image", "data_type": dtype,
        "num_channels": channels, "scales": [scale],
    }  # fmt: skip
    folder.joinpath("info").write_text(json.dumps(info))
    folder.joinpath("1").mkdir()
    folder.joinpath(f"1/0-{SIZE}_0-{SIZE}_0-{SIZE}{name}").write_bytes(block)


def _of_each_ending(ending: str, make: Callable[[], bytes]) -> None:
    @case("precomputed", *PRECOMPUTED, name=f"{ending} bomb")
    def enter(folder):
        precomputed(folder, make(), ending)


_of_each_ending(".gz", lambda: bomb("gzip"))
_of_each_ending(".bz2", lambda: bomb("bz2"))
_of_each_ending(".xz", lambda: bomb("lzma"))
_of_each_ending(".zstd", lambda: bomb("zstd"))
_of_each_ending(".br", lambda: bytes(imagecodecs.brotli_encode(BOMB, level=1)))


@case("precomputed", *PRECOMPUTED)
def png_of_256_megapixels(folder):
    chunk = lambda kind, data: (  # noqa: E731
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    )
    header = struct.pack(">IIBBBBB", 1 << 14, 1 << 14, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 << 14) * ((1 << 14) + 1)), 1)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    precomputed(folder, png, encoding="png")


@case("precomputed", *PRECOMPUTED)
def jpeg_of_256_megapixels(folder):
    data = bytearray(imagecodecs.jpeg_encode(np.zeros((64, 64), np.uint8)))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 1 << 14, 1 << 14)
    precomputed(folder, bytes(data), encoding="jpeg")


@case("precomputed", *PRECOMPUTED)
def jpeg_of_a_hundred_thousand_scans(folder):
    data = bytes(imagecodecs.jpeg_encode(np.zeros((SIZE * SIZE, SIZE), np.uint8)))
    place = data.index(b"\xff\xda")
    precomputed(folder, data[:place] + data[place:-2] * 1000 + data[-2:], encoding="jpeg")


@case("precomputed", *PRECOMPUTED)
def jxl_of_256_megapixels(folder):
    data = bytes(imagecodecs.jpegxl_encode(np.zeros((1 << 14, 1 << 14), np.uint8), effort=1))
    precomputed(folder, data, encoding="jxl")


@case("precomputed", *PRECOMPUTED)
def compresso_of_10_to_the_14_voxels(folder):
    import compresso

    data = bytearray(compresso.compress(np.zeros((SIZE,) * 3, np.uint32, order="F")))
    data[6:12] = struct.pack("<HHH", 65535, 65535, 65535)
    precomputed(folder, bytes(data), encoding="compresso", data_type="uint32")


@case("precomputed", *PRECOMPUTED)
def crackle_of_a_gigavoxel(folder):
    import crackle

    data = crackle.compress(np.zeros((SIZE,) * 3, np.uint32, order="F"))
    header = crackle.header(data)
    header.sx = header.sy = header.sz = 1 << 10
    precomputed(
        folder, header.tobytes() + data[len(header.tobytes()) :], encoding="crackle",
        data_type="uint32",
    )  # fmt: skip


def _of_each_fpzip(encoding: str) -> None:
    @case("precomputed", *PRECOMPUTED, name=f"{encoding} of 2^27 voxels")
    def make(folder):
        import fpzip

        voxels = np.zeros((1 << 10, 1 << 10, 1 << 7, 1), np.float32, order="F")
        data = fpzip.compress(voxels, order="F")
        precomputed(folder, data, encoding=encoding, data_type="float32")


_of_each_fpzip("fpzip")
_of_each_fpzip("kempressed")


@case("precomputed", *PRECOMPUTED)
def zfpc_of_2_to_the_27_voxels(folder):
    import zfpc

    data = zfpc.compress(np.zeros((1 << 9, 1 << 9, 1 << 9), np.float32))
    precomputed(folder, data, encoding="zfpc", data_type="float32")


@case("precomputed", *PRECOMPUTED)
def npz_bomb(folder):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((1 << 9,) * 3, np.uint8))
    data = zlib.compress(buffer.getvalue() + BOMB, 1)
    precomputed(folder, data, encoding="npz")


@case("precomputed", *PRECOMPUTED)
def segmentation_in_one_cell_of_10_to_the_9_voxels(folder):
    words = struct.pack("<III", 1, 32 << 24 | 2, 2) + bytes(1000)
    precomputed(
        folder, words, encoding="compressed_segmentation", data_type="uint32",
        compressed_segmentation_block_size=[1000, 1000, 1000],
    )  # fmt: skip


@case("precomputed", *PRECOMPUTED)
def segmentation_in_cells_of_no_voxels(folder):
    precomputed(
        folder, bytes(400), encoding="compressed_segmentation", data_type="uint32",
        compressed_segmentation_block_size=[0, -8, 8],
    )  # fmt: skip


SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity",
    "minishard_bits": 0, "shard_bits": 0, "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}  # fmt: skip


def precomputed_shard(folder: Path, blocks: bytes, index: bytes, **sharding: Any) -> None:
    """Make a volume of one shard."""
    precomputed(folder, sharding={**SHARDING, **sharding})
    head = struct.pack("<QQ", len(blocks), len(blocks) + len(index))
    folder.joinpath("1/0.shard").write_bytes(head + blocks + index)


@case("precomputed", *PRECOMPUTED)
def index_of_a_shard_that_is_a_bomb(folder):
    precomputed_shard(folder, b"", bomb("gzip"))


@case("precomputed", *PRECOMPUTED)
def block_of_a_shard_that_is_a_bomb(folder):
    index = struct.pack("<QQQ", 0, 0, len(bomb("gzip")))
    precomputed_shard(folder, bomb("gzip"), index, minishard_index_encoding="raw")


@case("precomputed", *PRECOMPUTED)
def block_of_10_GiB_in_a_precomputed_shard(folder):
    precomputed(folder, sharding={**SHARDING, "minishard_index_encoding": "raw"})
    with folder.joinpath("1/0.shard").open("wb") as file:
        file.write(struct.pack("<QQQQQ", 0, 24, 0, 24, SPARSE - 100))
        file.truncate(SPARSE)


@case("precomputed", *PRECOMPUTED)
def two_to_the_60_minishards(folder):
    precomputed_shard(folder, b"", b"", minishard_bits=60)


@case("precomputed", *PRECOMPUTED)
def billion_channels_of_precomputed(folder):
    precomputed(folder, num_channels=10**9)


@case("precomputed", *PRECOMPUTED)
def info_nested_too_deep(folder):
    folder.joinpath("info").write_bytes(b'{"scales":' + DEEP + b"}")


@case("precomputed", *PRECOMPUTED)
def info_of_10_GiB(folder):
    sparse(folder / "info")


# --- HDF5 ----------------------------------------------------------------------------------------


def hdf5(folder: Path, name: str = "a.h5", **options: Any) -> h5py.File:
    """Open a new file."""
    return h5py.File(folder / name, "w", **options)


def other_hdf5(folder: Path) -> None:
    """Make a file that another one can lead to."""
    with hdf5(folder, "other.h5") as file:
        file["main"] = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
        file["pre"] = np.zeros((4, 3), np.int64)


def secret(folder: Path) -> str:
    """Make a file that is no one's business."""
    path = folder / "secret.txt"
    path.write_bytes(b"S" * 64)
    return str(path)


@case("hdf5", *HDF5)
def external_storage(folder):
    with hdf5(folder) as file:
        file.create_dataset("main", (4, 4, 4), "u1", external=[(secret(folder), 0, 64)])


@case("hdf5", *HDF5)
def external_link(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        file["main"] = h5py.ExternalLink("other.h5", "/main")


@case("hdf5", *HDF5)
def soft_link_through_an_external_one(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        file["group"], file["main"] = (
            h5py.ExternalLink("other.h5", "/"),
            h5py.SoftLink("/group/main"),
        )


@case("hdf5", *HDF5)
def links_in_a_circle(folder):
    with hdf5(folder) as file:
        file["main"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/main")


@case("hdf5", *HDF5)
def virtual_dataset(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        layout = h5py.VirtualLayout((4, 4, 4), "u1")
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "main", (4, 4, 4))
        file.create_virtual_dataset("main", layout)


@case("hdf5", *HDF5)
def voxel_offset_in_another_file(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file["voxel_offset"] = h5py.ExternalLink("other.h5", "/main")


def hdf5_bomb(folder: Path, data: bytes, **options: Any) -> None:
    """Make a file of one block with these compressed bytes."""
    with hdf5(folder) as file:
        dataset = file.create_dataset("main", (64,) * 3, "u2", chunks=(64,) * 3, **options)
        dataset.id.write_direct_chunk((0, 0, 0), data)


@case("hdf5", *HDF5)
def deflate_bomb(folder):
    hdf5_bomb(folder, bomb("zlib"), compression="gzip")


@case("hdf5", *HDF5)
def deflate_bomb_with_shuffle(folder):
    hdf5_bomb(folder, bomb("zlib"), compression="gzip", shuffle=True)


@case("hdf5", *HDF5)
def deflate_bomb_with_a_checksum(folder):
    hdf5_bomb(folder, bomb("zlib") + bytes(4), compression="gzip", fletcher32=True)


@case("hdf5", *HDF5)
def lzf_bomb(folder):
    hdf5_bomb(folder, bytes(imagecodecs.lzf_encode(BOMB)), compression="lzf")


def filtered(folder: Path, *filters: Callable[[Any], None]) -> None:
    """Make a file of one block with these filters."""
    with hdf5(folder) as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((64, 64, 64))
        for each in filters:
            each(plist)
        space = h5py.h5s.create_simple((64, 64, 64))
        h5py.h5d.create(file.id, b"main", h5py.h5t.STD_U8LE, space, plist)


@case("hdf5", *HDF5)
def deflate_in_deflate(folder):
    filtered(folder, lambda plist: plist.set_deflate(9), lambda plist: plist.set_deflate(9))


@case("hdf5", *HDF5)
def filter_of_a_plugin(folder):
    filtered(folder, lambda plist: plist.set_filter(307, h5py.h5z.FLAG_OPTIONAL, (9,)))


@case("hdf5", *HDF5)
def block_of_4_GB(folder):
    with hdf5(folder) as file:
        size = (2000, 2000, 1000)
        file.create_dataset("main", size, "u1", chunks=size, compression="gzip")


@case("hdf5", *HDF5)
def dataset_of_10_to_the_18_bytes(folder):
    with hdf5(folder) as file:
        file.create_dataset("main", (10**6,) * 3, "u1")


@case("hdf5", *HDF5)
def compressed_dataset_of_10_to_the_18_bytes(folder):
    with hdf5(folder) as file:
        file.create_dataset("main", (10**6,) * 3, "u1", chunks=(64,) * 3, compression="gzip")


@case("hdf5", *HDF5)
def attribute_of_60_MB(folder):
    with hdf5(folder, libver="latest") as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file.attrs["layer_type"] = np.zeros(7_500_000, np.int64)


@case("hdf5", *HDF5)
def attribute_of_120_MB(folder):
    with hdf5(folder, libver="latest") as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file["main"].attrs["voxel_offset"] = np.zeros(15_000_000, np.int64)


@case("hdf5", *HDF5)
def attribute_of_a_text_of_240_MB(folder):
    """Its size is in a heap of the file, not in the attribute."""
    with hdf5(folder) as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file["main"].attrs["voxel_offset"] = "x" * 240_000_000


@case("hdf5", *HDF5)
def attribute_that_declares_a_text_of_4_GB(folder):
    text = b"x" * 77
    with hdf5(folder) as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file["main"].attrs["voxel_offset"] = text.decode()
    data = (folder / "a.h5").read_bytes()
    length, declared = struct.pack("<I", len(text)), struct.pack("<I", 2**32 - 1)
    at = data.index(length, data.index(b"voxel_offset"))
    (folder / "a.h5").write_bytes(data[:at] + declared + data[at + 4 :])


@case("hdf5", *HDF5)
def attribute_of_many_texts(folder):
    with hdf5(folder, libver="latest") as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file["main"].attrs["voxel_offset"] = ["x" * 100] * 100_000


@case("hdf5", *HDF5)
def voxel_offset_of_8_GB(folder):
    with hdf5(folder) as file:
        file["main"] = np.zeros((4, 4, 4), np.uint8)
        file.create_dataset("voxel_offset", (10**9,), "i8", chunks=(1000,))


@case("hdf5", *HDF5)
def dataset_of_references(folder):
    with hdf5(folder) as file:
        file.create_dataset("main", (4, 4, 4), h5py.ref_dtype)


@case("hdf5", *HDF5)
def dataset_of_variable_length(folder):
    with hdf5(folder) as file:
        file.create_dataset("main", (4, 4, 4), h5py.vlen_dtype(np.int8))


@case("hdf5", "load-h5", "-f", "{}/pipe.h5", "print-max-id")
def hdf5_file_that_is_a_pipe(folder):
    os.mkfifo(folder / "pipe.h5")


CREATE = ("create-chunk", "--size", "4", "4", "4", "--dtype", "uint8", "save-volume", "-v")


@case("hdf5", *CREATE, "h5://{}/a.h5")
def external_storage_that_is_written_to(folder):
    external_storage(folder)


@case("hdf5", *CREATE, "h5://{}/a.h5")
def link_that_is_written_to(folder):
    external_link(folder)


@case("hdf5", *CREATE, "h5://{}/a.h5:/group/main")
def group_of_another_file_that_is_written_to(folder):
    soft_link_through_an_external_one(folder)


@case("hdf5", *SYNAPSES)
def synapses_in_external_storage(folder):
    with hdf5(folder) as file:
        file.create_dataset("pre", (2, 3), "u1", external=[(secret(folder), 0, 6)])


@case("hdf5", *SYNAPSES)
def synapses_in_another_file(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        file["pre"] = h5py.ExternalLink(str(folder / "other.h5"), "/pre")


@case("hdf5", *SYNAPSES)
def synapses_in_a_virtual_dataset(folder):
    other_hdf5(folder)
    with hdf5(folder) as file:
        layout = h5py.VirtualLayout((4, 3), "i8")
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "pre", (4, 3))
        file.create_virtual_dataset("pre", layout)


@case("hdf5", *SYNAPSES)
def a_billion_synapses_in_no_bytes(folder):
    with hdf5(folder) as file:
        file.create_dataset("pre", (10**9, 3), "i8", chunks=(1000, 3), compression="gzip")


@case("hdf5", *SYNAPSES)
def synapses_that_are_a_deflate_bomb(folder):
    with hdf5(folder) as file:
        dataset = file.create_dataset("pre", (9, 3), "i8", chunks=(9, 3), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), bomb("zlib"))


# --- files of one array --------------------------------------------------------------------------


def mrc_header(extent: int, extended: int = 0) -> bytearray:
    """Return the header of an MRC file of bytes."""
    head = bytearray(1024)
    struct.pack_into("<iiii", head, 0, extent, extent, extent, 0)
    struct.pack_into("<iii", head, 28, extent, extent, extent)
    struct.pack_into("<iii", head, 64, 1, 2, 3)
    struct.pack_into("<i", head, 92, extended)
    head[208:212], head[212:214] = b"MAP ", b"\x44\x44"
    return head


MRC = ("load-mrc", "-f", "{}/a.mrc", "print-max-id")


@case("arrays", *MRC)
def mrc_extended_header_of_2_GiB(folder):
    folder.joinpath("a.mrc").write_bytes(mrc_header(4, 2**31 - 1) + bytes(64))


@case("arrays", *MRC)
def mrc_extended_header_of_a_sparse_file(folder):
    folder.joinpath("a.mrc").write_bytes(mrc_header(4, 2**31 - 1))
    os.truncate(folder / "a.mrc", SPARSE)


@case("arrays", *MRC)
def mrc_of_negative_extent(folder):
    folder.joinpath("a.mrc").write_bytes(mrc_header(-4) + bytes(64))


@case("arrays", *MRC)
def mrc_of_10_to_the_27_voxels(folder):
    folder.joinpath("a.mrc").write_bytes(mrc_header(10**9) + bytes(64))


@case("arrays", "load-mrc", "-f", "{}/a.mrc.gz", "print-max-id")
def mrc_in_a_gzip_bomb(folder):
    data = imagecodecs.gzip_encode(bytes(mrc_header(4)) + BOMB + BOMB, level=1)
    folder.joinpath("a.mrc.gz").write_bytes(data)


@case("arrays", "load-mrc", "-f", "{}/a.mrc.gz", "print-max-id")
def mrc_extended_header_in_a_gzip_bomb(folder):
    data = imagecodecs.gzip_encode(bytes(mrc_header(4, 2**29)) + BOMB + BOMB, level=1)
    folder.joinpath("a.mrc.gz").write_bytes(data)


def nrrd(folder: Path, data: bytes = bytes(64), **fields: Any) -> None:
    """Make a NRRD file."""
    head = {"type": "uint8", "dimension": 3, "sizes": "4 4 4", "encoding": "raw", **fields}
    lines = "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in head.items())
    folder.joinpath("a.nrrd").write_bytes(f"NRRD0004\n{lines}\n".encode() + data)


NRRD = ("load-nrrd", "-f", "{}/a.nrrd", "print-max-id")


@case("arrays", *NRRD)
def nrrd_that_skips_99_billion_lines(folder):
    nrrd(folder, line_skip=99_999_999_999)


@case("arrays", *NRRD)
def nrrd_that_skips_99_billion_bytes(folder):
    nrrd(folder, byte_skip=99_999_999_999)


@case("arrays", *NRRD)
def nrrd_gzip_bomb(folder):
    nrrd(folder, bomb("gzip"), encoding="gzip")


@case("arrays", *NRRD)
def nrrd_bzip2_bomb(folder):
    nrrd(folder, bomb("bz2"), encoding="bzip2")


@case("arrays", *NRRD)
def nrrd_of_10_to_the_27_voxels(folder):
    nrrd(folder, sizes="1000000000 1000000000 1000000000", encoding="gzip")


@case("arrays", *NRRD)
def nrrd_of_negative_sizes(folder):
    nrrd(folder, sizes="-4 -4 4")


@case("arrays", *NRRD)
def nrrd_header_without_an_end(folder):
    folder.joinpath("a.nrrd").write_bytes(b"NRRD0004\n" + b"# x\n")
    with folder.joinpath("a.nrrd").open("ab") as file:
        file.write(b"# comment\n" * 500_000)


@case("arrays", *NRRD)
def nrrd_header_of_10_GiB(folder):
    folder.joinpath("a.nrrd").write_bytes(b"NRRD0004\n")
    os.truncate(folder / "a.nrrd", SPARSE)


@case("arrays", *NRRD)
def nrrd_that_names_another_file(folder):
    nrrd(folder, b"", data_file="/etc/passwd")


TIF = ("load-tif", "-f", "{}/a.tif", "print-max-id")


def tiff(
    folder: Path, data: bytes, compression: int, extent: int = 64, length: int | None = None
) -> None:
    """Make a TIFF file of one strip."""
    tags = [
        (256, 4, extent), (257, 4, extent), (258, 3, 8), (259, 3, compression), (262, 3, 1),
        (273, 4, 8 + 2 + 12 * 9 + 4), (277, 3, 1), (278, 4, extent),
        (279, 4, len(data) if length is None else length),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    folder.joinpath("a.tif").write_bytes(head + data)


@case("arrays", *TIF)
def tiff_deflate_bomb(folder):
    tiff(folder, bomb("zlib"), 8)


@case("arrays", *TIF)
def tiff_zstd_bomb(folder):
    tiff(folder, bomb("zstd"), 50000)


@case("arrays", *TIF)
def tiff_jpeg_of_256_megapixels(folder):
    data = bytearray(imagecodecs.jpeg_encode(np.zeros((64, 64), np.uint8)))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 1 << 14, 1 << 14)
    tiff(folder, bytes(data), 7)


@case("arrays", *TIF)
def tiff_png_of_256_megapixels(folder):
    data = imagecodecs.png_encode(np.zeros((1 << 14, 1 << 14), np.uint8), level=1)
    tiff(folder, bytes(data), 34933)


@case("arrays", *TIF)
def tiff_jpegxl_of_256_megapixels(folder):
    data = imagecodecs.jpegxl_encode(np.zeros((1 << 14, 1 << 14), np.uint8), effort=1)
    tiff(folder, bytes(data), 50002)


@case("arrays", *TIF)
def tiff_that_names_another_file(folder):
    folder.joinpath("elsewhere").mkdir()
    other = tifffile.OmeXml()
    other.addimage("uint8", (2, 4, 4), (2, 1, 1, 4, 4, 1), axes="ZYX")
    text = other.tostring().replace('<TiffData IFD="0" PlaneCount="2"/>', (
        '<TiffData IFD="0" FirstZ="0" PlaneCount="1"/><TiffData IFD="0" FirstZ="1" PlaneCount="1">'
        '<UUID FileName="elsewhere/secret.tif">urn:uuid:1</UUID></TiffData>'
    ))  # fmt: skip
    assert "secret" in text
    tifffile.imwrite(folder / "elsewhere/secret.tif", np.ones((4, 4), np.uint8))
    page = np.zeros((4, 4), np.uint8)
    tifffile.imwrite(folder / "a.tif", page, description=text.encode(), metadata=None)


@case("arrays", *TIF)
def tiff_of_10_to_the_18_pixels(folder):
    tiff(folder, b"x" * 64, 1, 10**9)


@case("arrays", *TIF)
def tiff_strip_of_10_GiB(folder):
    tiff(folder, b"", 8, 64, 2**32 - 1)
    os.truncate(folder / "a.tif", SPARSE)


@case("arrays", "load-png", "-p", "{}", "print-max-id")
def png_section_of_3_gigapixels(folder):
    data = bytearray(imagecodecs.png_encode(np.zeros((64, 64), np.uint8)))
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    folder.joinpath("0.png").write_bytes(data)


NPY = ("load-npy", "-f", "{}/a.npy", "print-max-id")


@case("arrays", *NPY)
def npy_of_10_to_the_18_voxels(folder):
    with folder.joinpath("a.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**6,) * 3}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))


@case("arrays", *NPY)
def npy_header_of_4_GiB(folder):
    folder.joinpath("a.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")
    os.truncate(folder / "a.npy", SPARSE)


# --- documents and small files -------------------------------------------------------------------


@case("documents", "load-json", "-f", "{}/a.json")
def json_nested_too_deep(folder):
    folder.joinpath("a.json").write_bytes(DEEP)


@case("documents", "load-json", "-f", "{}/a.json")
def json_number_of_a_million_digits(folder):
    folder.joinpath("a.json").write_bytes(b"9" * 1_000_000)


@case("documents", "load-synapses", "-f", "{}/a.json")
def synapses_nested_too_deep(folder):
    folder.joinpath("a.json").write_bytes(DEEP)


def zipped(**members: bytes) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


BOX = "0-4_0-4_0-4"
STATISTICS = ("sum-statistics", "{}", "--output", "{}/out.json")


@case("documents", *STATISTICS)
def counts_that_are_a_bomb(folder):
    npy = io.BytesIO()
    np.save(npy, np.zeros(8, np.uint8))
    data = zipped(**{"about.npy": npy.getvalue(), "x.npy": npy.getvalue()[:-8] + BOMB * 5})
    folder.joinpath(f"{BOX}.npz").write_bytes(data)


@case("documents", *STATISTICS)
def counts_whose_header_lies(folder):
    npy = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)}
    np.lib.format.write_array_header_1_0(npy, header)
    folder.joinpath(f"{BOX}.npz").write_bytes(zipped(**{"about.npy": npy.getvalue()}))


@case("documents", *STATISTICS)
def counts_of_a_hundred_thousand_arrays(folder):
    folder.joinpath(f"{BOX}.npz").write_bytes(zipped(**{f"{n}.npy": b"" for n in range(20_000)}))


LABELS = ("create-chunk", "--size", "4", "4", "4", "--dtype", "uint64", "--pattern", "sin")


@case("documents", *LABELS, "relabel", "-t", "{}")
def table_of_10_GiB(folder):
    sparse(folder / "table.json")


@case("documents", "load-skeleton", "-p", "{}")
def skeleton_folder_with_a_deep_info(folder):
    folder.joinpath("info").write_bytes(b'{"@type":' + DEEP + b"}")


@case("documents", "load-skeleton", "-p", "{}")
def skeleton_in_a_gzip_bomb(folder):
    folder.joinpath("info").write_text('{"@type": "neuroglancer_skeletons"}')
    folder.joinpath("7.gz").write_bytes(bomb("gzip"))


@case("documents", "fetch-task-from-file", "-f", "{}/a.npy", "-i", "0")
def box_file_of_10_to_the_18_boxes(folder):
    with folder.joinpath("a.npy").open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (10**18, 6)}
        np.lib.format.write_array_header_1_0(file, header)
