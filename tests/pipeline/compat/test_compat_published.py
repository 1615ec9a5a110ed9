"""The plugin files that chunkflow itself ships, unchanged, in lines of our command line.

They are data of these tests, found beside the checkout, and not part of the project.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rigs import s3

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.save_h5 import save_h5

_BESIDE = [folder / "shared/reference/upstream-plugins" for folder in Path(__file__).parents[4:]]
FOLDER = next((folder for folder in _BESIDE if folder.is_dir()), _BESIDE[0])
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the plugin files of chunkflow are not beside the checkout"
)
OFFSET, SIZE_NM = (8, 16, 24), (40, 4, 4)


def image(seed=0, size=(12, 20, 24)):
    """Return grey values with a place."""
    array = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return Chunk(array, OFFSET, SIZE_NM, "image")


def labels():
    """Return two thick bars, one with a hole, with a place."""
    array = np.zeros((12, 20, 24), np.uint32)
    array[2:10, 2:9, 2:22] = 3
    array[5, 5, 10] = 0
    array[2:10, 11:18, 2:22] = 70000
    return Chunk(array, OFFSET, SIZE_NM, "segmentation")


def blobs():
    """Return a map of [0, 1] with two peaks."""
    z, y, x = np.ogrid[:40, :40, :80]
    peaks = [np.exp(-((z - 20) ** 2 + (y - 20) ** 2 + (x - at) ** 2) / 18.0) for at in (20, 60)]
    return Chunk(sum(peaks).astype(np.float32), OFFSET, SIZE_NM, "probability")


PEAKS = [[28, 36, 44], [28, 36, 84]]

# Plugin -> what the line loads, the rest of the line, and what comes out of it.
RUN = {
    "agglomerate": ("affinities", "-i in -o out --threshold 0.5", "agglomerated"),
    "adjust_pre": ("tbars", "-i syns,in -o syns save-synapses -i syns -f out.h5", "adjusted"),
    "cloud_watch": None,  # test_the_log_reaches_cloud_watch
    "detect_points": ("blobs", "-i in -o out --min-distance 6", "points"),
    "detect_pre_synapses": ("blobs", "-i in,bbox -o syns save-synapses -i syns -f out.h5", "pre"),
    "fill_segmentation_holes": ("labels", "-i in -o out", "filled"),
    "gaussian_filter": ("image", "-i in -o out --sigma 2", "blurred"),
    "inverse": ("image", "-i in -o out", "inverse"),
    "load_mrc": ("mrc", "-i bbox -o out --fname em.mrc", "mrc"),
    "load_nrrd": ("nrrd", "-o out -a file_name=em.nrrd;voxel_size=(40,4,4)", "nrrd"),
    "load_tensorstore": ("n5", "-i bbox -o out --driver n5 --kvstore file://em.n5 --cache 1000000 "
                         "--voxel-size 40,4,4", "tensorstore"),
    "mapto01": ("image", "-i in -o out", "to01"),
    "median_filter": ("image", "-i in -o out --size 3 1 1", "median"),
    "print_max_id": ("labels", "-i in", "max_id"),
    "rescale_intensity": ("image", "-i in -o out --low 10 --high 200", "rescaled"),
    "save_nrrd": ("channel", "-i in --file-name out", "saved_nrrd"),
    "skeletonize": ("labels", "-i in --voxel-size (40,4,4) --output-path file://skeletons",
                    "skeletons"),
    "statistics": ("labels", "-i in", "statistics"),
    "stretch_intensity": ("image", "-i in -o out --min-threshold 50 --max-threshold 200",
                          "stretched"),
    "transpose": ("cube", "-i in -o out", "transposed"),
}  # fmt: skip

# Plugin -> module that is missing (elsewhere it may be there), and what is said; the rest fails by
# itself, with chunkflow 1.2 as well.
NOT_RUN = {
    "aggregate_skeleton_fragments": (None, "no known parent package"),  # imports its neighbour
    "clahe": ("cv2", "No module named 'cv2'"),
    "cutout_dvid_label": ("pydvid", "No module named 'pydvid'"),
    "czann_inference": (None, "has no function execute"),  # an empty file
    "detect_duplicate_post": (None, "/mnt/ceph"),  # writes to a folder of its author
    "detect_post_synapses": ("neutorch", "No module named 'neutorch'"),
    "find_tbar_object": (None, "'Synapses' object has no attribute 'tbars'"),  # its older name
    "load_n5": (None, "N5FSStore"),  # which zarr 3 does not have
    "napari_pixel_classifier": ("apoc", "No module named 'apoc'"),
}
ITEMS = {
    "clahe": "-i in", "cutout_dvid_label": "-i bbox", "load_n5": "-i bbox",
    "detect_duplicate_post": "-i bbox,syns,in -a 5", "detect_post_synapses": "-i in,syns,bbox",
    "find_tbar_object": "-i syns,in", "napari_pixel_classifier": "-i in",
}  # fmt: skip
LIBRARIES = {
    "adjust_pre": "edt", "agglomerate": "waterz", "fill_segmentation_holes": "fill_voids",
    "load_mrc": "mrcfile", "load_nrrd": "nrrd", "save_nrrd": "nrrd", "skeletonize": "kimimaro",
    "load_tensorstore": "tensorstore", "statistics": "fastremap", "load_n5": "boto3",
    "rescale_intensity": "skimage", "gaussian_filter": "scipy", "median_filter": "scipy",
    "detect_points": "skimage", "detect_pre_synapses": "skimage",
    "aggregate_skeleton_fragments": "kimimaro", "cloud_watch": "cloudvolume",
}  # fmt: skip


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Work in an empty folder; the plugins' breakpoints do not stop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Inputs(tmp_path)


class Inputs:
    """Writes what a line loads; each method returns the beginning of the line."""

    def __init__(self, folder):
        self.folder = folder

    def of(self, chunk):
        save_h5(chunk, self.folder / "in.h5")
        return "load-h5 -f in.h5 -o in"

    def image(self):
        return self.of(image())

    def channel(self):
        return self.of(image().with_array(image().array[None]))

    def cube(self):
        return self.of(Chunk(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), OFFSET, SIZE_NM))

    def labels(self):
        return self.of(labels())

    def blobs(self):
        return "generate-tasks --roi-start 8 16 24 -c 40 40 80 " + self.of(blobs())

    def affinities(self):
        array = np.ones((3, 4, 16, 16), np.float32)
        array[:, :, :, 8] = 0
        return self.of(Chunk(array, OFFSET, SIZE_NM, "affinity"))

    def tbars(self):
        pre = np.array([[14, 26, 36], [8, 16, 24]])
        (self.folder / "t.h5").write_bytes(Synapses(pre, voxel_size_nm=(40.0, 4.0, 4.0)).to_hdf5())
        array = np.full((12, 20, 24), 200, np.uint8)
        array[5:8, 9:13, 12:16] = 10
        return f"load-synapses -f t.h5 -o syns {self.of(Chunk(array, OFFSET, SIZE_NM))}"

    def mrc(self):
        import mrcfile

        with mrcfile.new(self.folder / "em.mrc") as file:
            file.set_data(np.arange(4 * 6 * 8, dtype=np.int8).reshape(4, 6, 8))
            file.voxel_size = (40, 40, 400)  # xyz, ångström
        return "create-bbox -s 1 2 3 -z 2 3 4"

    def nrrd(self):
        import nrrd

        nrrd.write(str(self.folder / "em.nrrd"), image().array)
        return "create-bbox -s 0 0 0 -z 1 1 1"

    def n5(self):
        import tensorstore

        metadata = {"dimensions": [4, 6, 8, 1], "blockSize": [4, 6, 8, 1], "dataType": "uint8",
                    "compression": {"type": "raw"}}  # fmt: skip
        kvstore = {"driver": "file", "path": str(self.folder / "em.n5")}
        spec = {"driver": "n5", "kvstore": kvstore, "metadata": metadata, "create": True}
        array = tensorstore.open(spec).result()
        array.write(np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8, 1)).result()
        return "create-bbox -s 1 2 3 -z 2 3 4"


class Checks:
    """Compares what came out of a line with what the plugin is to do."""

    def __init__(self, folder, output):
        self.folder, self.output = folder, output

    def _same_place(self, like, array, kind="same"):
        out = load_h5(self.folder / "out.h5")
        assert np.array_equal(out.array, array)
        assert out.dtype == array.dtype
        assert (out.voxel_offset, out.voxel_size_nm) == (like.voxel_offset, like.voxel_size_nm)
        assert kind == "same" or out.kind == kind

    def agglomerated(self):
        out = load_h5(self.folder / "out.h5")
        assert (out.voxel_offset, out.voxel_size_nm, out.kind) == (OFFSET, SIZE_NM, "segmentation")
        assert out.dtype.kind == "u"
        assert len(np.unique(out.array[out.array > 0])) == 2

    def adjusted(self):
        made = Synapses.from_bytes((self.folder / "out.h5").read_bytes())
        assert made.voxel_size_nm == SIZE_NM
        middle, outside = made.pre.tolist()
        assert outside == [8, 16, 24]
        assert middle[0] == 14
        assert middle[1] in (26, 27)
        assert middle[2] in (37, 38)

    def points(self):
        made = Points.from_hdf5((self.folder / "out.h5").read_bytes())
        assert sorted(made.positions.tolist()) == PEAKS
        assert made.voxel_size_nm == SIZE_NM

    def pre(self):
        made = Synapses.from_bytes((self.folder / "out.h5").read_bytes())
        assert sorted(made.pre.tolist()) == PEAKS
        assert made.pre_confidence is not None
        assert made.voxel_size_nm == SIZE_NM

    def filled(self):
        import fill_voids

        array = fill_voids.fill(labels().array)
        assert array[5, 5, 10]
        self._same_place(labels(), array, "segmentation")

    def blurred(self):
        from scipy.ndimage import gaussian_filter

        array = np.stack([gaussian_filter(section, 2.0) for section in image().array])
        self._same_place(image(), array, "image")

    def inverse(self):
        self._same_place(image(), 255 - image().array, "image")

    def mrc(self):
        like = Chunk(np.zeros((2, 3, 4)), (1, 2, 3), SIZE_NM)
        array = np.arange(4 * 6 * 8, dtype=np.int8).view(np.uint8).reshape(4, 6, 8)
        self._same_place(like, array[1:3, 2:5, 3:7])

    def nrrd(self):
        self._same_place(Chunk(image().array, voxel_size_nm=SIZE_NM), image().array)

    def tensorstore(self):
        out = load_h5(self.folder / "out.h5")  # which the plugin turns to xyz
        whole = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
        assert np.array_equal(out.array, whole[1:3, 2:5, 3:7].T)
        assert (out.voxel_offset, out.voxel_size_nm) == ((1, 2, 3), SIZE_NM)

    def to01(self):
        array = (image().array.astype(np.float32) / 255.0 + 1.0) / 2.0
        self._same_place(image(), array)

    def median(self):
        from scipy.ndimage import median_filter

        self._same_place(image(), median_filter(image().array, size=(3, 1, 1), mode="reflect"))

    def max_id(self):
        assert "maximum object ID: 70000" in self.output

    def rescaled(self):
        out = load_h5(self.folder / "out.h5")
        stretched = np.clip((image().array.astype(float) - 10) / 190 * 255, 0, 255)
        assert out.voxel_offset == OFFSET
        assert np.abs(out.array - stretched).max() <= 1

    def saved_nrrd(self):
        import nrrd

        (file,) = self.folder.glob("out*.nrrd")
        assert file.name == f"out_{image().bbox}.nrrd"
        assert np.array_equal(nrrd.read(str(file))[0], image().array)

    def skeletons(self):
        names = sorted(path.name for path in (self.folder / "skeletons").iterdir())
        assert [name.partition(":")[0] for name in names] == ["3", "70000"]
        assert all(str(labels().bbox) in name for name in names)

    def statistics(self):
        assert "3 objects with min id 0 and max id 70000" in self.output

    def stretched(self):
        array = np.clip((image().array.astype(np.float32) - 50) / 150, 0, 1) * 255
        self._same_place(image(), array.astype(np.uint8), "image")

    def transposed(self):
        like = Chunk(np.zeros((4, 3, 2)), OFFSET, SIZE_NM)
        self._same_place(like, np.arange(24, dtype=np.uint8).reshape(2, 3, 4).T)


def run(line):
    """Run a line of commands."""
    return CliRunner().invoke(cli, line.split())


def plugin(name):
    """Return the command that calls a plugin."""
    if (library := LIBRARIES.get(name)) is not None and not importlib.util.find_spec(library):
        pytest.skip(f"{library} is not installed")
    return f"plugin -f {FOLDER}/{name}.py"


def test_every_file_has_its_case():
    """Each of the files runs, or has a reason why it does not."""
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == RUN.keys() | NOT_RUN.keys()
    assert not RUN.keys() & NOT_RUN.keys()
    assert len(RUN) >= 12


@pytest.mark.parametrize("name", [name for name, case in RUN.items() if case])
def test_a_published_plugin_runs(name, inputs):
    """Unchanged; its result has the right voxels, place, voxel size and kind."""
    load, rest, check = RUN[name]
    begin = f"{getattr(inputs, load)()} {plugin(name)} {rest}"
    if "-o out" in rest:
        saver = "save-points" if check == "points" else "save-h5"
        begin = f"{begin} {saver} -i out -f out.h5"
    result = run(begin)
    assert result.exit_code == 0, result.output
    getattr(Checks(inputs.folder, result.output), check)()


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_published_plugin_that_does_not_run_says_why(name, inputs):
    """A library is missing, or the file itself is wrong; nothing else stops it."""
    library, said = NOT_RUN[name]
    if library is not None and importlib.util.find_spec(library):
        pytest.skip(f"{library} is installed here")
    pre = np.array([[14, 26, 36]])
    synapses = Synapses(pre, pre + 1, np.array([0]), users=("jwu",), post_users=np.array([0]))
    (inputs.folder / "s.h5").write_bytes(synapses.to_hdf5())
    line = "create-bbox -s 8 16 24 -z 12 20 24 "
    line += f"{inputs.labels()} load-synapses -f s.h5 -o syns {plugin(name)} {ITEMS.get(name, '')}"
    result = run(line)
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.output.split())
    assert "'chunkflow" not in result.output


@pytest.mark.aws
@pytest.mark.filterwarnings("ignore:did not find compute device")
def test_the_log_reaches_cloud_watch(inputs, moto, monkeypatch):
    """The plugin cloud_watch sends the seconds of each command of the line so far."""
    command = plugin("cloud_watch")
    for name, value in s3.environment(moto.address, inputs.folder).items():
        monkeypatch.setenv(name, value)
    moto.set()
    result = run(f"{inputs.image()} {command} -i log --log-name of-a-plugin")
    assert result.exit_code == 0, result.output
    import boto3

    client = boto3.session.Session().client("cloudwatch")
    (metric,) = client.list_metrics(Namespace="of-a-plugin")["Metrics"]
    client.close()
    assert metric["MetricName"] == "load-h5"
