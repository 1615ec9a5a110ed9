"""Tests of chunkflow_py.volume.zarr.ome_metadata: reading and writing OME-Zarr attributes."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from ome_zarr_models import v04, v05
from pydantic_zarr.v2 import ArraySpec, GroupSpec

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec, coarser

BOUNDS = BoundingBox(Zyx(-3, 7, 101), Zyx(18, 40, 134))  # odd offsets and sizes
VERSIONS = ["0.4", "0.5", "0.6"]
MODELS = {"0.4": v04, "0.5": v05}  # ngff-zarr validates 0.6, in test_volume_ome_readers.py
# the models of 0.4 do not resolve these names by themselves
v04.Image.model_rebuild(_types_namespace={"ArraySpec": ArraySpec, "GroupSpec": GroupSpec})
SPEC = VolumeSpec(BOUNDS, (40.0, 4.5, 4.0), np.dtype("u1"), None, "image", Zyx(8, 16, 16))


def ome(path, version):
    """Return the OME attributes of a group, and check who keeps them where."""
    attributes = zarr.open_group(str(path), mode="r").attrs.asdict()
    assert ("ome" in attributes) == (version != "0.4")
    return attributes.get("ome", attributes)


def steps(scale, translation=None):
    """Return coordinate transformations."""
    found = [{"type": "scale", "scale": list(scale)}]
    return found + (
        [] if translation is None else [{"type": "translation", "translation": list(translation)}]
    )


def axes_of(image):
    """Return the axes of an image of any version."""
    return image["axes"] if "axes" in image else image["coordinateSystems"][0]["axes"]


def steps_of(dataset):
    """Return scale and translation of a dataset of any version."""
    transforms = dataset["coordinateTransformations"]
    return transforms[0].get("transformations", transforms)


class TestWritten:
    """What others find in the images that we make."""

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        ("dtype", "channels", "times", "kind", "order"),
        [
            ("uint8", None, None, "image", "zyx"),
            ("uint16", 3, None, "image", "zyx"),
            ("float32", 3, None, "affinity", "zyx"),
            ("float32", 1, 4, "probability", "xyz"),
            ("uint64", None, None, "segmentation", "zyx"),
            ("int16", None, 2, None, "zyx"),
        ],
    )
    def test_valid(self, tmp_path, version, dtype, channels, times, kind, order):
        """The metadata are valid for models of the specification, whatever the volume holds."""
        spec = replace(
            SPEC,
            dtype=np.dtype(dtype),
            channels=channels,
            times=times,
            kind=kind,
            max_mip=3,
            shard_size=None if version == "0.4" else Zyx(16, 32, 32),
        )
        create_volume(spec, f"zarr://{tmp_path}/em", ome_version=version, order=order)
        if version in MODELS:
            group = zarr.open_group(str(tmp_path / "em"), mode="r")
            assert len(MODELS[version].Image.from_zarr(group).members) == 4
        found = ome(tmp_path / "em", version)
        (multiscale,) = found["multiscales"]
        assert [d["path"] for d in multiscale["datasets"]] == ["0", "1", "2", "3"]
        axes = [axis["name"] for axis in axes_of(multiscale)]
        assert axes == ["t"] * (times is not None) + ["c"] * (channels is not None) + list(order)
        assert {a["name"]: (a["type"], a.get("unit")) for a in axes_of(multiscale)} == {
            a: {"t": ("time", None), "c": ("channel", None)}.get(a, ("space", "nanometer"))
            for a in axes
        }
        assert ("image-label" in found) == (kind == "segmentation")
        is_known = dtype == "uint8" or kind in ("affinity", "probability")  # what is black
        assert ("omero" in found) == (channels is not None and is_known)
        volume = open_volume(str(tmp_path / "em"), mip=3)
        assert (volume.channels, volume.times, volume.kind) == (channels, times, kind)
        assert volume.mips == (0, 1, 2, 3)

    @settings(max_examples=40)
    @given(
        start=st.tuples(*[st.integers(-50, 50)] * 3),
        # along y no level is the last that makes sense
        size=st.tuples(st.integers(1, 40), st.integers(10, 40), st.integers(1, 40)),
        factor=st.tuples(st.integers(1, 3), st.integers(2, 3), st.integers(1, 3)),
        mip=st.integers(0, 2),
        version=st.sampled_from(VERSIONS),
    )
    def test_levels_lie_over_each_other(self, tmp_path_factory, start, size, factor, mip, version):
        """The centre of a coarse voxel is that of the fine ones it covers, in every level."""
        path = tmp_path_factory.mktemp("levels") / "em"
        bounds, factor = BoundingBox.from_size(start, size), Zyx(*factor)
        spec = replace(SPEC, bounds=bounds, factor=factor, max_mip=mip + 2)
        create_volume(spec, f"zarr://{path}", mip, ome_version=version)
        finest = [s / f**mip for s, f in zip(spec.voxel_size_nm, factor)]
        datasets = ome(path, version)["multiscales"][0]["datasets"]
        assert len(datasets) == 3
        for number, dataset in enumerate(datasets):
            volume = open_volume(str(path), mip + number)
            power = Zyx(*(f**number for f in factor))
            assert volume.bounds == coarser(bounds, power)
            scale, shift = (list(step[step["type"]]) for step in steps_of(dataset))
            for axis in range(3):
                covered = factor[axis] ** (mip + number)
                first = volume.bounds.start[axis] * covered
                centre = (first + (covered - 1) / 2) * finest[axis]
                assert shift[axis] == pytest.approx(centre, abs=1e-6)
                assert scale[axis] == pytest.approx(covered * finest[axis])

    @pytest.mark.parametrize("version", VERSIONS)
    def test_voxels_of_all_levels(self, tmp_path, version):
        """Every level is written and read by itself; each block grid begins at its first voxel."""
        create_volume(replace(SPEC, max_mip=2), f"zarr://{tmp_path}/em", ome_version=version)
        for mip in range(3):
            volume = open_volume(f"{tmp_path}/em", mip, "r+")
            box = BoundingBox.from_size(volume.bounds.start, volume.write_unit)
            chunk = Chunk(np.full(box.size, mip + 1, "u1"), box.start)
            box = box.intersection(volume.bounds)
            volume.write(chunk.cut(box))
            array = zarr.open_array(f"{tmp_path}/em/{mip}", mode="r")
            assert array.shape == volume.bounds.size
            assert array[tuple(slice(0, n) for n in box.size)].min() == mip + 1
            assert np.count_nonzero(array[:]) == box.voxels

    def test_channel_names(self, tmp_path):
        """Channels keep their names; windows and colours are those of the type."""
        spec = replace(SPEC, channels=2, dtype=np.dtype("u2"))
        url = f"zarr://{tmp_path}/em"
        create_volume(spec, url, channel_names=("DAPI", "GFP"))
        assert open_volume(url).channel_names == ("DAPI", "GFP")
        first, second = ome(tmp_path / "em", "0.5")["omero"]["channels"]
        assert first["window"] == {"min": 0, "max": 65535, "start": 0, "end": 65535}
        assert len({first["color"], second["color"]}) == 2
        with pytest.raises(VolumeError, match=r"3 channel names \(a, b, c\) for 2 channels"):
            create_volume(spec, f"{url}2", channel_names="abc")
        create_volume(spec, f"{url}3", plain=True, channel_names=("DAPI", "GFP"))
        assert open_volume(f"{url}3").channel_names == ("DAPI", "GFP")

    @pytest.mark.parametrize(
        ("dtype", "kind", "is_known"),
        [("u1", "image", True), ("f4", "probability", True), ("u2", "image", False),
         ("u2", "probability", True), ("f4", "image", False), ("i2", None, False)],
    )  # fmt: skip
    def test_no_window_is_invented(self, tmp_path, dtype, kind, is_known):
        """12 bit in uint16 would be black between 0 and 65535: viewers choose the contrast."""
        spec = replace(SPEC, channels=2, dtype=np.dtype(dtype), kind=kind)
        create_volume(spec, f"zarr://{tmp_path}/em")
        assert ("omero" in ome(tmp_path / "em", "0.5")) == is_known

    def test_affinities(self, tmp_path):
        """Affinity channels are named after their axes: x, y, z."""
        spec = replace(SPEC, channels=3, dtype=np.dtype("f4"), kind="affinity")
        create_volume(spec, f"zarr://{tmp_path}/em")
        assert open_volume(f"{tmp_path}/em").channel_names == ("x", "y", "z")

    @pytest.mark.parametrize("plain", [True, False])
    @pytest.mark.parametrize("scheme", ["zarr", "zarr2", "zarr3"])
    def test_version_by_scheme(self, tmp_path, scheme, plain):
        """zarr2:// makes version 2, the others version 3, without losing a thing."""
        spec = replace(SPEC, channels=2, times=3)
        made = create_volume(spec, f"{scheme}://{tmp_path}/em", plain=plain)
        voxels = np.random.default_rng(0).integers(0, 9, (2, *BOUNDS.size), dtype="u1")
        made.write(Chunk(voxels, BOUNDS.start), time=1)
        two = not (tmp_path / "em" / "zarr.json").exists()
        assert two == (scheme == "zarr2")
        volume = open_volume(f"{tmp_path}/em")
        assert (volume.bounds, volume.voxel_size_nm) == (BOUNDS, (40, 4.5, 4))
        assert (volume.channels, volume.times, volume.kind) == (2, 3, "image")
        np.testing.assert_array_equal(volume.read(BOUNDS, time=1), voxels)
        assert not volume.read(BOUNDS, time=0).array.any()
        array = zarr.open_array(f"{tmp_path}/em/{'' if plain else 0}", mode="r")
        np.testing.assert_array_equal(array[1], voxels)

    def test_order_of_documents(self, tmp_path):
        """Whoever sees the group sees the arrays that it names."""
        for scheme, last in (("zarr", "zarr.json"), ("zarr2", ".zattrs")):
            create_volume(replace(SPEC, max_mip=2), f"{scheme}://{tmp_path}/{scheme}")
            group = (tmp_path / scheme / last).stat().st_mtime_ns
            others = [p for p in (tmp_path / scheme).glob("*/*") if p.is_file()]
            assert len(others) == (3 if scheme == "zarr" else 6)
            assert all(p.stat().st_mtime_ns <= group for p in others)

    def test_plain_has_one_level(self, tmp_path):
        """A plain array cannot have a pyramid."""
        with pytest.raises(VolumeError, match="plain array has only one level"):
            create_volume(replace(SPEC, max_mip=2), f"zarr://{tmp_path}/em", plain=True)


class TestLabels:
    """Label images inside of an image."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_registered(self, tmp_path, version):
        """A segmentation in the folder of labels is listed there, beside those that were."""
        url = f"zarr://{tmp_path}/em"
        create_volume(SPEC, url, ome_version=version)
        spec = replace(SPEC, kind="segmentation", dtype=np.dtype("u8"), max_mip=1)
        for name in ("cells", "nuclei", "cells"):
            create_volume(spec, f"{url}/labels/{name}", ome_version=version)
        assert ome(tmp_path / "em/labels", version)["labels"] == ["cells", "nuclei"]
        found = ome(tmp_path / "em/labels/cells", version)["image-label"]
        assert found["source"] == {"image": "../../"}
        if version in MODELS:
            models = MODELS[version]
            models.labels.LabelsAttrs.model_validate(ome(tmp_path / "em/labels", version))
            models.Image.from_zarr(zarr.open_group(str(tmp_path / "em/labels/cells"), mode="r"))
            models.image_label_types.Label.model_validate(found)
        volume = open_volume(f"{tmp_path}/em/labels/cells", mip=1)
        assert (volume.kind, volume.dtype) == ("segmentation", np.uint64)
        with pytest.raises(VolumeNotFoundError, match=r"contains cells, nuclei.*name an"):
            open_volume(f"{tmp_path}/em/labels")

    @pytest.mark.parametrize("version", VERSIONS)
    def test_many_at_once(self, version):
        """Labels that are made at the same time are all listed."""
        url = f"zarr://mem://labels{version}/em/labels"
        names = [f"label{number}" for number in range(12)]
        spec = replace(SPEC, kind="segmentation")
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda n: create_volume(spec, f"{url}/{n}", ome_version=version), names))
        store = open_store(url.removeprefix("zarr://"))
        found = json.loads(store.get(".zattrs" if version == "0.4" else "zarr.json"))
        listed = (found if version == "0.4" else found["attributes"]["ome"])["labels"]
        assert sorted(listed) == sorted(names)

    def test_of_another_program(self, tmp_path):
        """What lies among the labels is a segmentation, even if it says nothing of itself."""
        labels = zarr.create_group(str(tmp_path / "em")).create_group("labels")
        group = labels.create_group("cells")
        group.create_array("0", shape=(3, 4), dtype="u4")
        axes = [{"name": name, "type": "space"} for name in "yx"]
        datasets = [{"path": "0", "coordinateTransformations": steps([1, 1])}]
        group.attrs["ome"] = {
            "version": "0.5",
            "multiscales": [{"axes": axes, "datasets": datasets}],
        }
        assert open_volume(f"{tmp_path}/em/labels/cells").kind == "segmentation"


def write_image(path, array, axes, version="0.5", **more):
    """Write an image of one level with *axes*, as other programs do."""
    group = zarr.create_group(str(path), zarr_format=2 if version < "0.5" else 3)
    made = group.create_array("s0", shape=array.shape, chunks=(2,) * array.ndim, dtype=array.dtype)
    made[:] = array
    image = {
        "axes": axes,
        "datasets": [{"path": "s0", "coordinateTransformations": steps([1] * array.ndim)}],
        **more,
    }
    image = {key: value for key, value in image.items() if value is not None}
    if version < "0.5":
        group.attrs["multiscales"] = [image | {"version": version}]
    else:
        group.attrs["ome"] = {"version": version, "multiscales": [image]}
    return group


SUBSETS = [
    axes
    for count in range(2, 6)
    for axes in itertools.permutations("tczyx", count)
    if {"y", "x"} <= set(axes)
]


class TestRead:
    """What we find in the images of others."""

    @settings(max_examples=40)
    @given(axes=st.sampled_from(SUBSETS), data=st.data())
    def test_axes_by_name(self, tmp_path_factory, axes, data):
        """Any subset of the axes in any order; a missing z is one section."""
        path = tmp_path_factory.mktemp("axes") / "em"
        shape = tuple(data.draw(st.integers(1, 4)) for _ in axes)
        array = np.random.default_rng(0).integers(0, 99, shape).astype("u2")
        write_image(path, array, [{"name": name} for name in axes])
        volume = open_volume(str(path))
        full = array.transpose([axes.index(a) for a in "tczyx" if a in axes])
        full = full[tuple(slice(None) if a in axes else None for a in "tczyx")]
        assert volume.bounds.size == full.shape[2:]
        assert volume.channels == (full.shape[1] if "c" in axes else None)
        assert volume.times == (full.shape[0] if "t" in axes else None)
        time = full.shape[0] - 1
        found = volume.read(volume.bounds, time=time)
        np.testing.assert_array_equal(found, full[time] if "c" in axes else full[time, 0])

    def test_named_otherwise(self, tmp_path):
        """Axes of type channel and time are those, whatever they are called."""
        axes = [
            {"name": "frame", "type": "time"},
            {"name": "Channel", "type": "channel"},
            {"name": "Y", "type": "space"},
            {"name": "X", "type": "space"},
        ]
        write_image(tmp_path / "em", np.zeros((2, 3, 4, 5), "u1"), axes)
        volume = open_volume(str(tmp_path / "em"))
        assert (volume.times, volume.channels, volume.bounds.size) == (2, 3, (1, 4, 5))

    @pytest.mark.parametrize(
        ("unit", "size"),
        [("micrometer", 500.0), ("angstrom", 0.05), ("millimeter", 5e5), (None, 0.5)],
    )
    def test_units(self, tmp_path, unit, size):
        """Units are turned into nanometres, axis by axis."""
        axes = [
            {"name": "z", "type": "space", "unit": "nanometer"},
            {"name": "y", "type": "space", **({} if unit is None else {"unit": unit})},
            {"name": "x", "type": "space", "unit": "nanometer"},
        ]
        datasets = [{"path": "s0", "coordinateTransformations": steps([40, 0.5, 4])}]
        write_image(tmp_path / "em", np.zeros((2, 3, 4), "u1"), axes, datasets=datasets)
        assert open_volume(str(tmp_path / "em")).voxel_size_nm == (40, size, 4)

    @pytest.mark.parametrize("centre", [True, False])
    def test_where_levels_begin(self, tmp_path, centre):
        """Translations of corners and those of centres are the same voxel."""
        axes = [{"name": name, "type": "space"} for name in "zyx"]
        for factor in (1, 2, 4, 8, 64):
            half = (factor - 1) / 2 if centre else 0
            shift = [5 * factor * 40 + half * 40, -3 * factor * 4 + half * 4, half * 4]
            datasets = [
                {
                    "path": "s0",
                    "coordinateTransformations": steps(
                        [40 * factor, 4 * factor, 4 * factor], shift
                    ),
                }
            ]
            path = tmp_path / f"em{factor}"
            write_image(path, np.zeros((2, 3, 4), "u1"), axes, datasets=datasets)
            assert open_volume(str(path)).bounds.start == (5, -3, 0)

    @pytest.mark.parametrize(
        ("version", "axes"), [("0.1", None), ("0.2", None), ("0.3", list("tczyx"))]
    )
    def test_older_versions(self, tmp_path, version, axes):
        """Before 0.4 there was no scale: extents say how much coarser a level is."""
        group = write_image(
            tmp_path / "em",
            np.zeros((1, 2, 8, 33, 34), "u1"),
            axes,
            version,
            datasets=[{"path": "s0"}, {"path": "s1"}],
        )
        group.create_array("s1", shape=(1, 2, 8, 17, 17), chunks=(1, 1, 2, 2, 2), dtype="u1")
        volume = open_volume(str(tmp_path / "em"), mip=1)
        assert (volume.voxel_size_nm, volume.bounds.start) == ((1, 2, 2), (0, 0, 0))
        assert (volume.times, volume.channels, volume.mips) == (1, 2, (0, 1))

    @pytest.mark.parametrize(
        ("more", "text"),
        [
            (
                {
                    "datasets": [
                        {
                            "path": "s0",
                            "coordinateTransformations": [{"type": "scale", "path": "sizes"}],
                        }
                    ]
                },
                r"numbers of its scale in a separate array \(sizes\), which is not supported",
            ),
            (
                {"coordinateTransformations": [{"type": "translation", "path": "shifts"}]},
                r"stores the numbers of its translation in a separate array \(shifts\)",
            ),
            (
                {"coordinateTransformations": [{"type": "rotation", "rotation": []}]},
                "transformation of type 'rotation', but only identity, scale",
            ),
            (
                {"coordinateTransformations": steps([1, "b", 1])},
                "could not convert string to float",
            ),
            ({"axes": [{"name": name} for name in "yyx"]}, "has the axes y, y, x"),
            (
                {"axes": [{"name": name} for name in "czyx"]},
                "has 4 axes, but its scale is",
            ),
            ({"datasets": [{"path": "../other"}]}, "cannot be the key of an object"),
            ({"datasets": [{"path": "nowhere"}]}, "array 'nowhere' as mip 0, but this array"),
            ({"datasets": []}, "has no mip 0"),
            ({"datasets": 7}, "cannot open .*damaged"),
        ],
    )
    def test_refused(self, tmp_path, more, text):
        """What cannot be understood is one sentence that names the volume."""
        axes = [{"name": name, "type": "space"} for name in "zyx"]
        write_image(tmp_path / "em", np.zeros((2, 3, 4), "u1"), **({"axes": axes} | more))
        with pytest.raises(VolumeError, match=text) as caught:
            open_volume(str(tmp_path / "em"))
        assert str(tmp_path / "em") in str(caught.value)


def write_systems(path, transforms, systems=("intrinsic", "atlas"), **more):
    """Write an image of version 0.6 with coordinate systems; the axes of *atlas* are in metres."""
    units = {"atlas": "meter"}
    return write_image(
        path,
        np.zeros((2, 3, 4), "u1"),
        None,
        version="0.6",
        coordinateSystems=[
            {
                "name": system,
                "axes": [
                    {"name": a, "type": "space", "unit": units.get(system, "micrometer")}
                    for a in "zyx"
                ],
            }
            for system in systems
        ],
        datasets=[{"path": "s0", "coordinateTransformations": transforms}],
        **more,
    )


class TestCoordinateSystems:
    """Images of OME-Zarr 0.6."""

    @pytest.mark.parametrize("systems", [("intrinsic", "atlas"), ("atlas", "intrinsic")])
    @pytest.mark.parametrize("output", [{"name": "intrinsic"}, "intrinsic"])
    def test_intrinsic(self, tmp_path, caplog, systems, output):
        """Positions are those of the intrinsic system, wherever it stands; the log says so."""
        caplog.set_level("INFO")
        ends = {"input": {"path": "s0"}, "output": output}
        found = [{"type": "sequence", **ends, "transformations": steps([2, 0.5, 0.5], [8, -1, 3])}]
        turn = {"type": "rotation", "rotation": [[0, 1, 0], [1, 0, 0], [0, 0, 1]]}
        more = {**turn, "input": {"name": "intrinsic"}, "output": {"name": "atlas"}}
        write_systems(tmp_path / "em", found, systems, coordinateTransformations=[more])
        volume = open_volume(str(tmp_path / "em"))
        assert volume.voxel_size_nm == (2000, 500, 500)
        assert volume.bounds.start == (4, -2, 6)
        assert "further coordinate systems (atlas); positions are those of 'intrinsic'" in (
            caplog.text
        )

    def test_scale_and_identity(self, tmp_path):
        """A dataset may have a scale alone, or be in units of its system already."""
        ends = {"input": {"path": "s0"}, "output": {"name": "intrinsic"}}
        write_systems(tmp_path / "a", [{**steps([3, 2, 1])[0], **ends}])
        assert open_volume(str(tmp_path / "a")).voxel_size_nm == (3000, 2000, 1000)
        write_systems(tmp_path / "b", [{"type": "identity", **ends}])
        assert open_volume(str(tmp_path / "b")).voxel_size_nm == (1000, 1000, 1000)

    @settings(max_examples=40)
    @given(data=st.data())
    def test_nested_sequences(self, tmp_path_factory, data):
        """However sequences are nested, their steps apply in order."""
        step = st.one_of(
            st.just({"type": "identity"}),
            st.tuples(*[st.sampled_from([0.5, 1, 2, 4])] * 3).map(lambda v: steps(v)[0]),
            st.tuples(*[st.integers(-9, 9)] * 3).map(
                lambda v: {"type": "translation", "translation": list(v)}
            ),
        )
        tree = st.recursive(
            step,
            lambda inner: st.lists(inner, min_size=1, max_size=4).map(
                lambda found: {"type": "sequence", "transformations": found}
            ),
            max_leaves=8,
        )
        root = data.draw(tree)

        def apply(transform, point):
            if transform["type"] == "sequence":
                for each in transform["transformations"]:
                    point = apply(each, point)
                return point
            if transform["type"] == "scale":
                return point * transform["scale"]
            return point + transform.get("translation", 0)

        first, second = apply(root, np.zeros(3)), apply(root, np.ones(3))
        size = second - first
        path = tmp_path_factory.mktemp("systems") / "em"
        ends = {"input": {"path": "s0"}, "output": {"name": "intrinsic"}}
        write_systems(path, [root | ends])
        volume = open_volume(str(path))
        assert volume.voxel_size_nm == tuple(1000 * size)
        assert volume.bounds.start == tuple(np.floor(first / size + 0.5))

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("affine", {"affine": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]}),
            ("rotation", {"rotation": [[0, 1, 0], [1, 0, 0], [0, 0, 1]]}),
            ("mapAxis", {"mapAxis": [2, 1, 0]}),
            ("byDimension", {"transformations": []}),
            ("displacements", {"path": "field"}),
            ("bijection", {"forward": {}, "inverse": {}}),
            (None, {}),
        ],
    )
    @pytest.mark.parametrize("inside", [True, False])
    def test_other_transformations(self, tmp_path, kind, values, inside):
        """What moves voxels off a grid along the axes is refused by its name."""
        found = {"type": kind, **values}
        if inside:
            found = {"type": "sequence", "transformations": [*steps([1, 1, 1]), found]}
        write_systems(tmp_path / "em", [{**found, "output": {"name": "intrinsic"}}])
        with pytest.raises(VolumeError, match=f"of type {kind!r}, but only identity, scale"):
            open_volume(str(tmp_path / "em"))

    @pytest.mark.parametrize(
        ("transforms", "text"),
        [
            (
                [{**steps([1, 1, 1])[0], "output": {"name": "stage"}}],
                r"coordinate systems intrinsic, atlas, but .* dataset 's0' lead to 'stage'",
            ),
            (steps([1, 1, 1]), "but .* dataset 's0' lead to None"),
            ([], "but .* dataset 's0' lead to None"),
            ([{"type": "sequence", "output": "intrinsic"}], "field 'transformations' is missing"),
            (
                [{"type": "sequence", "output": "intrinsic", "transformations": 7}],
                "cannot open .*damaged",
            ),
            ([{"type": "scale", "scale": [1, 1], "output": "intrinsic"}], "has 3 axes, but its"),
        ],
    )
    def test_damaged(self, tmp_path, transforms, text):
        """Metadata that contradict themselves are one sentence that names the volume."""
        write_systems(tmp_path / "em", transforms)
        with pytest.raises(VolumeError, match=text) as caught:
            open_volume(str(tmp_path / "em"))
        assert str(tmp_path / "em") in str(caught.value)

    def test_no_datasets_of_its_own(self, tmp_path):
        """Without coordinate systems in the list, the message says that there are none."""
        found = [{**steps([1, 1, 1])[0], "output": {"name": "intrinsic"}}]
        write_systems(tmp_path / "em", found, systems=())
        with pytest.raises(VolumeError, match="systems none, but .* dataset 's0' lead to"):
            open_volume(str(tmp_path / "em"))

    def test_not_the_same_volume(self, tmp_path):
        """An image of version 0.5 is not continued as one of 0.6."""
        create_volume(SPEC, f"zarr://{tmp_path}/em", ome_version="0.5")
        with pytest.raises(VolumeError, match=r"version .* is 0\.5, but the new volume has 0\.6"):
            create_volume(replace(SPEC, max_mip=1), f"zarr://{tmp_path}/em", ome_version="0.6")

    def test_labels_have_the_version_of_the_image(self, tmp_path):
        """Labels take the version of their image, and no other."""
        create_volume(SPEC, f"zarr://{tmp_path}/em", ome_version="0.6")
        cells = replace(SPEC, kind="segmentation", dtype=np.dtype("u4"))
        with pytest.raises(VolumeError, match=r"image that contains these labels is OME-Zarr 0\.6"):
            create_volume(cells, f"zarr://{tmp_path}/em/labels/cells", ome_version="0.5")
        assert not (tmp_path / "em/labels").exists()
        create_volume(cells, f"zarr://{tmp_path}/em/labels/cells")
        for path in ("labels", "labels/cells"):
            assert ome(tmp_path / "em" / path, "0.6")["version"] == "0.6"


class TestCreatedAgain:
    """A volume that there is already."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_more_levels(self, tmp_path, version):
        """Levels that are missing are added; what others have written stays."""
        url = f"zarr://{tmp_path}/em"
        create_volume(replace(SPEC, channels=2), url, ome_version=version, channel_names="ab")
        group = zarr.open_group(str(tmp_path / "em"))
        group.attrs["theirs"] = {"kept": True}
        more = replace(SPEC, channels=2, max_mip=2)
        create_volume(more, url, ome_version=version)
        fine = open_volume(url)
        assert (fine.mips, fine.channel_names) == ((0, 1, 2), ("a", "b"))
        group = zarr.open_group(str(tmp_path / "em"), mode="r")
        assert group.attrs["theirs"] == {"kept": True}
        create_volume(replace(SPEC, channels=2), url, ome_version=version)
        assert open_volume(url, 2).bounds == coarser(BOUNDS, Zyx(4, 4, 4))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"dtype": np.dtype("u2")}, "data_type .*is uint8, but the new volume has uint16"),
            ({"bounds": BOUNDS.grow((0, 0, 1))}, r"shape .*\[21, 33, 33\], but .* \[21, 33, 35\]"),
            ({"bounds": BOUNDS.translate((0, 0, 8))}, "scale and translation at mip 0"),
            ({"voxel_size_nm": (40.0, 4.0, 4.0)}, "scale and translation at mip 0"),
            ({"block_size": Zyx(8, 8, 8)}, "chunk_grid .*16, 16.*8, 8"),
            ({"encoding": "gzip"}, "codecs .*zstd.*gzip"),
            ({"channels": 2}, "shape"),
            ({"kind": "probability"}, "chunkflow_py .*image.*probability"),
            ({"shard_size": Zyx(16, 32, 32)}, "chunk_grid"),
        ],
    )
    def test_another(self, tmp_path, change, text):
        """What differs is named with both values, and nothing is written, unless it is wanted."""
        url = f"zarr://{tmp_path}/em"
        create_volume(SPEC, url)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        with pytest.raises(VolumeError, match=f"already contains another volume, where .*{text}"):
            create_volume(replace(SPEC, max_mip=1, **change), url)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        made = create_volume(replace(SPEC, **change), url, overwrite=True)
        assert made.bounds == change.get("bounds", BOUNDS)

    def test_another_version(self, tmp_path):
        """Two versions in one folder would hide each other."""
        create_volume(SPEC, f"zarr2://{tmp_path}/em")
        with pytest.raises(VolumeError, match=r"of another zarr version \(.zgroup\)"):
            create_volume(SPEC, f"zarr3://{tmp_path}/em")
        create_volume(SPEC, f"zarr3://{tmp_path}/em3", plain=True)
        with pytest.raises(VolumeError, match=r"of another zarr version \(zarr.json\)"):
            create_volume(SPEC, f"zarr2://{tmp_path}/em3", plain=True)

    def test_array_and_group(self, tmp_path):
        """A plain array is no image."""
        create_volume(SPEC, f"zarr://{tmp_path}/em", plain=True)
        with pytest.raises(VolumeError, match="node_type .*is array, but the new volume has group"):
            create_volume(SPEC, f"zarr://{tmp_path}/em")

    def test_damaged(self, tmp_path):
        """Torn metadata are told, and replaced on demand."""
        create_volume(SPEC, f"zarr://{tmp_path}/em")
        (tmp_path / "em/zarr.json").write_text('{"zarr_for')
        with pytest.raises(VolumeError, match=r"zarr.json of .* is damaged .*--overwrite"):
            create_volume(SPEC, f"zarr://{tmp_path}/em")
        create_volume(SPEC, f"zarr://{tmp_path}/em", overwrite=True)
        assert open_volume(f"{tmp_path}/em").bounds == BOUNDS

    def test_a_group_that_was_there(self, tmp_path):
        """A group without an image becomes one, and keeps what else it holds."""
        group = zarr.create_group(str(tmp_path / "em"))
        group.create_array("other", shape=(3,), dtype="u1")
        group.attrs["theirs"] = 7
        create_volume(SPEC, f"zarr://{tmp_path}/em")
        assert open_volume(f"{tmp_path}/em").bounds == BOUNDS
        assert zarr.open_group(str(tmp_path / "em"), mode="r").attrs["theirs"] == 7
