"""Read segmentations from a PyChunkedGraph server (CAVE), with CloudVolume.

Reading returns the IDs of supervoxels, which proofreading does not change. CloudVolume reads the
token for the server from ``~/.cloudvolume/secrets/cave-secret.json``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.volume import open_volume as open_any
from chunkflow_py.volume.foreign_errors import translated_errors
from chunkflow_py.volume.precomputed.precomputed_info import scale_bounds
from chunkflow_py.volume.protocol import check_channels, check_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import StoredUnit, VolumeOptions


class GrapheneVolume:
    """One level of a segmentation on a PyChunkedGraph server, as a read-only `Volume`.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times, mips,
            single_writer: see `Volume`.
    """

    single_writer = False

    def __init__(self, location: Location, mip: int, opening: VolumeOptions) -> None:
        """Fetch the info file from the server.

        Raises:
            VolumeNotFoundError: the level does not exist.
            VolumeError: the server cannot be reached or denies access, or returns an info file that
                is not supported.
            MissingExtraError: CloudVolume is not installed.
        """
        with needs_extra("precomputed", "a graphene volume"):
            import cloudvolume
        self.url, self._address = location.url, location.address
        self._mip, self._opening = mip, opening
        with translated_errors(f"cannot open {self.url}"):
            self._cloud: Any = cloudvolume.CloudVolume(
                f"graphene://{location.store_url}",
                fill_missing=opening.fill_missing,
                use_https=opening.access.anonymous,
                secrets="anonymous" if opening.access.anonymous else None,  # not optional
                progress=False,
                cache=False,
                parallel=1,
            )
            info = self._cloud.info
            self.mips = tuple(range(len(info["scales"])))
            if mip not in self.mips:
                levels = ", ".join(str(level) for level in self.mips)
                msg = f"{self.url} has no mip {mip}; it has mip {levels}"
                raise VolumeNotFoundError(msg)
            scale = info["scales"][mip]
            self.bounds = scale_bounds(scale)
            z, y, x = (float(nm) for nm in scale["resolution"][::-1])
            self.voxel_size_nm = (z, y, x)
            self.dtype: np.dtype[Any] = np.dtype(info["data_type"])
            self.block_size = self.write_unit = Zyx.of(scale["chunk_sizes"][0][::-1])
        self.channels: int | None = None
        self.kind: Kind | None = "segmentation"
        self.times: int | None = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """Pickle the address and the options, not voxels; unpickling opens the volume again."""
        return partial(open_any, self._address, self._mip, opening=self._opening), ()

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,  # noqa: ARG002  (it has no time axis)
    ) -> Chunk:
        """Return a chunk with the ids of the supervoxels inside *bbox*; see `Volume.read`."""
        check_inside(bbox, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        voxels: np.ndarray[Any, Any] = np.zeros(bbox.size, self.dtype)
        if not bbox.is_empty:
            with translated_errors(f"cannot read {bbox} of {self.url}"):
                xyzc = self._cloud.download(_cloud_box(bbox), mip=self._mip, agglomerate=False)
                voxels = np.ascontiguousarray(np.asarray(xyzc)[..., 0].T)
        return Chunk(voxels, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:  # noqa: ARG002
        """Raise an error, because only proofreading on the server changes the segmentation."""
        raise VolumeError(_READ_ONLY.format(url=self.url))

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:  # noqa: ARG002
        """Return an empty list, because tasks do not write to this volume."""
        return []

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:  # noqa: ARG002
        """Return whether every block that *bbox* touches is stored; see `Volume`."""
        check_inside(bbox, self.bounds, self.url)
        if bbox.is_empty:
            return True
        with translated_errors(f"cannot check {bbox} of {self.url}"):
            return all(self._cloud.image.exists(_cloud_box(bbox), mip=self._mip).values())

    def stored_units(self) -> Iterator[StoredUnit]:
        """Raise an error, because the server does not provide a list of stored blocks."""
        msg = f"cannot list the stored blocks of {self.url}: the server does not provide a list"
        raise VolumeError(msg)


_READ_ONLY = "{url} is a graphene volume, which is read only; write to precomputed:// or zarr://"


def open_volume(location: Location, mip: int, mode: Mode, opening: VolumeOptions) -> GrapheneVolume:
    """Open level *mip* for reading.

    Raises:
        VolumeError: *mode* is ``r+``; also the errors of `GrapheneVolume`.
    """
    if mode != "r":
        raise VolumeError(_READ_ONLY.format(url=location))
    return GrapheneVolume(location, mip, opening)


def _cloud_box(bbox: BoundingBox) -> Any:
    from cloudvolume import Bbox

    return Bbox(bbox.start[::-1], bbox.stop[::-1])
