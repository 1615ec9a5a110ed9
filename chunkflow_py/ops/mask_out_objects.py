r"""Remove objects that are small or not selected.

Example: chunkflow load-h5 --file-name seg.h5 mask-out-objects --dust-size-threshold 100 \
  save-h5 --file-name kept.h5

Voxels are counted within the chunk, so an object that extends beyond the chunk may count as small.
--selected-obj-ids takes a list of ids (34,56,78), or the path or URL of a JSON file with a list of
ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import check_extra, needs_extra
from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from collections.abc import Collection

    from chunkflow_py.core.chunk import Chunk

SECTION = "segment"


def mask_out_objects(
    chunk: Chunk, dust_size_threshold: int | None = None, selected: Collection[int] | None = None
) -> Chunk:
    """Return *chunk* without objects that are small or not selected.

    Args:
        chunk: (z, y, x) or (1, z, y, x) labels of any integer type; 0 is background.
        dust_size_threshold: objects with fewer voxels in the chunk than this become 0 (default: no
            limit).
        selected: ids of the objects to keep (default: all).

    Returns:
        A chunk of the same shape and type.

    Raises:
        ChunkError: the voxels are not labels, or the chunk has several channels.
        MissingExtraError: the library fastremap is not installed.
    """
    from chunkflow_py.segmentation.labels.components import single_channel
    from chunkflow_py.segmentation.labels.object_selection import mask_out

    single_channel(chunk.array)
    with needs_extra("segmentation", "mask-out-objects"):
        labels = mask_out(chunk.array, dust_size_threshold or 0, selected)
    return chunk.with_array(labels)


@dataclass
class ObjectMasker(OperatorBase):
    """Removes small and unselected objects from the chunk of every task.

    Attributes:
        dust_size_threshold: remove objects with fewer voxels in the chunk than this.
        selected_obj_ids: ids to keep, separated by commas, or path or URL of a JSON file that holds
            a list of ids; with ``None``, all are kept.
        keeps_voxels: whether the output has the dtype, channels and kind (such as segmentation) of
            the input.
    """

    dust_size_threshold: int | None = None
    selected_obj_ids: str | None = None
    keeps_voxels: bool = field(default=True, metadata=HOOK)
    _selected: frozenset[int] | None = None

    @property
    @hook
    def cut_remedy(self) -> str | None:
        """Advice to log if objects are chosen by their size in the chunk, else ``None``."""
        if self.is_local:
            return None
        return "join labels first (stitch-labels), then remove small objects from the whole volume"

    @property
    @hook
    def is_local(self) -> bool:
        """Whether objects are removed only by id, so that the result is the same in every chunk."""
        return not self.dust_size_threshold

    @property
    @hook
    def needed_files(self) -> dict[str, str]:
        """File with the ids to keep, if it is on this machine."""
        path = self.selected_obj_ids or ""
        return {path: "data"} if path.endswith(".json") and "://" not in path else {}

    def __enter__(self) -> ObjectMasker:
        """Read the ids to keep.

        Raises:
            VolumeError: the file of ids is missing, or its content is not a list of ids.
        """
        text = self.selected_obj_ids
        if text is not None:
            from chunkflow_py.segmentation.labels.object_selection import ids_of_text, read_ids
            from chunkflow_py.store import open_store

            folder, _, name = text.rpartition("/")
            is_file = text.endswith(".json")
            self._selected = (
                read_ids(open_store(folder or "."), name) if is_file else ids_of_text(text)
            )
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the ids stay loaded."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """Set the voxels of the removed objects to 0."""
        if self._selected is None and self.selected_obj_ids is not None:
            self.__enter__()
        return mask_out_objects(chunk, self.dust_size_threshold, self._selected)


@transform
@click.option("--dust-size-threshold", "-d", type=click.IntRange(min=0),
              help="Remove objects with fewer voxels than this in the chunk.  "
                   "[default: none]")  # fmt: skip
@click.option("--selected-obj-ids", "-s",
              help="Ids to keep: a list such as 34,56,78, or a JSON file that holds a list.  "
                   "[default: all]")  # fmt: skip
def command(dust_size_threshold: int | None, selected_obj_ids: str | None) -> ObjectMasker:
    """Check the ids if they are given as a list, and return the operator."""
    check_extra("segmentation", "mask-out-objects", "fastremap")
    if selected_obj_ids is not None and not selected_obj_ids.endswith(".json"):
        from chunkflow_py.segmentation.labels.object_selection import ids_of_text

        ids_of_text(selected_obj_ids)
    return ObjectMasker(dust_size_threshold, selected_obj_ids)
