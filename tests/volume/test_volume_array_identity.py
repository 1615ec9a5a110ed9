"""Tests of chunkflow_py.volume.array_identity: which addresses mean one array."""

import itertools
import json
import os

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rigs.command_line import say

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkflowError, OptionError, VolumeError
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.whole_volume import Conversion
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.array_identity import ArrayAddress, same_array
from chunkflow_py.volume.protocol import VolumeSpec

SPEC = VolumeSpec(
    BoundingBox(Zyx(0, 0, 0), Zyx(16, 32, 32)), (8.0, 8.0, 8.0), np.dtype("uint8"), None, "image",
    Zyx(16, 16, 16), max_mip=1,
)  # fmt: skip
PLAIN = VolumeSpec(SPEC.bounds, SPEC.voxel_size_nm, SPEC.dtype, None, "image", SPEC.block_size)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Return the folder of some volumes, and commands that name each array: by key, which array."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("s", "t"):
        create_volume(SPEC, f"zarr://{folder}/{name}.zarr")
    create_volume(SPEC, f"zarr2://{folder}/two.zarr")
    create_volume(PLAIN, f"zarr://{folder}/plain.zarr", plain=True)
    create_volume(SPEC, f"precomputed://{folder}/em")
    create_volume(PLAIN, f"h5://{folder}/a.h5")
    create_volume(PLAIN, f"h5://{folder}/a.h5:/more/raw")
    with h5py.File(folder / "a.h5", "r+") as file:
        file["again"] = file["main"]
    os.link(folder / "a.h5", folder / "hard.h5")
    n5 = {"dimensions": [32, 32, 16], "blockSize": [16, 16, 16], "dataType": "uint8",
          "compression": {"type": "raw"}}  # fmt: skip
    for level in ("s0", "s1"):
        (folder / "em.n5" / level).mkdir(parents=True)
        (folder / "em.n5" / level / "attributes.json").write_text(json.dumps(n5))
    (folder / "links").symlink_to(folder)
    (folder / "level.zarr").symlink_to(folder / "s.zarr" / "0")
    np.save(folder / "x.npy", np.zeros((4, 4, 4), np.uint8))
    ts = "load-tensorstore --spec"
    spellings = {
        "zarr 0": [
            "load-zarr --store {}/s.zarr",
            "load-volume -v zarr://{}/s.zarr/0",
            "load-volume -v {}/s.zarr/0/",
            "load-zarr --store {}/level.zarr",
            "load-volume -v zarr3://file://{}/links/s.zarr",
            "save-zarr --store {}/s.zarr",
            "save-zarr --plain --store {}/s.zarr/0",
            "save-volume -v {}/./s.zarr/0",
            "save-zarr --store {} --path em/../s.zarr",
            "mask -v {}/s.zarr -m 0",
            ts + ' {{"driver":"zarr3","kvstore":"file://{}/s.zarr/0/"}}',
            ts + " file://{}/links/s.zarr/0/|zarr3:",
            "inference --patch-mask {}/s.zarr/0 -s 8 8 8 "
            "--output-patch-overlap 4 4 4 --framework identity",
        ],
        "zarr 1": [
            "load-zarr --store {}/s.zarr -m 1",
            "load-volume -v {}/s.zarr/1",
            "save-zarr --store {}/links/s.zarr -m 1",
            "load-zarr --store {}/x/../s.zarr/1",
            "mask -v {}/s.zarr -m 1",
            "load-zarr --store {}/s.zarr/1",
        ],
        "other zarr": [
            "load-zarr --store {}/t.zarr",
            "load-volume -v {}/t.zarr/0",
            "save-zarr --store {}/t.zarr",
        ],
        "zarr v2": [
            "load-zarr --store {}/two.zarr",
            "load-volume -v zarr2://{}/two.zarr/0",
            ts + ' {{"driver":"zarr","kvstore":{{"driver":"file","path":"{}/two.zarr/0/"}}}}',
            "save-volume -v zarr2://{}/links/two.zarr",
        ],
        "plain zarr": [
            "load-zarr --store {}/plain.zarr",
            "save-zarr --plain --store {}/links/plain.zarr",
            ts
            + ' {{"driver":"cast","dtype":"float32","base":{{"driver":"zarr3","kvstore":"file://{}/plain.zarr/"}}}}',
        ],
        "precomputed 0": [
            "load-precomputed -v {}/em",
            "load-volume -v precomputed://file://{}/em",
            "save-precomputed -v {}/links/em",
            "save-volume -v {}/em|neuroglancer-precomputed:",
            ts + ' {{"driver":"neuroglancer_precomputed","kvstore":"file://{}/em/"}}',
        ],
        "precomputed 1": [
            "load-precomputed -v {}/em -m 1",
            "save-precomputed -v {}/../{name}/em -m 1",
            ts
            + ' {{"driver":"neuroglancer_precomputed","kvstore":"file://{}/em/","scale_index":1}}',
        ],
        "n5": [
            "load-n5 -f {}/em.n5",
            "load-volume -v n5://{}/em.n5/s0",
            "load-volume -v {}/em.n5/s0",
        ],
        "n5 s1": [
            "load-volume -v {}/em.n5 -m 1",
            "load-volume -v n5://{}/links/em.n5/s1",
        ],
        "h5": [
            "load-volume -v h5://{}/a.h5",
            "load-volume -v {}/a.h5:main",
            "load-volume -v {}/hard.h5:/main",
            "save-volume -v h5://{}/links/a.h5",
            "load-volume -v {}/a.h5:again",
        ],
        "h5 more": [
            "load-volume -v {}/a.h5:/more/raw",
            "save-volume -v h5://{}/hard.h5:more/raw",
        ],
        "npy": [
            "load-npy -f {}/x.npy",
            "load-npy -f {}/links/x.npy",
        ],
        "new zarr": [
            "save-zarr --store {}/new.zarr",
            "save-zarr --store {}/new.zarr/0 --plain",
            "save-zarr --store {}/links/new.zarr",
        ],
        "new zarr 1": [
            "save-zarr --store {}/new.zarr -m 1",
            "save-zarr --plain --store {}/links/new.zarr/1",
        ],
    }
    return folder, {
        key: [command.format(folder, name=folder.name) for command in commands]
        for key, commands in spellings.items()
    }


def place_of(command):
    """Return the place that a command reads or writes."""
    name, option, value, *others = command.split(" ", 3)
    words = [name, option, value]
    if name == "load-tensorstore":
        words = [name, option, command.split(" ", 2)[2]]
    elif others:
        words += others[0].split()
    (operator,) = read_line(words)[:1]
    (place,) = {*operator.hooks.origins, *operator.hooks.destinations}
    return place


def test_all_spellings_of_one_array_are_equal_and_no_others(arrays) -> None:
    """For every driver, two addresses are the same exactly when they mean one array."""
    _, spellings = arrays
    places = [
        (key, ArrayAddress.parse(place_of(command)), command)
        for key, commands in spellings.items()
        for command in commands
    ]
    wrong = [
        (one, other)
        for (first, a, one), (second, b, other) in itertools.permutations(places, 2)
        if a.is_same(b) != (first == second)
    ]
    assert not wrong


def test_every_pair_is_refused_by_a_line(arrays) -> None:
    """Whoever reads an array and writes it in one line is refused, however the two are written."""
    _, spellings = arrays
    tried = 0
    for commands in spellings.values():
        readers = [c for c in commands if c.startswith(("load-volume", "load-zarr", "load-prec"))]
        writers = [c for c in commands if c.startswith("save")]
        for reader, writer in itertools.product(readers, writers):
            tried += 1
            pipeline = Pipeline(read_line([*reader.split(), *writer.split()]))
            with pytest.raises(OptionError, match="which load-.* reads"):
                pipeline.check()
    assert tried > 20


PARTS = st.lists(
    st.sampled_from(["", ".", "../{name}", "links", "x/.."]), max_size=4
)  # ways to say the same folder


@settings(max_examples=25)
@given(PARTS, st.sampled_from(["", "file://", "zarr://", "zarr3://file://"]), st.booleans())
def test_ways_through_folders(arrays, parts, scheme, slash) -> None:
    """Slashes, dots, links and schemes make no other array of one."""
    folder, _ = arrays
    (folder / "x").mkdir(exist_ok=True)
    inside = "/".join(part.format(name=folder.name) for part in parts)
    for path, mip in (("s.zarr", 0), ("s.zarr/0", 0)):
        url = f"{scheme}{folder}/{inside}/{path}{'/' if slash else ''}"
        place = place_of(f"load-volume -v {url} -m {mip}")
        assert same_array(place, f"file://{folder}/s.zarr at mip 0")
        assert not same_array(place, f"file://{folder}/s.zarr at mip 1")
        assert not same_array(place, f"file://{folder}/t.zarr at mip 0")


def test_spellings_of_a_bucket(s3) -> None:
    """Slashes and a web address of a bucket make no other array; another key, case or %20 does."""
    assert s3.endpoint  # where there is no such bucket
    place = "s3://bucket/em.zarr at mip 0"
    for same in (
        "s3://bucket/em.zarr/ at mip 0",
        "s3://bucket//em.zarr at mip 0",
        "s3://bucket/./em.zarr at mip 0",
        "s3://bucket/em.zarr/0 at mip 0",
        "https://bucket.s3.amazonaws.com/em.zarr at mip 0",
        "https://s3.eu-west-1.amazonaws.com/bucket/em%2Ezarr at mip 0",
        f"{s3.endpoint}/bucket/em.zarr at mip 0",
        "https://BUCKET.s3.amazonaws.com/em.zarr at mip 0",
    ):
        assert same_array(place, same), same
    for other in (
        "s3://bucket/em.zarr at mip 1",
        "s3://bucket/EM.zarr at mip 0",
        "s3://bucket/e%6D.zarr at mip 0",
        "gs://bucket/em.zarr at mip 0",
        "s3://other/em.zarr at mip 0",
        "s3://bucket/em.zarr2 at mip 0",
        "file:///bucket/em.zarr at mip 0",
    ):
        assert not same_array(place, other), other
    for refused in ("S3://bucket/em", "FILE:///em"):
        with pytest.raises(VolumeError, match="unknown scheme"):
            place_of(f"load-volume -v {refused}")


def test_levels_in_a_bucket(s3) -> None:
    """In a bucket the metadata say which key a level has."""
    create_volume(SPEC, f"zarr://{s3.url}/s.zarr")
    create_volume(SPEC, f"precomputed://{s3.url}/em")
    assert same_array(f"{s3.url}/s.zarr at mip 1", f"{s3.url}/s.zarr/1 at mip 0")
    assert not same_array(f"{s3.url}/s.zarr at mip 0", f"{s3.url}/s.zarr/1 at mip 0")
    assert same_array(f"{s3.url}/em at mip 1", f"{s3.url}/em/16_16_16")
    assert not same_array(f"{s3.url}/em at mip 0", f"{s3.url}/em/16_16_16")


def test_files_of_tasks(tmp_path) -> None:
    """A file that a task may write is one of its files; others are not."""
    files = f"{tmp_path}/out_BOX.h5"
    (tmp_path / "link").symlink_to(tmp_path)
    assert same_array(files, f"{tmp_path}/out_0-64_0-512_-8-512.h5")
    assert same_array(files, f"{tmp_path}/link/out_t3_0-64_0-512_0-512.h5")
    assert same_array(f"{tmp_path}/link/out_BOX.h5", files)
    assert not same_array(files, f"{tmp_path}/out_mean.h5")
    assert not same_array(files, f"{tmp_path}/in_BOX.h5")
    assert not same_array(files, f"{tmp_path}/in_0-64_0-512_0-512.h5")


def test_a_file_holds_its_datasets(arrays) -> None:
    """Who replaces an HDF5 file, or reads it as a file, meets who writes a dataset in it."""
    folder, _ = arrays
    assert same_array(f"{folder}/hard.h5", f"file://{folder}/a.h5:more/raw at mip 0")
    assert not same_array(f"{folder}/b.h5", f"file://{folder}/a.h5:more/raw at mip 0")


def test_a_copy_to_itself_is_refused(arrays) -> None:
    """A conversion compares arrays, not spellings."""
    folder, _ = arrays
    copy = Conversion(f"{folder}/s.zarr", f"zarr://{folder}/links/s.zarr/0")
    with pytest.raises(ChunkflowError, match="cannot be converted to itself"):
        copy.pipeline()


def test_a_volume_is_announced_to_all_its_spellings(tmp_path) -> None:
    """A saver knows the volume that create-volume will make by another spelling, too."""
    (tmp_path / "link").symlink_to(tmp_path)
    line = (
        f"create-chunk --size 16 16 16 create-volume -v zarr://{tmp_path}/out.zarr -b 8 8 8 "
        f"save-zarr --no-create -s {tmp_path}/link/x/../out.zarr"
    )
    (tmp_path / "x").mkdir()
    pipeline = Pipeline(read_line(line.split()))
    pipeline.check()
    (task,) = pipeline.run()
    assert task.outcome is None


@pytest.mark.parametrize(
    ("read", "written"), [("zarr://{}/s.zarr/0", "{}/s.zarr"), ("{}/s.zarr", "{}/s.zarr/0")]
)
@pytest.mark.parametrize("verb", ["", "submit --run {}/r "])
def test_smoothing_a_volume_in_place_is_refused(arrays, verb, read, written) -> None:
    """A line whose tasks would read what others have smoothed is refused before the first task."""
    folder, _ = arrays
    line = (
        f"{verb}generate-tasks --volume-path {{}}/s.zarr --chunk-size 16 16 16 "
        f"load-volume -v {read} --expand-margin-size auto gaussian-filter --sigma 2 "
        f"save-zarr --store {written}"
    ).replace("{}", str(folder))
    assert "would read the output of earlier tasks" in say(line, code=2)
    assert not (folder / "r").exists()
