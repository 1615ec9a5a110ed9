"""Neuroglancer precomputed volumes: read through cloud-volume, written block by block.

```
em/info                               what there is, all levels
em/8_8_40/0-64_0-64_0-32.gz           one block, named by its x, y and z in voxels
```

On local disks every file is written whole (`store.local`): a full disk or a kill leaves the old
block or the new one. Files are what cloud-volume itself would write, so that it and Neuroglancer
read them.
"""

from __future__ import annotations

import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.chunk import KINDS, Chunk
from chunkflow_py.errors import ChunkflowError, VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.store.local import os_errors, write_whole
from chunkflow_py.volume import precomputed_info
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.precomputed_info import scale_bounds
from chunkflow_py.volume.protocol import check_channels, check_chunk, check_inside

with needs_extra("precomputed", "a precomputed volume"):
    import cloudvolume
    import cloudvolume.chunks
    from cloudfiles import CloudFiles
    from cloudvolume.exceptions import InfoUnavailableError, ScaleUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from chunkflow_py.chunk import Kind
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.precomputed_info import LayerType
    from chunkflow_py.volume.protocol import VolumeSpec

# As cloud-volume: these encodings do not compress by themselves.
_GZIPPED = ("raw", "compressed_segmentation", "compresso", "crackle")
_CONTENT_TYPES = {"jpeg": "image/jpeg", "png": "image/png", "jxl": "image/jxl"}
_EXTENSIONS = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class PrecomputedVolume:
    """One level of a precomputed volume as a `Volume`; always z, y, x outside, x, y, z inside.

    Args:
        place: what was opened.
        mip: resolution level.
        mode: ``r`` or ``r+``.
        fill_missing: read blocks that are not stored as zeros.
        use_https: read a public bucket without credentials.
        store_zeros: write blocks of zeros too.
        parallel: blocks to encode and write at the same time.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times: as
            `Volume` says; a volume with one channel has no channel axis.
    """

    def __init__(
        self,
        place: Location,
        mip: int,
        mode: Mode,
        *,
        fill_missing: bool = True,
        use_https: bool = False,
        store_zeros: bool = False,
        parallel: int = 1,
    ) -> None:
        """Read the info file.

        Raises:
            VolumeNotFoundError: there is none, or it has no such level.
            VolumeError: it cannot be understood.
        """
        self.url, self.mip, self._place, self._mode = place.url, mip, place, mode
        self._store_zeros, self._parallel = store_zeros, parallel
        with _translated("open", place):
            try:
                self._cloud = cloudvolume.CloudVolume(
                    f"precomputed://{place.address}", mip=mip, bounded=True,
                    fill_missing=fill_missing, use_https=use_https, progress=False, cache=False,
                    green_threads=False, parallel=1,
                )  # fmt: skip
            except InfoUnavailableError as error:
                msg = f"{place} holds no precomputed volume: it has no info file; {_CREATE}"
                raise VolumeNotFoundError(msg) from error
            except ScaleUnavailableError as error:
                msg = f"{place} has no mip {mip}; it has {_levels(place)}"
                raise VolumeNotFoundError(msg) from error
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                msg = (
                    f"the info file of {place} is damaged or incomplete "
                    f"({type(error).__name__}: {error}); {_CREATE}"
                )
                raise VolumeError(msg) from error
            info = self._cloud.info
            scale = info["scales"][mip]
            self.bounds = scale_bounds(scale)
            z, y, x = scale["resolution"][::-1]
            self.voxel_size_nm = (float(z), float(y), float(x))
            self.dtype: np.dtype[Any] = np.dtype(info["data_type"])
            count = int(info["num_channels"])
            self.channels: int | None = None if count == 1 else count
            self.times: int | None = None
            said = precomputed_info.stored_kind(info)
            self.kind: Kind | None = next((kind for kind in KINDS if kind == said), None)
            self.block_size = Zyx.of(scale["chunk_sizes"][0][::-1])
            self.write_unit = self.block_size
            self.encoding: str = scale["encoding"]
            self._scale = scale

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,  # noqa: ARG002  (the same at all times)
    ) -> Chunk:
        """Return the voxels inside *bbox*, as `Volume.read` says."""
        check_inside(bbox, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        if bbox.is_empty:
            lead = () if self.channels is None else (len(channels or range(self.channels)),)
            voxels: np.ndarray[Any, Any] = np.zeros((*lead, *bbox.size), self.dtype)
            return Chunk(voxels, bbox.start, self.voxel_size_nm, self.kind, self.bounds)
        with _translated("read", self._place, bbox):
            found = np.asarray(self._cloud[bbox.slices()[::-1]])
        # (x, y, z, c) in Fortran order is (c, z, y, x) in C order: nothing is copied
        voxels = found.T
        if self.channels is None:
            voxels = voxels[0]
        elif channels is not None:
            voxels = voxels[list(channels)]
        voxels = np.ascontiguousarray(voxels)
        return Chunk(voxels, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def write(self, chunk: Chunk, *, time: int | None = None) -> None:
        """Write *chunk*, as `Volume.write` says."""
        if self._mode == "r":
            msg = f"{self.url} was opened for reading; open it with mode 'r+'"
            raise VolumeError(msg)
        if "sharding" in self._scale:
            msg = f"{self.url} is sharded at mip {self.mip}, which can be read but not written"
            raise VolumeError(msg)
        check_chunk(chunk, self, time)
        if chunk.bbox.is_empty:
            return
        start = self.bounds.start
        outer = chunk.bbox.aligned_outward(self.block_size, start)
        boxes = BoxGrid.covering(outer, self.block_size)
        if self._parallel == 1:
            for box in boxes:
                self._write_block(chunk, box)
            return
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="block") as pool:
            for done in [pool.submit(self._write_block, chunk, box) for box in boxes]:
                done.result()

    def _write_block(self, chunk: Chunk, box: BoundingBox) -> None:
        # The last block along an axis ends with the volume, and is named so.
        box = box.intersection(self.bounds)
        voxels = chunk.cut(box).array
        spans = [f"{a}-{b}" for a, b in zip(box.start, box.stop, strict=True)]
        key = f"{self._scale['key']}/{'_'.join(reversed(spans))}"
        gzipped = self.encoding in _GZIPPED
        with _translated("write", self._place, box):
            if not self._store_zeros and not voxels.any():
                self._remove(key)
                return
            content = self._encode(voxels)
            if gzipped:
                # no time stamp: the same voxels are the same bytes
                content = gzip.compress(content, compresslevel=6, mtime=0)
            if self._place.is_local:
                path = self._place.folder / (key + (".gz" if gzipped else ""))
                write_whole(path, content)
                self._remove(key, keep=path)
                return
            self._files().put(
                key,
                content,
                content_type=_content_type(self.encoding),
                compress="gzip" if gzipped else None,
                cache_control="no-cache",
                raw=True,
            )

    def _encode(self, voxels: np.ndarray[Any, Any]) -> bytes:
        if self.encoding == "raw":
            return np.ascontiguousarray(voxels).tobytes()  # C order of zyx is Fortran order of xyz
        image = np.asfortranarray(voxels[np.newaxis].T if voxels.ndim == 3 else voxels.T)
        meta = self._cloud.meta
        content: bytes = cloudvolume.chunks.encode(
            image,
            self.encoding,
            meta.compressed_segmentation_block_size(self.mip),
            compression_params=meta.compression_params(self.mip),
        )
        return bytes(content)

    def _remove(self, key: str, keep: Path | None = None) -> None:
        """Remove a block, or what other programs have stored of it under other extensions."""
        if not self._place.is_local:
            self._files().delete(key)
            return
        for extension in _EXTENSIONS:
            path = self._place.folder / (key + extension)
            if path != keep:
                path.unlink(missing_ok=True)

    def _files(self) -> Any:
        return CloudFiles(self._place.address, progress=False, green=False)


_CREATE = "check the path, or create it with create-info"


def open_volume(place: Location, mip: int, mode: Mode, **settings: Any) -> PrecomputedVolume:
    """Open one level; *settings* are those of `PrecomputedVolume`."""
    if place.is_local and not (place.folder / "info").is_file():
        msg = f"{place} holds no precomputed volume: it has no info file; {_CREATE}"
        raise VolumeNotFoundError(msg)
    return PrecomputedVolume(place, mip, mode, **settings)


def create_volume(
    spec: VolumeSpec,
    place: Location,
    mip: int = 0,
    *,
    factor: Iterable[int] = (2, 2, 2),
    max_mip: int = 0,
    layer_type: LayerType | None = None,
    **settings: Any,
) -> PrecomputedVolume:
    """Write the info file and open level *mip* for writing.

    Args:
        spec: of level *mip*.
        place: the volume.
        mip: level that *spec* describes.
        factor: shrinkage from each level to the next, zyx.
        max_mip: the coarsest level to announce.
        layer_type: ``image`` or ``segmentation`` (default: by the kind).
        settings: of `PrecomputedVolume`.

    Raises:
        VolumeError: it cannot be written, or the format cannot hold such voxels.
    """
    info = precomputed_info.create_info(
        spec, mip, factor=factor, max_mip=max_mip, layer_type=layer_type
    )
    write_json(place, "info", info)
    return PrecomputedVolume(place, mip, "r+", **settings)


def write_info(url: str, info: dict[str, Any], *, overwrite: bool = False) -> None:
    """Write the info file of a volume.

    Args:
        url: of the volume.
        info: what `precomputed_info.create_info` returns.
        overwrite: replace a file that says something else.

    Raises:
        VolumeError: there is such a file and it is not to be replaced, or it cannot be written.
    """
    place = Location.parse(url)
    found = read_json(place, "info")
    if found is not None and found != info and not overwrite:
        msg = (
            f"{place} has an info file that says something else; --overwrite replaces it, after "
            "which blocks of the old layout can no longer be read"
        )
        raise VolumeError(msg)
    write_json(place, "info", info)


def read_json(place: Location, name: str) -> Any:
    """Return the JSON file *name* below *place*, or ``None`` if there is none.

    Raises:
        VolumeError: it cannot be read.
    """
    with _translated("read", place / name):
        if place.is_local:
            path = place.folder / name
            return json.loads(path.read_bytes()) if path.is_file() else None
        return CloudFiles(place.address, progress=False, green=False).get_json(name)


def write_json(place: Location, name: str, value: Any) -> None:
    """Write the JSON file *name* below *place*, whole.

    Raises:
        VolumeError: it cannot be written.
    """
    content = json.dumps(value, indent=2).encode() + b"\n"
    with _translated("write", place / name):
        if place.is_local:
            write_whole(place.folder / name, content)
            return
        CloudFiles(place.address, progress=False, green=False).put(
            name, content, content_type="application/json", compress=None, cache_control="no-cache"
        )


def _levels(place: Location) -> str:
    info = read_json(place, "info") or {}
    return ", ".join(str(level) for level in range(len(info.get("scales", ())))) or "none"


def _content_type(encoding: str) -> str:
    if encoding in ("compressed_segmentation", "compresso", "crackle", "fpzip", "kempressed"):
        return f"image/x.{encoding}"
    return _CONTENT_TYPES.get(encoding, "application/octet-stream")


@contextmanager
def _translated(verb: str, place: Location, bbox: BoundingBox | None = None) -> Iterator[None]:
    what = f"{bbox} of {place}" if bbox is not None else str(place)
    try:
        with os_errors(verb, what):
            yield
    except ChunkflowError:
        raise
    except cloudvolume.exceptions.EmptyVolumeException as error:
        missing = _ANSI.sub("", str(error)).strip()
        msg = (
            f"cannot {verb} {what}: block {missing} is not stored; "
            "--fill-missing reads such blocks as zeros"
        )
        raise VolumeError(msg) from error
    except Exception as error:
        # cloud-volume, cloud-files and the codecs raise whatever the damage makes them stumble on
        reason = _ANSI.sub("", str(error)).strip() or type(error).__name__
        msg = f"cannot {verb} {what}: {reason}"
        raise VolumeError(msg) from error
