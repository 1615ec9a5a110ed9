"""Networks at addresses: submit fetches them and stores them with the run; workers need no hub."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.model_hub import COMMIT, REPOSITORY, Served, hub_of, serving

from chunkflow_py import BoundingBox, open_volume
from chunkflow_py.cli.main import cli
from chunkflow_py.run.run_directory import RunDirectory

NETWORK = b"""
import torch

InstantiatedModel = torch.nn.Conv3d(1, 2, 1)
"""
PATCH = (
    "--framework pytorch --num-output-channels 2 --input-patch-size 8 16 16 "
    "--output-patch-overlap 0 0 0"
)


def weights(seed):
    """Return the content of a weight file, as Lightning writes it."""
    torch.manual_seed(seed)
    state = torch.nn.Conv3d(1, 2, 1).state_dict()
    target = io.BytesIO()
    torch.save({"state_dict": {f"model.{key}": value for key, value in state.items()}}, target)
    return target.getvalue()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image; runs and caches stay in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "CHUNKFLOW_CACHE_DIR", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    return tmp_path


def work(run, **variables):
    """Run a worker in a process of its own, with other caches, until the run is complete."""
    done = subprocess.run(
        [sys.executable, "-m", "chunkflow_py", "work", run],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(line):
    """Run a pipeline that fails; return the message."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code != 0
    return " ".join(result.output.split())


def voxels(name):
    """Return all voxels of a volume."""
    return open_volume(name).read(BoundingBox.parse("0-16_0-32_0-32")).array


def inference(model, weight_path):
    """Return a pipeline that runs a network, up to its output."""
    files = f"--convnet-model {model} --convnet-weight-path {weight_path}"
    return f"{LINE} inference {PATCH} {files} {SAVE}"


@pytest.mark.parametrize("kind", ["hub", "web"])
def test_workers_download_nothing(folder, monkeypatch, kind):
    """With the server stopped and the caches gone, workers compute what local files give."""
    files = {"net_py": NETWORK, "net_pt": weights(1)}
    if kind == "hub":
        pytest.importorskip("huggingface_hub")
        served, base = hub_of(**files), f"hf://{REPOSITORY}@{COMMIT}"
    else:
        served = Served({"nets/net.py": NETWORK, "nets/net.pt": files["net_pt"]})
    with serving(served):
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        if kind == "web":
            base = f"{served.address}/nets"
        output = say(f"submit --run r {inference(f'{base}/net.py', f'{base}/net.pt')} out.zarr")
        asked = len(served.asked)
    assert "step inference: 8 tasks" in output
    (step,) = RunDirectory("r").spec.steps
    assert [(file.origin, file.role, file.sha256) for file in step.files] == sorted(
        [
            (f"{base}/net.py", "code", hashlib.sha256(NETWORK).hexdigest()),
            (f"{base}/net.pt", "data", hashlib.sha256(files["net_pt"]).hexdigest()),
        ],
        key=lambda row: row[2],
    )
    assert step.code == (f"the network {base}/net.py",)
    assert base not in json.dumps([step.arguments, step.options])
    (folder / "net.py").write_bytes(NETWORK)
    (folder / "net.pt").write_bytes(files["net_pt"])
    others = {name: str(folder / "other") for name in ("XDG_CACHE_HOME", "CHUNKFLOW_CACHE_DIR")}
    assert "is complete" in work("r", **others)
    assert not (folder / "other" / "models").exists()
    assert len(served.asked) == asked
    say(f"--quiet {inference('net.py', 'net.pt')} local.zarr")
    np.testing.assert_allclose(voxels("out.zarr"), voxels("local.zarr"), atol=1e-6)
    assert voxels("out.zarr").std() > 0


@pytest.mark.parametrize("option", ["--convnet-model ", "--convnet-model=", "-m ", "-m"])
def test_a_run_is_the_same_from_an_address_and_from_a_file(folder, option):
    """The hash of a step covers content and name of a file, not the place that it comes from."""
    (folder / "net.py").write_bytes(NETWORK)
    (folder / "net.pt").write_bytes(weights(1))
    say(f"submit --run local {inference('net.py', 'net.pt')} out.zarr")
    with serving(Served({"a/net.py": NETWORK, "b/net.pt": weights(1)})) as web:
        line = inference(f"{web.address}/a/net.py", f"{web.address}/b/net.pt")
        line = line.replace("--convnet-model ", option)
        assert "the run already existed" in say(f"submit --run local {line} out.zarr")
        say(f"submit --run fetched {line} out.zarr")
    steps = [RunDirectory(run).spec.steps[0] for run in ("local", "fetched")]
    assert steps[0].hash == steps[1].hash
    assert [file.origin for file in steps[0].files] == ["", ""]
    assert web.address not in " ".join(steps[1].arguments)


def test_content_that_has_changed_is_another_run():
    """A repeated submission with another network is refused; with the same content it is not."""
    with serving(Served({"net.py": NETWORK, "net.pt": weights(1)})) as web:
        line = (
            f"submit --run r {inference(f'{web.address}/net.py', f'{web.address}/net.pt')} o.zarr"
        )
        say(line)
        first = RunDirectory("r").spec.digest
        assert "the run already existed" in say(line)
        web.files["net.pt"] = weights(2)
        message = refused(line)
        pin = f"{web.address}/net.pt#sha256={hashlib.sha256(weights(1)).hexdigest()}"
        pinned = f"submit --run r {inference(f'{web.address}/net.py', pin)} o.zarr"
        assert "the run already existed" in say(pinned), "from the cache"
    assert "already contains a different run" in message
    for content in (weights(1), weights(2)):
        assert f"chunkflow-file:{hashlib.sha256(content).hexdigest()}/net.pt" in message
    assert RunDirectory("r").spec.digest == first


def test_no_password_is_stored_or_shown(folder):
    """The spec has the address without user name and password."""
    with serving(Served({"net.py": NETWORK, "net.pt": weights(1)})) as web:
        host = web.address.removeprefix("http://")
        base = f"http://me:5ecret@{host}"
        line = inference(f"{base}/net.py", f"{base}/net.pt")
        output = say(f"submit --run r {line} out.zarr")
        output += say("status r --json")
    origins = {file.origin for file in RunDirectory("r").spec.steps[0].files}
    assert origins == {f"{web.address}/net.py", f"{web.address}/net.pt"}
    stored = b"".join(path.read_bytes() for path in (folder / "r").rglob("*") if path.is_file())
    assert b"5ecret" not in stored + output.encode()


@pytest.mark.parametrize("run", ["", "submit --run r "])
def test_what_cannot_be_fetched_ends_before_the_first_task(folder, monkeypatch, run):
    """Nothing is created if a network is missing, and the message is one sentence."""
    with serving(Served({"net.py": NETWORK})) as web:
        line = f"{run}{inference(f'{web.address}/net.py', f'{web.address}/no.pt')} out.zarr"
        assert f"{web.address}/no.pt does not exist; correct the address" in refused(line)
    assert not (folder / "out.zarr").exists()
    assert not Path("r").exists()


def test_a_pipeline_in_python_takes_an_address():
    """`predict` fetches the network like the command line."""
    from chunkflow_py import predict

    image = np.random.default_rng(0).integers(0, 255, (8, 16, 16), np.uint8)
    with serving(Served({"net.py": NETWORK, "net.pt": weights(1)})) as web:
        found = predict(
            image, f"{web.address}/net.py", weights=f"{web.address}/net.pt",
            patch_size=(8, 16, 16), overlap=(0, 0, 0), num_output_channels=2,
        )  # fmt: skip
    network = torch.nn.Conv3d(1, 2, 1)
    state = torch.load(io.BytesIO(weights(1)), weights_only=True)["state_dict"]
    network.load_state_dict({key.removeprefix("model."): value for key, value in state.items()})
    with torch.inference_mode():
        expected = network(torch.from_numpy(image / np.float32(255))[None, None])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
