"""Read untrusted HDF5 files safely; no other module opens HDF5 files.

An HDF5 file may name other files of the machine, as places of its voxels (external storage, virtual
datasets) and as parts of its tree (external links); the library follows them, for reading and for
writing. It loads a plugin for a filter that it does not know, and its filters take whatever memory
the compressed bytes of a block ask for. So here

* a name is followed link by link (`item_at`), and never out of the file;
* a dataset has to hold its own voxels, numbers, in blocks of a bounded size;
* its filters are those of the library that have a bound here, and its blocks are decompressed by
  `decoding`, no further than the size of a block;
* an attribute is read if it is small.
"""

from __future__ import annotations

import io
from itertools import product
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import BLOCK_BYTES, decode, packed_most
from chunkflow_py.errors import VolumeError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import h5py
    from numpy.typing import NDArray

SMALL = 1 << 10  # numbers of an attribute, or of a dataset that stands for one
_TEXT_BYTES = 1 << 20  # of an attribute
_ATTRIBUTES_BYTES = 1 << 24  # of all large attributes of a group or dataset
_LINKS = 32  # soft links that lead to each other
_SHUFFLE, _DEFLATE, _FLETCHER, _SZIP, _LZF = 2, 1, 3, 4, 32000
_FILTERS = {_SHUFFLE: "", _FLETCHER: "", _DEFLATE: "zlib", _LZF: "lzf", _SZIP: "szip"}
_CHECKSUMS = 64  # bytes that other filters may have added
_LZF_RATIO = 90  # lzf never shrinks more than that
_LZF_BYTES = 1 << 27  # that the library's own lzf may take, where imagecodecs is not installed

_RATIO, _RATIO_FROM = 32, 1 << 25  # bytes of arrays for each of a file, and beside
_DATASETS = 256  # of one file; those of ours have a dozen
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def item_at(file: h5py.File, path: str, what: str) -> h5py.Group | h5py.Dataset | None:
    """Return the group or dataset *name*; ``None`` if it does not exist.

    Args:
        file: that is open.
        path: names with ``/`` between them.
        what: name of the file, for messages.

    Raises:
        VolumeError: a link leads to another file, or a dataset keeps its voxels in one; or it is
            what `check_dataset` refuses.
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
                msg = f"{path} of {what} leads through more than {_LINKS} links; name its target"
                raise VolumeError(msg)
            if target.startswith("/"):
                found = file
            names += [part for part in target.split("/") if part not in ("", ".")][::-1]
            continue
        if not isinstance(link, h5py.HardLink):
            msg = (
                f"{path} of {what} is a link to another file, which is not followed: a file must "
                "not name other files of this machine; copy what it links to into it (h5copy)"
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
    """Refuse a dataset whose voxels are in another file, or whose blocks have no size limit.

    Raises:
        VolumeError: says why.
    """
    import h5py

    name = f"dataset {dataset.name} of {what}"
    remedy = "copy it into one file of its own (h5repack)"
    plist = dataset.id.get_create_plist()
    if plist.get_external_count():
        other = plist.get_external(0)[0]
        text = other.decode(errors="replace") if isinstance(other, bytes) else str(other)
        msg = (
            f"{name} keeps its voxels in another file, {text}, which is not opened: a file must "
            f"not name other files of this machine; {remedy}"
        )
        raise VolumeError(msg)
    if plist.get_layout() == h5py.h5d.VIRTUAL:
        msg = (
            f"{name} is virtual: its voxels are in other files, which are not opened: a file must "
            f"not name other files of this machine; {remedy}"
        )
        raise VolumeError(msg)
    codes = [plist.get_filter(n)[0] for n in range(plist.get_nfilters())]
    packing = [code for code in codes if code in (_DEFLATE, _LZF, _SZIP)]
    if any(code not in _FILTERS for code in codes) or len({*codes}) < len(codes) or packing[1:]:
        msg = (
            f"{name} is compressed by the HDF5 filters {codes}; only one of gzip (1), szip (4) and "
            "lzf (32000), with shuffle (2) and fletcher32 (3), is read, and no plugin is loaded; "
            "store it again by h5repack -f GZIP=1"
        )
        raise VolumeError(msg)
    size = dataset.dtype.itemsize
    for length in dataset.chunks or ():
        size *= length
    if dataset.chunks is not None and size > BLOCK_BYTES:
        msg = (
            f"{name} has blocks of {dataset.chunks} {dataset.dtype}, which are {size} bytes, more "
            f"than the {BLOCK_BYTES} that are read at once; store it again in smaller blocks"
        )
        raise VolumeError(msg)


def read(
    dataset: h5py.Dataset, slices: Sequence[slice | int], what: str, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return a part of a dataset that `check_dataset` accepts.

    Args:
        dataset: of numbers.
        slices: one for each axis, with start and stop, inside of the dataset; or a position.
        what: name of the file, for messages.
        out: where to put it.

    Raises:
        VolumeError: a block is damaged, or unpacks to more than its size.
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
            continue  # HDF5 may unpack it: it is no larger than it should be
        pairs = [*zip(start, blocks.extent, spans, strict=True)]
        here = tuple(
            slice(max(a, s.start) - s.start, min(a + n, s.stop) - s.start) for a, n, s in pairs
        )
        inside = tuple(slice(max(a, s.start) - a, min(a + n, s.stop) - a) for a, n, s in pairs)
        whole[here] = blocks.fill if block is None else block[inside]
    if not blocks.is_direct:
        dataset.read_direct(out, tuple(slices))
    return out


def attribute(owner: h5py.Dataset | h5py.File, name: str, what: str) -> Any:
    """Return an attribute; ``None`` if it does not exist.

    Raises:
        VolumeError: it holds more than `SMALL` numbers, or more than one text; or the owner's
            attributes are so large that looking for one would take much memory.
    """
    import h5py

    # The library reads an attribute to tell its size, and those that it keeps in the header are
    # small; of the others the heap says how large they are together.
    total = h5py.h5o.get_info(owner.id).meta_size.attr.heap_size
    if total > _ATTRIBUTES_BYTES:
        msg = (
            f"the attributes of {owner.name} in {what} take {total} bytes, more than the "
            f"{_ATTRIBUTES_BYTES} that are opened; remove the largest"
        )
        raise VolumeError(msg)
    if name not in owner.attrs:
        return None
    held = owner.attrs.get_id(name)
    count, size = held.get_space().get_simple_extent_npoints(), held.get_storage_size()
    is_text = held.dtype.kind not in "buif"
    if count > (1 if is_text else SMALL) or size > _TEXT_BYTES:
        msg = (
            f"attribute {name} of {what} holds {count} values in {size} bytes, more than the "
            f"{SMALL} numbers or the one text that are read; remove it"
        )
        raise VolumeError(msg)
    value = owner.attrs[name]
    return None if isinstance(value, h5py.Empty) else value


def small(dataset: h5py.Dataset, what: str) -> NDArray[Any]:
    """Return all of a dataset that stands for an attribute.

    Raises:
        VolumeError: it holds more than `SMALL` numbers.
    """
    if dataset.size is None or dataset.size > SMALL:
        msg = (
            f"dataset {dataset.name} of {what} holds {dataset.size or 'no'} values, not up to "
            f"{SMALL} numbers, which are read; write it again"
        )
        raise VolumeError(msg)
    return read(dataset, [slice(0, n) for n in dataset.shape], what)


class _Blocks:
    """The blocks of one dataset.

    Attributes:
        packer: codec of `decode` for them, or ``None`` where they are not compressed.
        is_direct: whether what `unpacked` returns are the voxels; else it has only been looked at.
        extent: of a block.
        fill: value of the voxels of a block that is not stored.
    """

    def __init__(self, dataset: h5py.Dataset, what: str) -> None:
        """Find the filters of the dataset."""
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
        self._room = np.empty(packed_most(self._size), np.uint8)  # of which little is touched
        self._stored: set[tuple[int, ...]] | None = None

    def _find_lzf(self) -> None:
        """Find a decoder for lzf; that of h5py trusts the size that a block declares."""
        most = _LZF_BYTES // _LZF_RATIO
        if self._size > most:
            with needs_extra("image", f"{self._what}, whose blocks are larger than {most} bytes"):
                from imagecodecs import lzf_decode
        try:
            from imagecodecs import lzf_decode  # noqa: F401
        except ImportError:
            self.packer = "lzf of h5py"

    def touched_by(self, spans: Sequence[slice]) -> Iterator[tuple[int, ...]]:
        """Yield where each block that has voxels in *spans* begins."""
        ranges = (
            range(s.start // n * n, s.stop, n) for s, n in zip(spans, self.extent, strict=True)
        )
        return product(*ranges)

    def unpacked(self, start: tuple[int, ...]) -> NDArray[Any] | None:
        """Return a block, or ``None`` if it is not stored.

        Raises:
            VolumeError: it is damaged, or unpacks to more than its size.
        """
        import numpy as np

        try:
            mask, data = self._dataset.id.read_direct_chunk(start, out=self._room)
        except (RuntimeError, OSError, ValueError) as error:
            if not self._is_stored(start):
                return None
            reason = str(error)
            if isinstance(error, ValueError):  # it does not fit
                reason = f"it is stored in more than {len(self._room)} bytes"
            raise self._damage(start, reason) from error
        try:
            content = self._content(mask, data)
        except Exception as error:
            raise self._damage(start, str(error)) from error
        if not self.is_direct:
            return None
        if len(content) != self._size:
            raise self._damage(start, f"it holds {len(content)} bytes, not {self._size}")
        if _SHUFFLE in self._codes and not mask >> self._codes.index(_SHUFFLE) & 1:
            planes = np.frombuffer(content, np.uint8).reshape(self._dtype.itemsize, -1)
            content = np.ascontiguousarray(planes.T)
        return np.frombuffer(content, self._dtype).reshape(self.extent)

    def _content(self, mask: int, data: Any) -> Any:
        """Decompress a block, after checking the size of its content."""
        steps = [code for n, code in enumerate(self._codes) if not mask >> n & 1]
        most = self._size + _CHECKSUMS
        if steps and steps[-1] == _FLETCHER:
            data = data[:-4]
        if not any(_FILTERS[code] for code in steps):
            return decode("raw", data, most)
        if self.packer == "lzf of h5py":
            return decode("raw", data, _LZF_BYTES // _LZF_RATIO)
        if self.packer == "szip":  # it begins with its length, by which memory is taken
            length = int.from_bytes(data[:4], "little")
            if length > most:
                msg = f"it unpacks to {length} bytes, more than the {most} that are expected"
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
            f"{self._dataset.name}: {reason}; write it again"
        )


# --- small files as bytes -------------------------------------------------------------------------


def pack(datasets: Mapping[str, Any], attributes: Mapping[str, str]) -> bytes:
    """Return an HDF5 file that holds arrays and attributes; the same for the same content.

    Args:
        datasets: name -> array of numbers; what is ``None`` is left out.
        attributes: of the file, texts.
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
    """Return the datasets of numbers at the top of an HDF5 file, and some of its attributes.

    Args:
        data: the whole file.
        what: its name, for messages.
        attributes: names of those that are wanted; ``None`` stands for what is not there.

    Raises:
        VolumeError: it is not an HDF5 file, is damaged, names other files, or its datasets are
            much larger than it.
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
                    f"{len(data)} of the file; write it again"
                )
                raise VolumeError(msg)
            arrays = {
                name: read(dataset, [slice(0, n) for n in dataset.shape], what)
                for name, dataset in found.items()
            }
            return arrays, {name: attribute(file, name, what) for name in attributes}
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, VolumeError):
            raise
        reason = str(error).strip("'\"").splitlines()[0]
        msg = f"cannot read {what}, which seems damaged: {reason}; write it again"
        raise VolumeError(msg) from error


def _datasets(file: h5py.File, what: str) -> dict[str, h5py.Dataset]:
    """Return the datasets of numbers at the top of a file, by their names."""
    import h5py

    if len(file) > _DATASETS:
        msg = f"{what} holds {len(file)} datasets, more than the {_DATASETS} that are read"
        raise VolumeError(msg)
    found = {}
    for name in file:
        item = item_at(file, name, what)
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "buif":
            found[name] = item
    return found
