"""Tests of volume.precomputed.precomputed_codec: others read what we write, and we them."""

import gzip

import cloudvolume
import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import MissingExtraError, VolumeError
from chunkflow_py.testing.volume_contract import BLOCK, BOUNDS, noise
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.precomputed.precomputed_codec import PrecomputedCodec
from chunkflow_py.volume.precomputed.precomputed_info import ENCODINGS
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

# encoding, dtype, channels; those that change the voxels a little come last
LOSSLESS = [
    ("raw", "uint8", None), ("raw", "int16", 2), ("raw", "float32", 3), ("raw", "uint64", None),
    ("png", "uint8", None), ("npz", "uint16", None), ("npz", "float32", 2),
    ("compressed_segmentation", "uint32", None), ("compressed_segmentation", "uint64", None),
    ("compresso", "uint64", None), ("compresso", "uint8", None),
    ("crackle", "uint32", None), ("crackle", "uint64", None),
    ("fpzip", "float32", None), ("fpzip", "float32", 2),
    ("kempressed", "float32", None), ("kempressed", "float32", 2),
    ("zfpc", "float32", None), ("zfpc", "float32", 2),
]  # fmt: skip
LOSSY = [("jpeg", None), ("jpeg", 3), ("jxl", None)]


@pytest.fixture
def url(tmp_path):
    """Return where the volume of this test goes."""
    return f"precomputed://{tmp_path}/em"


def create(url, encoding, dtype="uint8", channels=None, **settings):
    """Create a volume over `BOUNDS`."""
    spec = VolumeSpec(
        BOUNDS, (40.0, 4.5, 4.0), np.dtype(dtype), channels, "image", BLOCK, encoding
    )  # fmt: skip
    return create_volume(spec, url, **settings)


def smooth(channels=None):
    """Return an image without edges, of which lossy codecs leave most."""
    grey = np.add.outer(np.arange(20), np.add.outer(np.arange(33), np.arange(33)))
    array = grey if channels is None else np.stack([grey + 30 * c for c in range(channels)])
    return Chunk(array.astype("u1"), BOUNDS.start)


def cloud(tmp_path):
    """Open the volume with cloud-volume."""
    return cloudvolume.CloudVolume(
        f"precomputed://file://{tmp_path}/em", progress=False, fill_missing=False
    )


def driver(tmp_path, create=None):
    """Open the volume with tensorstore, as (c, z, y, x)."""
    import tensorstore

    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{tmp_path}/em/"},
        **(create or {}),
    }
    return tensorstore.open(spec, open=True, create=create is not None).result().T


def test_all_encodings():
    """The tests below try every encoding that there is, but one that CloudVolume cannot read."""
    tried = {case[0] for case in (*LOSSLESS, *LOSSY)}
    assert tried == set(ENCODINGS) - {"npz_uint8"}


@pytest.mark.parametrize(("encoding", "dtype", "channels"), LOSSLESS)
def test_cloud_volume_reads_it(url, tmp_path, encoding, dtype, channels):
    """CloudVolume reads what we have written, and we read the same."""
    chunk = noise(dtype=dtype, channels=channels)
    create(url, encoding, dtype, channels).write(chunk)
    theirs = cloud(tmp_path)
    whole = np.asarray(theirs[theirs.bounds]).T
    np.testing.assert_array_equal(whole, chunk.array.reshape(-1, *BOUNDS.size))
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)
    part = BOUNDS.grow((-3, -5, -9))
    np.testing.assert_array_equal(open_volume(url).read(part), chunk.cut(part))


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels", "compress"),
    [
        # CloudVolume scrambles the channels of a single column of voxels when it writes them
        *[(*case, None) for case in LOSSLESS if case != ("kempressed", "float32", 2)],
        *[("raw", "uint8", None, compress) for compress in (False, "br", "zstd", "xz")],
    ],
)
def test_we_read_cloud_volume(url, tmp_path, encoding, dtype, channels, compress):
    """We read what CloudVolume has written, whatever it was told to compress files with."""
    chunk = noise(dtype=dtype, channels=channels)
    create(url, encoding, dtype, channels)
    theirs = cloudvolume.CloudVolume(
        f"precomputed://file://{tmp_path}/em", progress=False, compress=compress
    )
    theirs[theirs.bounds] = chunk.array.reshape(-1, *BOUNDS.size).T
    volume = open_volume(url, opening=VolumeOptions(fill_missing=False))
    np.testing.assert_array_equal(volume.read(BOUNDS), chunk)
    assert volume.has_blocks(BOUNDS)


@pytest.mark.parametrize(("encoding", "channels"), LOSSY)
def test_lossy(url, tmp_path, encoding, channels):
    """What lossy codecs leave is close to the image, and what CloudVolume reads."""
    chunk = smooth(channels)
    create(url, encoding, channels=channels).write(chunk)
    ours = open_volume(url).read(BOUNDS).array
    assert np.abs(ours.astype(int) - chunk.array).max() <= 8
    assert not list(tmp_path.rglob("*.gz"))
    if channels is None:  # it mixes up several channels, its own too
        theirs = cloud(tmp_path)
        np.testing.assert_array_equal(np.asarray(theirs[theirs.bounds]).T[0], ours)


def test_npz_uint8(url):
    """Probabilities stored as bytes come back as probabilities, to a step of 1/255."""
    rng = np.random.default_rng(1)
    chunk = Chunk(rng.random(BOUNDS.size, np.float32), BOUNDS.start)
    create(url, "npz_uint8", "float32").write(chunk)
    again = open_volume(url).read(BOUNDS)
    assert again.dtype == np.float32
    assert np.abs(again.array - chunk.array).max() <= 1 / 255


def test_same_files_as_cloud_volume(url, tmp_path):
    """Names and decompressed contents of the blocks are those that CloudVolume writes."""
    create(url, "raw").write(noise())
    ours = {p.name: gzip.decompress(p.read_bytes()) for p in tmp_path.rglob("*.gz")}
    theirs = cloud(tmp_path)
    theirs[theirs.bounds] = noise().array.T
    assert {p.name: gzip.decompress(p.read_bytes()) for p in tmp_path.rglob("*.gz")} == ours
    assert len(ours) == 3 * 3 * 3


def test_other_extensions_go(url, tmp_path):
    """A block that was stored without compression does not hide the new one."""
    volume = create(url, "raw")
    volume.write(noise())
    for path in tmp_path.rglob("*.gz"):
        path.with_suffix("").write_bytes(bytes(BLOCK.product()))
    volume.write(noise(seed=5))
    theirs = cloud(tmp_path)
    np.testing.assert_array_equal(np.asarray(theirs[theirs.bounds]).T[0], noise(seed=5))


TENSORSTORE = [
    ("raw", "uint8", None), ("raw", "float32", 2), ("jpeg", "uint8", None), ("jpeg", "uint8", 3),
    ("png", "uint8", None), ("png", "uint16", None), ("png", "uint8", 3), ("png", "uint16", 4),
    ("compressed_segmentation", "uint32", None),
    ("compressed_segmentation", "uint64", None),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "dtype", "channels"), TENSORSTORE)
def test_tensorstore(url, tmp_path, encoding, dtype, channels):
    """TensorStore reads what we write, and we read what it writes, over what we have written.

    Among that PNG of 16 bits and with channels, which CloudVolume cannot.
    """
    pytest.importorskip("tensorstore")
    chunk = smooth(channels) if encoding == "jpeg" else noise(dtype=dtype, channels=channels)
    wide = (encoding, dtype) == ("png", "uint16")  # which is not made, but is written and read
    volume = create(url, "raw" if wide else encoding, dtype, channels, compress=False)
    if wide:
        info = next(tmp_path.rglob("info"))
        info.write_text(info.read_text().replace('"raw"', '"png"'))
        volume = open_volume(url, mode="r+")
    volume.write(chunk)
    ours = open_volume(url).read(BOUNDS).array.reshape(-1, *BOUNDS.size)
    theirs = driver(tmp_path)
    np.testing.assert_allclose(theirs.read().result(), ours, atol=2 if encoding == "jpeg" else 0)
    other = ours[:, ::-1, ::-1]
    theirs.write(other).result()
    again = open_volume(url).read(BOUNDS).array.reshape(-1, *BOUNDS.size)
    np.testing.assert_allclose(again, theirs.read().result(), atol=2 if encoding == "jpeg" else 0)
    np.testing.assert_allclose(again, other, atol=8 if encoding == "jpeg" else 0)


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"), [*LOSSLESS, ("jpeg", "uint8", None), ("jxl", "uint8", None)]
)
@pytest.mark.parametrize("left", [0.0, 0.3, 0.9, -1])
def test_truncated(url, encoding, dtype, channels, left, tmp_path):
    """Of every encoding, a block that we have written and that lost its end is an error."""
    create(url, encoding, dtype, channels).write(noise(dtype=dtype, channels=channels))
    blocks = [path for path in (tmp_path / "em").rglob("*-*") if path.stat().st_size > 100]
    block = min(blocks)
    data = block.read_bytes()
    block.write_bytes(data[: int(left * len(data)) if left >= 0 else left * 20])
    with pytest.raises(VolumeError, match=rf"block .*{block.name}.* is damaged"):
        open_volume(url).read(BOUNDS)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_truncated_segmentation(dtype):
    """Compressed segmentation without a checksum is an error wherever it ends too early."""
    codec = PrecomputedCodec(
        {"encoding": "compressed_segmentation"}, np.dtype(dtype), compress=False
    )
    extent = (9, 17, 16)
    voxels = np.random.default_rng(2).integers(0, 40, extent).astype(dtype)
    data = codec.encode(voxels)
    np.testing.assert_array_equal(codec.decode(data, extent), voxels)
    for length in [*range(1, len(data), 97), len(data) - 4, len(data) - 1]:
        with pytest.raises(ValueError, match=r"beyond the end|fewer than the header|32 bit words"):
            codec.decode(data[:length], extent)
    with pytest.raises(ValueError, match="begins with the word 3, but .* with 1"):
        codec.decode(b"\3" + data[1:], extent)


def test_raw_like_gzip():
    """Raw voxels that begin like a gzip file are taken for what they are."""
    codec = PrecomputedCodec({"encoding": "raw"}, np.dtype("u1"), compress=False)
    voxels = np.random.default_rng(1).integers(0, 255, (4, 4, 4), "u1")
    voxels[0, 0, :3] = 0x1F, 0x8B, 8
    np.testing.assert_array_equal(codec.decode(codec.encode(voxels), (4, 4, 4)), voxels)


def test_torn_gzip_of_the_right_length():
    """A gzipped block that ends after as many bytes as it has voxels is not taken for them."""
    codec = PrecomputedCodec({"encoding": "raw"}, np.dtype("u1"))
    data = codec.encode(np.random.default_rng(1).integers(0, 255, (4, 4, 4), "u1"))
    with pytest.raises(Exception, match=r"(?i)gzip"):
        codec.decode(data[:64], (4, 4, 4))


def test_missing_codec(url, monkeypatch):
    """A codec that is not installed is named before anything is written, and what to install."""
    from cloudvolume import chunks

    monkeypatch.setitem(chunks.NEEDS_INSTALL, "fpzip", "fpzip")
    with pytest.raises(MissingExtraError, match="kempressed needs fpzip.*pip install fpzip"):
        create(url, "kempressed", "float32")


def test_voxels_it_cannot_hold(url, tmp_path):
    """Types and encodings that do not go together are refused before anything is made."""
    with pytest.raises(VolumeError, match=r"cannot store float64 voxels, only uint8.*float32"):
        create(url, "raw", "float64")
    with pytest.raises(VolumeError, match="jpeg cannot store uint16 voxels, only uint8"):
        create(url, "jpeg", "uint16")
    with pytest.raises(VolumeError, match="jpeg cannot store 2 channels, only 1 or 3"):
        create(url, "jpeg", channels=2)
    assert not (tmp_path / "em").exists()
