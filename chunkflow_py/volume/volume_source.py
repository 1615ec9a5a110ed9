"""Sources from which loaders read: one stored volume for all tasks, or one file per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location, level_name
from chunkflow_py.volume.protocol import VolumeOptions

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import BoundingBox, Region
    from chunkflow_py.volume.protocol import Volume


class VolumeSource(ABC):
    """Opens the volumes that a loader reads: one volume for all tasks, or one file per task.

    Attributes:
        is_shared: whether all tasks read the same volume, which is opened once.
        thread_safe: whether several tasks may read at the same time.
        tells_missing: whether a missing block can be distinguished from a block of zeros.
        removes_empty: whether to delete a file after reading it, if the file is empty or contains
            only zeros.
    """

    is_shared: bool = True
    thread_safe: bool = True
    tells_missing: bool = True
    removes_empty: bool = False

    @property
    @abstractmethod
    def origins(self) -> tuple[str, ...]:
        """Canonical addresses of the volumes or files to read; no operator may write to these."""

    @property
    def is_one_file(self) -> bool:
        """Whether all tasks read one file, which each task opens for itself."""
        return False

    @abstractmethod
    def open(
        self,
        region: Region | BoundingBox | None = None,
        *,
        cache_bytes: int = 0,
        is_whole: bool = False,
    ) -> Volume | None:
        """Open the volume of a task.

        Args:
            region: region of the task; a shared source ignores it.
            cache_bytes: size of the cache of decoded blocks, in bytes.
            is_whole: whether the whole volume will be read in one call.

        Returns:
            The volume, or ``None`` for an empty file.

        Raises:
            VolumeNotFoundError: the volume or the level does not exist.
            VolumeError: the volume cannot be read.
        """

    def remove(self, region: Region | BoundingBox | None) -> None:  # noqa: B027  (few have to)
        """Delete the file of *region*; sources that set `removes_empty` override this method."""


@dataclass
class StoredVolume(VolumeSource):
    """Opens one stored volume for all tasks, with `open_volume`.

    Attributes:
        url: address of the volume.
        mip: resolution level.
        format: format of the volume, if the address does not name it.
        options: options for reading the volume; if ``cache_bytes`` is 0, the loader chooses the
            size of the cache.
    """

    url: str
    mip: int = 0
    format: str | None = None
    options: VolumeOptions = field(default_factory=VolumeOptions)

    @property
    def origins(self) -> tuple[str, ...]:
        """Canonical name of the level to read, as a tuple with one element."""
        return (level_name(Location.parse(self.url), self.mip),)

    def open(
        self,
        region: Region | BoundingBox | None = None,  # noqa: ARG002
        *,
        cache_bytes: int = 0,
        is_whole: bool = False,  # noqa: ARG002
    ) -> Volume:
        """Open level `mip` of the volume."""
        options = self.options
        if not options.cache_bytes:
            options = replace(options, cache_bytes=cache_bytes)
        return open_volume(self.url, self.mip, format=self.format, opening=options)
