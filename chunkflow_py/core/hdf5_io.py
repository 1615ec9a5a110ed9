"""Read untrusted HDF5 files safely; no other module reads the content of HDF5 files.

An HDF5 file may refer to any other file of the machine. The other file may contain the voxels of a
dataset (external storage, virtual datasets), or whole groups and datasets (external links). The
HDF5 library follows these references when it reads or writes. The library also loads plugins for
unknown filters. A compressed block states its decoded size, and the filters of the library allocate
that much memory. Therefore, this module

* follows the links of a path itself (`item_at`), and refuses links to other files;
* accepts only datasets that store their own voxels, in blocks of a limited size;
* accepts only filters whose output can be limited, and decompresses each block with `decoding`,
  which refuses blocks that exceed their expected size;
* reads an attribute only if it is small.

`pack` and `unpack` convert small data, such as points and synapses, to and from HDF5 files in
memory.
"""

from __future__ import annotations

import io
import re
import struct
from itertools import product
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import BLOCK_BYTES, decode, packed_most
from chunkflow_py.errors import VolumeError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import h5py
    from numpy.typing import NDArray

SMALL = 1 << 10  # numbers in an attribute, or in a dataset used as one
_TEXT_BYTES = 1 << 20  # of an attribute
_ATTRIBUTES_BYTES = 1 << 24  # of all large attributes of a group or dataset
_LINKS = 32  # soft links followed one after the other
_SHUFFLE, _DEFLATE, _FLETCHER, _SZIP, _LZF = 2, 1, 3, 4, 32000
_FILTERS = {_SHUFFLE: "", _FLETCHER: "", _DEFLATE: "zlib", _LZF: "lzf", _SZIP: "szip"}
_CHECKSUMS = 64  # bytes that other filters may have added
_LZF_RATIO = 90  # the highest compression ratio of lzf
_LZF_BYTES = 1 << 27  # memory that h5py's lzf may take if imagecodecs is not installed

_RATIO, _RATIO_FROM = 32, 1 << 25  # bytes of arrays per byte of a file, plus a constant
_DATASETS = 256  # of one file; `pack` writes about a dozen
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def item_at(file: h5py.File, path: str, what: str) -> h5py.Group | h5py.Dataset | None:
    """Return the group or dataset at *path*; ``None`` if it does not exist.

    Args:
        file: the open file.
        path: names separated by ``/``.
        what: name of the file, for messages.

    Raises:
        VolumeError: a link leads to another file, or `check_dataset` refuses the dataset.
    """
    import h5py

    found: Any = file
    names, links = [name for name in path.split("/") if name not in ("", ".")][::-1], 0
    while names:
        name = names.pop()
        if not isinstance(found, h5py.Group):
            return None
        link = found.get(name, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            links += 1
            target = str(link.path)
            if links > _LINKS:
                msg = (
                    f"{path} of {what} leads through more than {_LINKS} links; give the path of "
                    "the target"
                )
                raise VolumeError(msg)
            if target.startswith("/"):
                found = file
            names += [part for part in target.split("/") if part not in ("", ".")][::-1]
            continue
        if not isinstance(link, h5py.HardLink):
            msg = (
                f"{path} of {what} is a link to another file, but chunkflow does not follow links "
                "from an HDF5 file to other files; copy the target into the file (h5copy)"
            )
            raise VolumeError(msg)
        found = found.get(name)
    if isinstance(found, h5py.Dataset):
        check_dataset(found, what)
    return found if isinstance(found, (h5py.Group, h5py.Dataset)) else None


def datasets_in(file: h5py.File) -> list[h5py.Dataset]:
    """Return the datasets of a file without reading them; links are not followed."""
    import h5py

    found: list[h5py.Dataset] = []

    def note(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(item)

    file.visititems(note)
    return found


def check_dataset(dataset: h5py.Dataset, what: str) -> None:
    """Raise an error if a dataset cannot be read safely.

    Raises:
        VolumeError: the voxels are in another file, the combination of filters is not supported,
            or the blocks are too large.
    """
    import h5py

    name = f"dataset {dataset.name} of {what}"
    remedy = "copy the dataset with its voxels into one file (h5repack)"
    plist = dataset.id.get_create_plist()
    if plist.get_external_count():
        other = plist.get_external(0)[0]
        text = other.decode(errors="replace") if isinstance(other, bytes) else str(other)
        msg = (
            f"{name} stores its voxels in another file, {text}, but chunkflow does not read other "
            f"files; {remedy}"
        )
        raise VolumeError(msg)
    if plist.get_layout() == h5py.h5d.VIRTUAL:
        msg = (
            f"{name} is virtual (its voxels are in other files), but chunkflow does not "
            f"read other files; {remedy}"
        )
        raise VolumeError(msg)
    codes = [plist.get_filter(n)[0] for n in range(plist.get_nfilters())]
    packing = [code for code in codes if code in (_DEFLATE, _LZF, _SZIP)]
    if any(code not in _FILTERS for code in codes) or len({*codes}) < len(codes) or packing[1:]:
        msg = (
            f"{name} uses the HDF5 filters {codes}, but may use only one of gzip (1), szip (4) and "
            "lzf (32000), with or without shuffle (2) and fletcher32 (3); convert the file with "
            "h5repack -f GZIP=1"
        )
        raise VolumeError(msg)
    size = dataset.dtype.itemsize
    for length in dataset.chunks or ():
        size *= length
    if dataset.chunks is not None and size > BLOCK_BYTES:
        msg = (
            f"{name} has blocks of shape {dataset.chunks} and type {dataset.dtype}, which have "
            f"{size} bytes each, more than the limit of {BLOCK_BYTES} bytes; save the dataset "
            "again in smaller blocks"
        )
        raise VolumeError(msg)


def read(
    dataset: h5py.Dataset, slices: Sequence[slice | int], what: str, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return a part of a dataset that `check_dataset` accepts.

    Args:
        dataset: dataset of numbers.
        slices: for each axis, a slice with start and stop inside the dataset, or an index.
        what: name of the file, for messages.
        out: array to fill (default: a new array).

    Raises:
        VolumeError: a block is damaged, or decodes to more than its expected size.
    """
    import numpy as np

    if out is None:
        lengths = [s.stop - s.start for s in slices if isinstance(s, slice)]
        out = np.empty(lengths, dataset.dtype)
    if not out.size:
        return out
    blocks = _Blocks(dataset, what)
    if blocks.packer is None:
        dataset.read_direct(out, tuple(slices))
        return out
    spans = [s if isinstance(s, slice) else slice(s, s + 1) for s in slices]
    whole = out.reshape([s.stop - s.start for s in spans])
    for start in blocks.touched_by(spans):
        block = blocks.unpacked(start)
        if not blocks.is_direct:
            continue  # its size is checked, so HDF5 may decode it
        pairs = [*zip(start, blocks.extent, spans, strict=True)]
        here = tuple(
            slice(max(a, s.start) - s.start, min(a + n, s.stop) - s.start) for a, n, s in pairs
        )
        inside = tuple(slice(max(a, s.start) - a, min(a + n, s.stop) - a) for a, n, s in pairs)
        whole[here] = blocks.fill if block is None else block[inside]
    if not blocks.is_direct:
        dataset.read_direct(out, tuple(slices))
    return out


def attribute(
    owner: h5py.Dataset | h5py.File, name: str, what: str, *, data: bytes | None = None
) -> Any:
    """Return an attribute; ``None`` if it does not exist.

    Args:
        owner: dataset or file that has the attribute.
        name: name of the attribute.
        what: name of the file, for messages.
        data: content of the whole file, if it is in memory (default: the file is opened by name).

    Raises:
        VolumeError: the attribute has more than `SMALL` numbers, more than one text, or a text of
            more than 1 MiB; or all attributes of *owner* together take more than 16 MiB.
    """
    import h5py

    # The library must read an attribute to find its size. Attributes in the object header are
    # small; for the others, the size of the heap gives their total size.
    total = h5py.h5o.get_info(owner.id).meta_size.attr.heap_size
    if total > _ATTRIBUTES_BYTES:
        msg = (
            f"the attributes of {owner.name} in {what} take {total} bytes, more than the "
            f"limit of {_ATTRIBUTES_BYTES}; remove the largest attributes"
        )
        raise VolumeError(msg)
    if name not in owner.attrs:
        return None
    held = owner.attrs.get_id(name)
    if held.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return None
    count, size = held.get_space().get_simple_extent_npoints(), held.get_storage_size()
    is_text = held.dtype.kind not in "buif"
    if count > (1 if is_text else SMALL) or size > _TEXT_BYTES:
        msg = (
            f"attribute {name} of {what} has {count} values in {size} bytes, more than the limit "
            f"of {SMALL} numbers or one text of {_TEXT_BYTES} bytes; remove the attribute"
        )
        raise VolumeError(msg)
    if not held.dtype.hasobject:
        return owner.attrs[name]
    try:
        return _heap_text(owner, name, data)
    except _LargeTextError as error:
        msg = f"attribute {name} of {what} is {error}; remove the attribute"
        raise VolumeError(msg) from None


def _heap_text(owner: h5py.Dataset | h5py.File, name: str, data: bytes | None) -> Any:
    """Return an attribute of variable length, such as a text written by h5py.

    The attribute itself contains only the length of the text, and the position of the text in a
    heap (a part of the file for such texts). HDF5 allocates as many bytes as this length states and
    reads the whole heap, but has no function that returns the length in advance. Therefore,
    this function finds the length in the bytes that HDF5 reads while it searches for the attribute.

    Raises:
        _LargeTextError: the text or its heap is too large, or its length is unknown.
    """
    import h5py

    with (
        io.FileIO(owner.file.filename) if data is None else io.BytesIO(data) as raw,
        h5py.File(watched := _WatchedFile(raw), "r") as file,
    ):
        attributes = file[owner.name].attrs
        attributes.get_id(name)
        lengths = _lengths_of(name, watched.parts())
        if not lengths:
            msg = "a text of unknown length"
            raise _LargeTextError(msg)
        if max(lengths) > _TEXT_BYTES:
            msg = f"a text of {max(lengths)} bytes, more than the limit of {_TEXT_BYTES}"
            raise _LargeTextError(msg)
        return attributes[name]


def _lengths_of(name: str, parts: Iterable[bytes]) -> list[int]:
    """Find the attributes called *name* in *parts* of a file; return the lengths of their texts.

    HDF5 stores an attribute as an "attribute message". The message consists of a version, a flag,
    the sizes of name, type and space (2 bytes each), an encoding (only in version 3), name, type,
    space and value. In version 1, name, type and space are each padded to 8 bytes. A value of
    variable length begins with its length (4 bytes). See the HDF5 file format specification, "The
    Attribute Message" and "Global Heap".
    """
    stored, found = name.encode() + b"\0", []
    for part in parts:
        for match in re.finditer(re.escape(stored), part):
            for version, head in ((1, 8), (2, 8), (3, 9)):
                start = match.start() - head
                if start < 0 or part[start] != version:
                    continue
                sizes = struct.unpack_from("<3H", part, start + 2)
                unit = 8 if version == 1 else 1
                at = match.start() + sum(-(-size // unit) * unit for size in sizes)
                if sizes[0] == len(stored) and at + 4 <= len(part):
                    found.append(int.from_bytes(part[at : at + 4], "little"))
    return found


class _LargeTextError(Exception):
    """An attribute is too large to be read; the message says why."""


class _WatchedFile:
    """A file-like object for HDF5 that records which bytes are read, and refuses large reads."""

    def __init__(self, raw: io.FileIO | io.BytesIO) -> None:
        self._raw = raw
        self._ranges: set[tuple[int, int]] = set()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def read(self, size: int = -1) -> bytes:
        """Raise an error; h5py requires this method, but calls only `readinto`."""
        raise NotImplementedError

    def readinto(self, buffer: Any) -> int | None:
        """Fill *buffer* with the bytes at the current position of the file.

        Raises:
            _LargeTextError: the buffer is larger than `_TEXT_BYTES`. While HDF5 reads an attribute,
                it uses such a large buffer only for a heap of long texts.
        """
        if len(buffer) > _TEXT_BYTES:
            msg = f"in a heap of {len(buffer)} bytes, more than the limit of {_TEXT_BYTES}"
            raise _LargeTextError(msg)
        start = self._raw.tell()
        self._ranges.add((start, start + len(buffer)))
        return self._raw.readinto(buffer)

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes that were read so far; adjacent and overlapping ranges are joined."""
        joined: list[tuple[int, int]] = []
        for start, end in sorted(self._ranges):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        for start, end in joined:
            self._raw.seek(start)
            yield self._raw.read(end - start)


def small(dataset: h5py.Dataset, what: str) -> NDArray[Any]:
    """Return the content of a small dataset that stores metadata, such as a voxel size.

    Raises:
        VolumeError: the dataset is empty, or has more than `SMALL` numbers.
    """
    if dataset.size is None or dataset.size > SMALL:
        msg = (
            f"dataset {dataset.name} of {what} has {dataset.size or 'no'} values, but must have 1 "
            f"to {SMALL}; save the file again"
        )
        raise VolumeError(msg)
    return read(dataset, [slice(0, n) for n in dataset.shape], what)


class _Blocks:
    """The blocks of one dataset.

    Attributes:
        packer: name of the codec that decompresses the blocks; ``None`` if the blocks are not
            compressed.
        is_direct: whether `unpacked` returns the voxels of a block. If not, `unpacked` only checks
            the block, and HDF5 must read the voxels.
        extent: extent of a block, voxels.
        fill: value of the voxels of blocks that are not stored.
    """

    def __init__(self, dataset: h5py.Dataset, what: str) -> None:
        import h5py
        import numpy as np

        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(n) for n in range(plist.get_nfilters())]
        self._dataset, self._what = dataset, what
        self._codes: list[int] = [each[0] for each in filters]
        self.packer = next((_FILTERS[code] for code in self._codes if _FILTERS[code]), None)
        if self.packer is None:
            return
        self.extent: tuple[int, ...] = dataset.chunks
        self._dtype: np.dtype[Any] = dataset.dtype
        self._size = self._dtype.itemsize
        for length in self.extent:
            self._size *= length
        if self.packer == "lzf":
            self._find_lzf()
        same = dataset.id.get_type().equal(h5py.h5t.py_create(self._dtype, logical=True))
        widths = [each[2][0] for each in filters if each[0] == _SHUFFLE and each[2]]
        self.is_direct = (
            same
            and {*self._codes} <= {_SHUFFLE, _DEFLATE, _LZF}
            and self._codes[-1] != _SHUFFLE
            and all(width == self._dtype.itemsize for width in widths)
            and self.packer in ("zlib", "lzf")
        )
        self.fill: Any = 0
        if plist.fill_value_defined() != h5py.h5d.FILL_VALUE_UNDEFINED:
            self.fill = dataset.fillvalue
        self._room = np.empty(packed_most(self._size), np.uint8)  # most pages are never used
        self._stored: set[tuple[int, ...]] | None = None

    def _find_lzf(self) -> None:
        # The lzf decoder of h5py trusts the decoded size that a block states. The decoder of
        # imagecodecs, which is used if it is installed, does not.
        most = _LZF_BYTES // _LZF_RATIO
        if self._size > most:
            with needs_extra("image", f"{self._what}, with blocks of more than {most} bytes,"):
                from imagecodecs import lzf_decode
        try:
            from imagecodecs import lzf_decode  # noqa: F401
        except ImportError:
            self.packer = "lzf of h5py"

    def touched_by(self, spans: Sequence[slice]) -> Iterator[tuple[int, ...]]:
        """Yield the start of each block that intersects the box *spans* (one slice per axis)."""
        ranges = (
            range(s.start // n * n, s.stop, n) for s, n in zip(spans, self.extent, strict=True)
        )
        return product(*ranges)

    def unpacked(self, start: tuple[int, ...]) -> NDArray[Any] | None:
        """Return a block; ``None`` if the block is not stored, or if HDF5 must read it.

        Raises:
            VolumeError: the block is damaged, or decodes to more than its expected size.
        """
        import numpy as np

        try:
            mask, data = self._dataset.id.read_direct_chunk(start, out=self._room)
        except (RuntimeError, OSError, ValueError) as error:
            if not self._is_stored(start):
                return None
            reason = str(error)
            if isinstance(error, ValueError):  # the block is larger than the buffer
                reason = f"the block is stored in more than {len(self._room)} bytes"
            raise self._damage(start, reason) from error
        try:
            content = self._content(mask, data)
        except Exception as error:
            raise self._damage(start, str(error)) from error
        if not self.is_direct:
            return None
        if len(content) != self._size:
            raise self._damage(start, f"it decodes to {len(content)} bytes, not {self._size}")
        if _SHUFFLE in self._codes and not mask >> self._codes.index(_SHUFFLE) & 1:
            planes = np.frombuffer(content, np.uint8).reshape(self._dtype.itemsize, -1)
            content = np.ascontiguousarray(planes.T)
        return np.frombuffer(content, self._dtype).reshape(self.extent)

    def _content(self, mask: int, data: Any) -> Any:
        # Of a block compressed with szip, only the size is checked; HDF5 decodes the block.
        steps = [code for n, code in enumerate(self._codes) if not mask >> n & 1]
        most = self._size + _CHECKSUMS
        if steps and steps[-1] == _FLETCHER:
            data = data[:-4]
        if not any(_FILTERS[code] for code in steps):
            return decode("raw", data, most)
        if self.packer == "lzf of h5py":
            return decode("raw", data, _LZF_BYTES // _LZF_RATIO)
        if self.packer == "szip":  # the first bytes are the length, which HDF5 allocates
            length = int.from_bytes(data[:4], "little")
            if length > most:
                msg = f"it decodes to {length} bytes, more than the expected {most}"
                raise ValueError(msg)
            return b""
        return decode(str(self.packer), data, most)

    def _is_stored(self, start: tuple[int, ...]) -> bool:
        if self._stored is None:
            stored: set[tuple[int, ...]] = set()

            def note(info: Any) -> None:
                stored.add(tuple(info.chunk_offset))

            self._dataset.id.chunk_iter(note)
            self._stored = stored
        return start in self._stored

    def _damage(self, start: tuple[int, ...], reason: str) -> VolumeError:
        return VolumeError(
            f"cannot read {self._what}, which seems damaged: block {start} of "
            f"{self._dataset.name}: {reason}; save the file again"
        )


# --- small files as bytes -------------------------------------------------------------------------


def pack(datasets: Mapping[str, Any], attributes: Mapping[str, str]) -> bytes:
    """Return an HDF5 file of arrays and attributes; equal content gives equal bytes.

    Args:
        datasets: arrays of numbers by name; a name whose value is ``None`` is left out.
        attributes: texts by name, stored as attributes of the file.
    """
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in datasets.items():
            if values is not None:
                file.create_dataset(name, data=values, track_times=False)
        file.attrs.update(attributes)
    return buffer.getvalue()


def unpack(
    data: bytes, what: str, attributes: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numeric datasets in the root group of an HDF5 file, and selected attributes.

    Args:
        data: the whole file.
        what: name of the file, for messages.
        attributes: names of the attributes to return; missing attributes are returned as ``None``.

    Raises:
        VolumeError: the data are not an HDF5 file, are damaged, refer to other files, or have
            datasets that are much larger than the file.
    """
    import h5py

    if not data.startswith(SIGNATURE):
        msg = f"{what} is not an HDF5 file; check its name"
        raise VolumeError(msg)
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            found = _datasets(file, what)
            size = sum(dataset.nbytes for dataset in found.values())
            if size > _RATIO * len(data) + _RATIO_FROM:
                msg = (
                    f"the datasets of {what} have {size} bytes, more than {_RATIO} times the "
                    f"{len(data)} bytes of the file; save the file again"
                )
                raise VolumeError(msg)
            arrays = {
                name: read(dataset, [slice(0, n) for n in dataset.shape], what)
                for name, dataset in found.items()
            }
            return arrays, {name: attribute(file, name, what, data=data) for name in attributes}
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, VolumeError):
            raise
        reason = str(error).strip("'\"").splitlines()[0]
        msg = f"cannot read {what}, which seems damaged: {reason}; save the file again"
        raise VolumeError(msg) from error


def _datasets(file: h5py.File, what: str) -> dict[str, h5py.Dataset]:
    """Return the numeric datasets in the root group of a file, by name."""
    import h5py

    if len(file) > _DATASETS:
        msg = f"{what} has {len(file)} entries, more than the limit of {_DATASETS}; split the file"
        raise VolumeError(msg)
    found = {}
    for name in file:
        item = item_at(file, name, what)
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "buif":
            found[name] = item
    return found
