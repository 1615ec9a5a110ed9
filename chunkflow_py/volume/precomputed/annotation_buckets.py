"""Store rows of an array in buckets on the disk, so that each bucket can be sorted in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_BUFFER_BYTES = 1 << 25


class Buckets:
    """Rows of an array, divided into buckets; each bucket is a file.

    The rows of a bucket keep the order in which they are added.

    Args:
        folder: folder for the files; the constructor creates the folder.
        dtype: dtype of a row.

    Attributes:
        counts: how many rows each bucket has, by the number of the bucket.
    """

    def __init__(self, folder: Path, dtype: Any) -> None:
        """Create the folder."""
        folder.mkdir()
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._waiting: dict[int, list[NDArray[Any]]] = {}
        self._waiting_bytes = 0
        self.counts: dict[int, int] = {}

    def add(self, numbers: NDArray[Any], rows: NDArray[Any]) -> None:
        """Add row i to the bucket with the number ``numbers[i]``."""
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows[order]
        for start, count in zip(*runs_of(numbers), strict=True):
            self.append(int(numbers[start]), rows[start : start + count])

    def append(self, number: int, rows: NDArray[Any]) -> None:
        """Add rows to one bucket."""
        self._waiting.setdefault(number, []).append(rows)
        self.counts[number] = self.counts.get(number, 0) + len(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        for number, parts in self._waiting.items():
            with (self._folder / str(number)).open("ab") as file:
                for part in parts:
                    np.ascontiguousarray(part, self._dtype).tofile(file)
        self._waiting.clear()
        self._waiting_bytes = 0

    def read(self, number: int) -> NDArray[Any]:
        """Return the rows of a bucket."""
        self._flush()
        path = self._folder / str(number)
        return np.fromfile(path, self._dtype) if path.exists() else np.empty(0, self._dtype)

    def remove(self, number: int) -> None:
        """Remove the rows of a bucket, to free its space on the disk."""
        (self._folder / str(number)).unlink(missing_ok=True)

    def __len__(self) -> int:
        """Return the number of rows in all buckets."""
        return sum(self.counts.values())

    def batches(self, number: int, rows: int = 1 << 18) -> Iterator[NDArray[Any]]:
        """Yield the rows of bucket *number*, in arrays of at most *rows* rows."""
        self._flush()
        for start in range(0, self.counts.get(number, 0), rows):
            offset = start * self._dtype.itemsize
            yield np.fromfile(self._folder / str(number), self._dtype, rows, offset=offset)


def runs_of(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and the length of each run of equal values."""
    is_first = np.ones(len(values), bool)
    is_first[1:] = values[1:] != values[:-1]
    starts = np.flatnonzero(is_first)
    return starts, np.diff(starts, append=len(values))
