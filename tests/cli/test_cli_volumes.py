"""What is wrong with a volume is one sentence and an exit code, and nothing is torn by it."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(0, 0, 0), Zyx(16, 64, 64))
SECRET = "secret-of-the-rig-5f1c"


def run(*words, code=0):
    """Run a command line and return its output; errors have no traceback."""
    result = CliRunner().invoke(cli, ["--quiet", *(p for w in words for p in str(w).split())])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def snapshot(folder):
    """Return the content of all files in a folder, but locks of HDF5 and bytecode of plugins."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.suffix not in (".lock", ".pyc")}


@pytest.fixture(params=["precomputed", "zarr", "h5"])
def em(request, tmp_path):
    """Return the address of a volume of one channel, in each format."""
    url = f"{request.param}://{tmp_path}/em{'.h5' if request.param == 'h5' else ''}"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
    create_volume(spec, url).write(Chunk(np.ones(BOUNDS.size, "u1")))
    return url


NETWORK = "inference -f identity -s 8 32 32 -v 0 0 0"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("zar://em", "unknown scheme zar://; did you mean zarr://?"),
        ("precomputed://s4://em", "unknown scheme s4://; did you mean s3://?"),
        ("h6://em.h5", "did you mean h5://?"),
        ("zarr://", "names no volume"),
        ("", "names no volume"),
        ("nowhere", "nowhere does not exist"),
        ("zarr://nowhere", "nowhere"),
        ("h5://nowhere.h5", "nowhere.h5"),
    ],
)
@pytest.mark.parametrize("command", ["load-volume", "skip-task-by-blocks-in-volume"])
def test_an_address_that_leads_nowhere(url, text, command, tmp_path, monkeypatch):
    """An address that cannot be right is refused with the nearest that can."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [command, "-v", url])
    assert result.exit_code == 1, result.output
    assert text in result.output
    assert "Traceback" not in result.output


def test_an_address_to_write_to(tmp_path, monkeypatch):
    """An unknown scheme is refused before the pipeline starts."""
    monkeypatch.chdir(tmp_path)
    text = run("create-chunk", NETWORK, "save-volume -v zar://out", code=1)
    assert "did you mean zarr://?" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["load-volume", "create-chunk save-volume --no-create"])
def test_a_level_that_is_not_there(em, tmp_path, line):
    """A level that the volume has not is named, with those that it has."""
    before = snapshot(tmp_path)
    assert "mip 3" in run(line, "--mip 3 -v", em, code=1)
    assert snapshot(tmp_path) == before


def test_voxels_that_the_volume_cannot_hold(em, tmp_path):
    """Wrong channels or a wrong type are found before the network runs, and nothing is written."""
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u4"), None, "image", Zyx(8, 32, 32))
    create_volume(spec, f"h5://{tmp_path}/labels.h5")
    before = snapshot(tmp_path)
    labels = f"{tmp_path}/labels.h5"
    text = run("load-volume -v", labels, NETWORK, "-c 3 save-volume -v", em, code=1)
    assert f"the pipeline makes 3 channels of float32, but {em} holds 1 channels of uint8" in text
    text = run("load-volume -v", labels, "save-volume -v", em, code=1)
    assert f"the pipeline makes 1 channels of uint32, but {em} holds 1 channels of uint8" in text
    assert snapshot(tmp_path) == before


def test_chunks_that_the_volume_cannot_hold(em, tmp_path):
    """Where the type is only known with the chunk, both types are named and nothing is written."""
    (tmp_path / "same.py").write_text("def execute(chunk):\n    return chunk\n")
    before = snapshot(tmp_path)
    plugin = f"plugin -f {tmp_path}/same.py -i chunk -o chunk"
    text = run(f"create-chunk --size 16 64 64 -d uint32 {plugin} save-volume -v", em, code=1)
    assert f"has the dtype uint32, but {em} has the dtype uint8" in text
    assert snapshot(tmp_path) == before


def test_a_box_outside_of_the_bounds(em, tmp_path):
    """A cut that reaches outside is refused with the part inside; so are tasks that lie outside."""
    before = snapshot(tmp_path)
    assert "the part inside is 8-16_0-8_0-8" in run(
        "load-volume -v", em, "-s 8 0 0 -z 16 8 8", code=1
    )
    far = "create-chunk --size 8 32 32 -t 800 0 0 save-volume -v"
    assert "800-808_0-32_0-32 lies outside of" in run(far, em, code=1)
    assert snapshot(tmp_path) == before


def test_tasks_that_share_blocks(em, tmp_path):
    """Tasks that cut blocks are refused before the first, with sizes that work."""
    source = f"h5://{tmp_path}/source.h5"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
    create_volume(spec, source)
    before = snapshot(tmp_path)
    tasks = "generate-tasks --roi-size 16 64 64 --chunk-size 8 24 32"
    text = run(tasks, "load-volume -v", source, "save-volume -v", em, code=1)
    assert "cut the write units of size (8, 32, 32)" in text
    assert "task sizes that work: (8, 32, 32)" in text
    assert snapshot(tmp_path) == before


def test_channels_that_are_not_there(em):
    """A channel that the volume has not is refused with those that it has."""
    assert "has channel 0 only, but channel 2 was requested" in run(
        "load-volume -c 2 -v", em, code=1
    )


@pytest.mark.parametrize("damage", ["text", "number", "null"])
def test_metadata_that_are_no_numbers(tmp_path, damage):
    """Metadata that hold text where numbers belong are refused in one sentence that names them."""
    value = {"text": "abc", "number": [1e400, "x"], "null": None}[damage]
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
    create_volume(spec, f"precomputed://{tmp_path}/p")
    info = json.loads((tmp_path / "p" / "info").read_text())
    for key in ("resolution", "size", "chunk_sizes", "voxel_offset"):
        if (damage, key) == ("null", "voxel_offset"):
            continue  # that is no offset
        wrong = json.loads(json.dumps(info))
        wrong["scales"][0][key] = value
        (tmp_path / "p" / "info").write_text(json.dumps(wrong))
        assert f"{tmp_path}/p" in run("load-volume -v", tmp_path / "p", code=1)
    create_volume(spec, f"zarr://{tmp_path}/z")
    path = tmp_path / "z" / "zarr.json"
    group = json.loads(path.read_text())
    image = group["attributes"]["ome"]["multiscales"][0]["datasets"][0]
    for change in image["coordinateTransformations"]:
        kept = dict(change)
        change["scale" if "scale" in change else "translation"] = value
        path.write_text(json.dumps(group))
        assert f"{tmp_path}/z" in run("load-volume -v", tmp_path / "z", code=1)
        change.update(kept)
    array = tmp_path / "z" / "0" / "zarr.json"
    text = json.loads(array.read_text())
    for key in ("shape", "chunk_grid", "data_type"):
        array.write_text(json.dumps({**text, key: value}))
        assert f"{tmp_path}/z" in run("load-volume -v", tmp_path / "z", code=1)


@pytest.mark.aws
def test_a_bucket_that_is_not_there(s3):
    """A missing bucket is one sentence that names it, and no credential is ever shown."""
    missing = f"s3://{s3.bucket}-not/em"
    for line in (
        f"load-volume -v {missing}",
        f"load-volume -v precomputed://{missing}",
        f"create-chunk --size 8 8 8 save-volume -v zarr://{missing}",
        f"create-volume -z 8 8 8 -d uint8 -v precomputed://{missing}",
    ):
        text = run(line, code=1)
        assert f"{s3.bucket}-not" in text
        assert SECRET not in text


@pytest.mark.aws
@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_a_line_over_buckets(s3, scheme):
    """Volumes of buckets are created, written, skipped and read by commands as local ones are."""
    url = f"{scheme}://{s3.url}"
    run("create-volume -z 16 64 64 -d uint8 -b 8 32 32 -v", url)
    line = (
        f"generate-tasks -v {url} -c 8 32 32 skip-task-by-blocks-in-volume -v {url} "
        "create-chunk --size 16 64 64 crop-margin --crop-bbox save-volume --upload-log "
        f"--fill-missing --create-thumbnail --no-create -v {url}"
    )
    run(line)
    volume = open_volume(url)
    assert volume.has_blocks(volume.bounds)
    with s3.faults() as faults:
        run(line)
        written = [call for call in faults.log() if call["method"] == "PUT"]
    assert written == []


@contextmanager
def nobody():
    """Let go of the right of the super-user to write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_a_read_only_folder(tmp_path, scheme):
    """A read-only folder is reported before the network runs on the first task."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    (tmp_path / "fail.py").write_text("def execute(chunk):\n    raise RuntimeError('it ran')\n")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    line = f"create-chunk plugin -i chunk -o chunk -f {tmp_path}/fail.py save-volume -v {scheme}://"
    assert "it ran" in run(f"{line}{tmp_path}/open", code=1)
    with nobody():
        text = run(f"{line}{locked}/out", code=1)
    assert f"folder {locked} is read-only for this user" in text


def test_a_full_disk_leaves_nothing_torn(tmp_path):
    """A full disk ends the pipeline; the stored blocks are complete."""
    url = f"zarr://{tmp_path}/out"
    code = (
        "import resource\n"
        "from chunkflow_py.cli.main import main\n"
        "import chunkflow_py.volume.zarr.zarr_volume\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "main()"
    )
    words = f"--quiet create-chunk --pattern random save-volume -v {url}".split()
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "file too large; raise the limit" in done.stderr
    assert "Traceback" not in done.stderr
    assert not open_volume(url).read(open_volume(url).bounds).array.any()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp-")]
