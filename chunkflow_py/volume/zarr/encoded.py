"""A level of a volume of blocks that knows the name of its encoding."""

from __future__ import annotations

from chunkflow_py.volume.engine.blocks import BlockVolume


class EncodedVolume(BlockVolume):
    """A `BlockVolume`.

    Attributes:
        encoding: compression of the blocks, as `VolumeSpec` names it, where it has a name there.
        documents: keys of the metadata that say what this level holds, as far as they exist.
    """

    encoding: str | None = None
    documents: tuple[str, ...] = ()
