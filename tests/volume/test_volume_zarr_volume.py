"""Tests of chunkflow_py.volume.zarr.zarr_volume."""

import json
from dataclasses import replace

import numpy as np
import pytest
import zarr
from rigs.static_server import static_server

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import AlignmentError, VolumeError, VolumeNotFoundError
from chunkflow_py.testing.volume_contract import BLOCK, BOUNDS, LocalContract, noise
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

AXES_04 = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def steps(scale, translation=None):
    """Return coordinate transformations."""
    found = [{"type": "scale", "scale": scale}]
    if translation is not None:
        found.append({"type": "translation", "translation": translation})
    return found


def image_04(path, shape=(2, 3, 4, 6, 8)):
    """Write an OME-Zarr 0.4 image with two levels, as other programs do; return level 0."""
    rng = np.random.default_rng(0)
    group = zarr.create_group(str(path), zarr_format=2)
    group.attrs["multiscales"] = [
        {
            "version": "0.4",
            "axes": AXES_04,
            "datasets": [
                {
                    "path": "s0",
                    "coordinateTransformations": steps(
                        [1, 1, 0.0033, 0.0005, 0.0005], [0, 0, 0.033, 0, -0.001]
                    ),
                },
                {
                    "path": "s1",
                    "coordinateTransformations": steps([1, 1, 0.0033, 0.001, 0.001]),
                },
            ],
            "coordinateTransformations": steps([1, 1, 2, 2, 2]),
        }
    ]
    array = rng.integers(0, 99, shape).astype("uint16")
    for name, data in (("s0", array), ("s1", array[..., ::2, ::2])):
        made = group.create_array(
            name,
            shape=data.shape,
            dtype=data.dtype,
            chunks=(1, 1, 2, 3, 4),
            chunk_key_encoding={"name": "v2", "separator": "/"},
        )
        made[:] = data
    return array


class TestZarr(LocalContract):
    scheme = "zarr"
    checked = ("zstd", "blosc", "raw", "gzip")

    @pytest.mark.parametrize("encoding", ["raw", "zstd", "gzip", "blosc"])
    def test_encodings(self, url, encoding):
        """Every encoding gives the same voxels back."""
        self.create(url, "uint16", encoding=encoding).write(noise(dtype="uint16"))
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), noise(dtype="uint16"))

    def test_metadata_is_ome_zarr(self, url, tmp_path):
        """The group says what OME-Zarr 0.5 asks for, and the array lies zyx under its level."""
        self.create(url, "float32", 2, "affinity").write(noise(dtype="float32", channels=2))
        group = zarr.open_group(str(tmp_path / "em"), mode="r")
        ome = group.attrs["ome"]
        assert ome["version"] == "0.5"
        (image,) = ome["multiscales"]
        assert [axis["name"] for axis in image["axes"]] == ["c", "z", "y", "x"]
        assert [axis.get("unit") for axis in image["axes"]] == [None] + ["nanometer"] * 3
        (level,) = image["datasets"]
        assert level["coordinateTransformations"] == steps(
            [1.0, 40.0, 4.5, 4.0], [0.0, -120.0, 31.5, 400.0]
        )
        array = group[level["path"]]
        assert array.metadata.dimension_names == ("c", "z", "y", "x")
        np.testing.assert_array_equal(array[:], noise(dtype="float32", channels=2))

    @pytest.mark.parametrize("channels", [None, 2])
    @pytest.mark.parametrize("order", ["zyx", "xyz"])
    @pytest.mark.parametrize("plain", [True, False])
    def test_axis_order(self, tmp_path, plain, order, channels):
        """An array may be stored in either order, with or without a group; voxels are the same."""
        spec = VolumeSpec(BOUNDS, (40, 4.5, 4), np.dtype("u1"), channels, "image", BLOCK)
        url = f"zarr://{tmp_path}/em"
        create_volume(spec, url, plain=plain, order=order).write(noise(channels=channels))
        volume = open_volume(url)
        assert (volume.bounds, volume.voxel_size_nm) == (BOUNDS, (40, 4.5, 4))
        assert (volume.kind, volume.write_unit) == ("image", BLOCK)
        box = BoundingBox(Zyx(-1, 20, 111), Zyx(9, 26, 130))
        np.testing.assert_array_equal(volume.read(box), noise(channels=channels).cut(box))
        array = zarr.open_array(str(tmp_path / "em" / ("" if plain else "0")), mode="r")
        assert tuple(n for n in array.metadata.dimension_names if n != "c") == tuple(order)
        spatial = BOUNDS.size if order == "zyx" else BOUNDS.size[::-1]
        assert array.shape[-3:] == spatial

    def test_shards(self, url):
        """A shard is what one writer must write whole, and is made of whole blocks."""
        spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, None, Zyx(4, 8, 8))
        volume = create_volume(replace(spec, shard_size=BLOCK), url)
        assert (volume.block_size, volume.write_unit) == (Zyx(4, 8, 8), BLOCK)
        with pytest.raises(AlignmentError, match=r"nearest aligned box is -3-5_7-23_100-116"):
            volume.write(noise(BoundingBox.from_size(BOUNDS.start, (4, 8, 8))))
        with pytest.raises(VolumeError, match=r"a multiple .* use the shard size \(8, 16, 16\)"):
            create_volume(replace(spec, shard_size=Zyx(8, 12, 16)), f"{url}2")
        with pytest.raises(VolumeError, match=r"0.4, which is zarr v2, has no shards"):
            create_volume(replace(spec, shard_size=BLOCK), f"{url}2", ome_version="0.4")

    def test_image_of_another_program(self, tmp_path):
        """OME-Zarr 0.4: units, global and per-level transformations, time and channels."""
        array = image_04(tmp_path / "em")
        volume = open_volume(str(tmp_path / "em"))
        assert volume.voxel_size_nm == (6.6, 1.0, 1.0)
        assert volume.bounds == BoundingBox.from_size((10, 0, -2), (4, 6, 8))
        assert (volume.times, volume.channels, volume.block_size) == (2, 3, Zyx(2, 3, 4))
        box = BoundingBox.from_size((11, 2, -1), (2, 3, 4))
        np.testing.assert_array_equal(volume.read(box, time=1), array[1, :, 1:3, 2:5, 1:5])
        np.testing.assert_array_equal(volume.read(box, [2], time=0), array[0, 2:, 1:3, 2:5, 1:5])
        assert open_volume(str(tmp_path / "em"), mip=1).voxel_size_nm == (6.6, 2.0, 2.0)

    def test_time(self, tmp_path):
        """Of several time points one must be named, and it must exist; only it is written."""
        array = image_04(tmp_path / "em")
        volume = open_volume(str(tmp_path / "em"), mode="r+")
        with pytest.raises(
            VolumeError, match=r"but the task has no time index; .*--time-points all"
        ):
            volume.read(volume.bounds)
        with pytest.raises(VolumeError, match=r"indices 0 to 1, but time index 2 was requested"):
            volume.read(volume.bounds, time=2)
        new = Chunk(np.full((3, 4, 6, 8), 7, "uint16"), volume.bounds.start)
        volume.write(new, time=1)
        assert (volume.read(volume.bounds, time=1).array == 7).all()
        np.testing.assert_array_equal(volume.read(volume.bounds, time=0), array[0])

    def test_no_time_axis(self, url):
        """A volume without time is the same at all times, and cannot be written at one."""
        volume = self.create(url)
        assert volume.read(BOUNDS, time=3).bbox == BOUNDS
        with pytest.raises(VolumeError, match="time index 3 .*no time axis"):
            volume.write(noise(), time=3)

    @pytest.mark.parametrize("version", [2, 3])
    def test_plain_array_of_another_program(self, tmp_path, version):
        """A bare array is (z, y, x); attributes of funlib and chunkflow 1.x say where it lies."""
        data = np.arange(60, dtype="uint8").reshape(3, 4, 5)
        array = zarr.create_array(
            str(tmp_path / "a"), shape=data.shape, dtype="uint8", zarr_format=version
        )
        array[:] = data
        volume = open_volume(f"zarr2://{tmp_path}/a")
        assert (volume.bounds.start, volume.voxel_size_nm) == ((0, 0, 0), (1, 1, 1))
        np.testing.assert_array_equal(volume.read(volume.bounds), data)
        array.attrs.update({"resolution": [40, 4, 4], "offset": [80, -4, 0]})
        volume = open_volume(str(tmp_path / "a"))
        assert (volume.bounds.start, volume.voxel_size_nm) == ((2, -1, 0), (40, 4, 4))
        array.attrs.update({"voxel_offset": [5, 6, 7]})
        assert open_volume(str(tmp_path / "a")).bounds.start == (5, 6, 7)

    def test_array_of_chunkflow_1(self, tmp_path):
        """An array as save-zarr of chunkflow 1.x leaves it, xyz with its names, is understood."""
        data = np.arange(60, dtype="uint8").reshape(3, 4, 5)
        array = zarr.create_array(str(tmp_path / "a"), shape=(5, 4, 3), dtype="u1", zarr_format=2)
        array[:] = data.T
        array.attrs.update(
            {"_ARRAY_DIMENSIONS": ["x", "y", "z"], "dimension_units": ["4 nm", "8 nm", "40 nm"]}
        )
        volume = open_volume(str(tmp_path / "a"))
        assert volume.voxel_size_nm == (40, 8, 4)
        np.testing.assert_array_equal(volume.read(volume.bounds), data)

    def test_group_without_image(self, tmp_path):
        """A group that is no image names the arrays that could be meant."""
        zarr.create_group(str(tmp_path / "g")).create_array("raw", shape=(3, 4, 5), dtype="u1")
        with pytest.raises(VolumeNotFoundError, match=r"contains raw.*name an array or image"):
            open_volume(str(tmp_path / "g"))
        assert open_volume(f"{tmp_path}/g/raw").bounds.size == (3, 4, 5)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda ome: ome.update(axes=[{"name": "q"}, *ome["axes"][1:]]), "has an axis 'q'"),
            (lambda ome: ome.update(axes=[*ome["axes"][:2], {"name": "q"}]), "needs y and x"),
            (lambda ome: ome["axes"][0].update(unit="parsec"), "unit 'parsec'"),
            (lambda ome: ome["datasets"][0].update(path="9"), "no mip 0; it has mip 9"),
            (
                lambda ome: ome["datasets"][0].update(
                    coordinateTransformations=[{"type": "affine", "affine": []}]
                ),
                "transformation of type 'affine', but only identity",
            ),
            (
                lambda ome: ome["datasets"][0].update(coordinateTransformations=steps([0, 1, 1])),
                "not positive|division by zero",
            ),
            (lambda ome: ome.pop("datasets"), "cannot open .*damaged"),
        ],
    )
    def test_bad_metadata(self, url, tmp_path, change, text):
        """Metadata that make no sense are one sentence that names the volume."""
        self.create(url)
        path = tmp_path / "em" / "zarr.json"
        found = json.loads(path.read_text())
        change(found["attributes"]["ome"]["multiscales"][0])
        path.write_text(json.dumps(found))
        with pytest.raises(VolumeError, match=text) as caught:
            open_volume(url)
        assert str(tmp_path / "em") in str(caught.value)

    def test_damaged_files(self, url, tmp_path):
        """A torn block or a torn metadata file is one sentence, not a foreign exception."""
        self.create(url).write(noise())
        block = next(path for path in (tmp_path / "em" / "0" / "c").rglob("*") if path.is_file())
        block.write_bytes(b"rubbish")
        with pytest.raises(VolumeError, match=r"block 0/c/[^ ]* of .* is damaged"):
            open_volume(url).read(BOUNDS)
        (tmp_path / "em" / "zarr.json").write_text('{"zarr_for')
        with pytest.raises(VolumeError, match=r"cannot open .*damaged"):
            open_volume(url)


@pytest.mark.parametrize("scheme", ["zarr2", "zarr3"])
def test_on_a_web_server(tmp_path, scheme):
    """A volume on a web server, which lists nothing, is found and read, shards by ranges too."""
    shard = None if scheme == "zarr2" else Zyx(16, 32, 32)
    spec = VolumeSpec(
        BOUNDS, (40, 4.5, 4), np.dtype("u1"), None, "image", BLOCK, shard_size=shard, max_mip=1
    )
    create_volume(spec, f"{scheme}://{tmp_path}/em").write(noise())
    create_volume(replace(spec, max_mip=0), f"{scheme}://{tmp_path}/plain", plain=True)
    with static_server(tmp_path) as address:
        for url in (f"{address}/em", f"zarr://{address}/em"):
            volume = open_volume(url)
            assert (volume.mips, volume.bounds, volume.kind) == ((0, 1), BOUNDS, "image")
            np.testing.assert_array_equal(volume.read(BOUNDS), noise())
            box = BoundingBox(Zyx(4, 22, 115), Zyx(6, 24, 117))
            np.testing.assert_array_equal(volume.read(box), noise().cut(box))
        assert not open_volume(f"{address}/plain").read(BOUNDS).array.any()
        with pytest.raises(VolumeNotFoundError, match="is not a zarr volume"):
            open_volume(f"zarr://{address}/nowhere")
