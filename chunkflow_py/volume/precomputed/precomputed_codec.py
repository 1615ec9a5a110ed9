"""Encode and decode precomputed blocks: raw with NumPy, most other encodings with cloud-volume.

```
voxels (c, z, y, x)  --encode-->  raw, jpeg, ...  --gzip-->  stored
```

C order of (c, z, y, x) is the Fortran order of (x, y, z, c) that the format requires. imagecodecs
encodes PNG, because cloud-volume does not support PNG with 16 bits or several channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import decode, npy, packed_most
from chunkflow_py.errors import MissingExtraError, needs_extra
from chunkflow_py.volume.engine.image_headers import DECLARED, check_declared
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

# cloud-volume gzips the first four. The others have no checksum, so that a truncated block would be
# read as wrong voxels: gzip adds a checksum, and cloud-volume can read such blocks.
GZIPPED = (
    "raw",
    "compressed_segmentation",
    "compresso",
    "crackle",
    "fpzip",
    "kempressed",
    "zfpc",
)
_GZIP = b"\x1f\x8b\x08"
_NPY_HEADER = 1 << 12  # limit in bytes; for an array of numbers it is 128
COMPRESSED = {".br": "brotli", ".bz2": "bz2", ".xz": "xz", ".zstd": "zstd"}
# settings of the codecs in a scale of the info file
_PARAMETERS = {
    "jpeg": {"level": "jpeg_quality"},
    "png": {"level": "png_level"},
    "fpzip": {"level": "fpzip_precision"},
    "jxl": {
        "level": "jxl_quality",
        "jxl_effort": "jxl_effort",
        "jxl_decodingspeed": "jxl_decodingspeed",
    },
    "zfpc": {
        "rate": "zfpc_rate",
        "precision": "zfpc_precision",
        "tolerance": "zfpc_tolerance",
        "correlated_dims": "zfpc_correlated_dims",
    },
}


class PrecomputedCodec:
    """Encodes and decodes the blocks of one level.

    Attributes:
        encoding: name of the encoding in the info file.
        gzipped: whether blocks are gzipped when written; reading detects gzip by its magic bytes.
    """

    def __init__(
        self, scale: Mapping[str, Any], dtype: np.dtype[Any], *, compress: bool = True
    ) -> None:
        """Load the library of the encoding.

        Args:
            scale: entry of the level in the info file.
            dtype: type of the voxels, little endian.
            compress: whether to gzip blocks if their encoding is one of `GZIPPED`.

        Raises:
            MissingExtraError: the library is not installed.
        """
        self.encoding: str = scale["encoding"]
        self.gzipped = compress and self.encoding in GZIPPED
        self._dtype = dtype
        self._cells = scale.get("compressed_segmentation_block_size", (8, 8, 8))
        names = _PARAMETERS.get(self.encoding, {})
        self._parameters = {ours: scale[name] for ours, name in names.items() if name in scale}
        self._library = None if self.encoding == "raw" else _library(self.encoding)

    def encode(self, voxels: NDArray[Any]) -> bytes:
        """Return a block, (z, y, x) or (c, z, y, x), as the bytes to store."""
        data: Any
        if self._library is None:
            data = np.ascontiguousarray(voxels)
        elif self.encoding == "png":
            pixels = np.moveaxis(voxels, 0, -1) if voxels.ndim == 4 else voxels
            z, y, *rest = pixels.shape
            pixels = np.ascontiguousarray(pixels).reshape(z * y, *rest)
            data = self._library.png_encode(pixels, level=self._parameters.get("level"))
        else:
            image, encoding = voxels[np.newaxis].T if voxels.ndim == 3 else voxels.T, self.encoding
            if encoding == "kempressed":  # cloud-volume's encoder confuses the voxels of a column
                image, encoding = 2 + image.swapaxes(2, 3), "fpzip"
            data = self._library.encode(
                np.asfortranarray(image),
                encoding,
                self._cells,
                compression_params=self._parameters,
            )
        if self.gzipped:
            return gzip_compress(data)
        return data.tobytes() if isinstance(data, np.ndarray) else bytes(data)

    def decode(self, data: bytes, extent: Sequence[int]) -> NDArray[Any]:
        """Return the voxels of a block of this *extent*, (z, y, x) or (c, z, y, x).

        Raises:
            Exception: *data* are damaged; the codec may raise any error.
            ValueError: the number of voxels does not match *extent*.
        """
        size = math.prod(extent) * self._dtype.itemsize
        data = _gunzipped(data, size, is_raw=self._library is None)
        if self._library is None:
            if len(data) != size:
                there, shape = len(data), tuple(extent)
                msg = (
                    f"the block has {there} bytes, but {shape} {self._dtype} voxels have {size} "
                    "bytes"
                )
                raise ValueError(msg)
            return np.frombuffer(data, self._dtype).reshape(extent)
        if not data:
            msg = "the block has no bytes"  # cloud-volume would return zeros
            raise ValueError(msg)
        zyx = tuple(extent[-3:])
        channels = extent[0] if len(extent) == 4 else 1
        shape = (*zyx[::-1], channels)
        if self.encoding in DECLARED:
            interleaved = self.encoding in ("jpeg", "jxl", "png")  # the channels of a pixel
            check_declared(self.encoding, data, math.prod(zyx) * (1 if interleaved else channels))
        if self.encoding == "png":
            pixels: NDArray[Any] = self._library.png_decode(data).reshape(*zyx, channels)
            voxels = np.moveaxis(pixels, -1, 0).astype(self._dtype, copy=False)
            return voxels if len(extent) == 4 else voxels[0]
        if self.encoding == "compressed_segmentation":
            _check_segmentation(data, shape[:3], self._cells, self._dtype.itemsize)
        image: NDArray[Any]
        if self.encoding in ("npz", "npz_uint8"):  # in cloud-volume a single compressed array
            image = npy(decode("zlib", data, size + _NPY_HEADER), size)
        else:
            image = self._library.decode(data, self.encoding, shape, self._dtype, self._cells)
        if image.size != math.prod(shape):
            msg = f"the block contains {image.shape} voxels, but {shape} are expected (xyzc)"
            raise ValueError(msg)
        if self.encoding == "npz_uint8":
            image = image.astype(self._dtype) / self._dtype.type(255)
        if channels > 1 and self.encoding == "jpeg":
            # cloud-volume returns the channels of each pixel interleaved
            pixels = image.ravel(order="F").reshape(*zyx, channels)
            return np.moveaxis(pixels, -1, 0).astype(self._dtype, copy=False)
        voxels = image.reshape(shape).T.astype(self._dtype, copy=False)
        return voxels if len(extent) == 4 else voxels[0]


def decompressed(data: bytes, extension: str, most: int) -> bytes:
    """Return the content of a block's file, decompressed as the file name extension requires.

    Args:
        data: content of the file.
        extension: extension of the file name. If `COMPRESSED` does not contain *extension*, *data*
            are returned unchanged.
        most: limit of the decompressed bytes.

    Raises:
        MissingExtraError: the library for the compression is not installed.
        Exception: the data are damaged, or decompress to more than *most* bytes.
    """
    codec = COMPRESSED.get(extension)
    if codec is None:
        return data
    with needs_extra("precomputed", f"a block compressed as {extension}"):
        return decode(codec, data, most)


def _gunzipped(data: bytes, size: int, *, is_raw: bool) -> bytes:
    """Return *data*, decompressed if they are gzip.

    Raw voxels may begin with the magic bytes of gzip by chance. If such *data* cannot be
    decompressed but have *size* bytes, they are returned unchanged.
    """
    if data[:3] != _GZIP:
        return data
    try:
        return decode("gzip", data, size if is_raw else packed_most(size))
    except Exception:
        if not is_raw or len(data) != size or _begins_a_gzip(data):
            raise
        return data  # raw voxels that begin with the magic bytes of gzip


def _begins_a_gzip(data: bytes) -> bool:
    import zlib

    try:
        zlib.decompressobj(31).decompress(data, len(data))
    except zlib.error:
        return False
    return True


def _library(encoding: str) -> Any:
    if encoding == "png":
        with needs_extra("image", "a precomputed volume encoded as png"):
            import imagecodecs
        return imagecodecs
    with needs_extra("precomputed", f"a precomputed volume encoded as {encoding}"):
        from cloudvolume import chunks
    missing = chunks.NEEDS_INSTALL.get("fpzip" if encoding == "kempressed" else encoding)
    if missing is not None:
        msg = (
            f"encoding {encoding} needs {missing}, which is not installed; install it with "
            f"pip install {missing}"
        )
        raise MissingExtraError(msg)
    return chunks


def _check_segmentation(
    data: bytes, extent: Sequence[int], cells: Sequence[int], voxel_bytes: int
) -> None:
    """Refuse a truncated block of compressed segmentation, which the codec does not check.

    A block contains one channel and consists of 32 bit words. The header has two words for each
    cell. The first word contains the position of the table of labels (24 bits) and the number of
    bits per voxel (8 bits). The second word is the position of the encoded voxels. See
    Neuroglancer's ``sliceview/compressed_segmentation``.

    Raises:
        ValueError: the block is too short, or its header is not valid.
    """
    if len(data) % 4:
        msg = f"the block has {len(data)} bytes, which is not a whole number of 32 bit words"
        raise ValueError(msg)
    content = np.frombuffer(data, "<u4")
    count = math.prod(-(-n // cell) for n, cell in zip(extent, cells, strict=True))
    if len(content) and content[0] != 1:
        msg = f"the block begins with the word {content[0]}, but a block of one channel with 1"
        raise ValueError(msg)
    if len(content) < 1 + 2 * count:
        msg = (
            f"the block has {len(content)} 32 bit words, fewer than the header of {count} cells "
            "needs"
        )
        raise ValueError(msg)
    channel = content[1:].astype(np.int64)
    heads = channel[: 2 * count].reshape(count, 2)
    tables, widths, voxels = heads[:, 0] & 0xFFFFFF, heads[:, 0] >> 24, heads[:, 1]
    for width in np.unique(widths).tolist():
        if width not in (0, 1, 2, 4, 8, 16, 32):
            msg = f"a cell of the block declares {width} bits per voxel, which is not supported"
            raise ValueError(msg)
        selected = widths == width
        highest: Any = 0
        if width:
            length = -(-width * math.prod(cells) // 32)
            if length > len(channel):
                msg = f"a cell of {tuple(cells)} voxels needs more data than the block contains"
                raise ValueError(msg)
            places = voxels[selected, np.newaxis] + np.arange(length)
            if places.max() >= len(channel):
                msg = "the voxels of a cell are beyond the end of the block"
                raise ValueError(msg)
            packed, mask = channel[places], (1 << width) - 1
            shifts = range(0, 32, width)
            highest = np.max([((packed >> s) & mask).max(axis=1) for s in shifts], axis=0)
        if (tables[selected] + (highest + 1) * (voxel_bytes // 4)).max() > len(channel):
            msg = "the labels of a cell are beyond the end of the block"
            raise ValueError(msg)
