"""MONAI bundles give what MONAI itself computes, whatever the tasks.

The results of MONAI in tests/data/monai were made by ``tests/rigs/monai_oracle.py`` with
MONAI 1.6.1 and PyTorch 2.13.0. Tests marked ``models`` make them anew.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from rigs.build import python_of
from rigs.monai_bundles import voxels, write_nifti
from rigs.monai_cases import CASES

from chunkflow_py.cli.main import main
from chunkflow_py.inference.normalization import statistics_of
from chunkflow_py.volume import open_volume

pytest.importorskip("nibabel")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parents[1] / "data" / "monai"
STORED_CASES = sorted(file.stem for file in STORED.glob("*.npz"))


def statistics_file(folder, image, *, of_zeros):
    """Write the statistics of an image, (x, y, z), with or without its zeros."""
    path = folder / "statistics.json"
    counted = image if of_zeros else image[image != 0][None, None]
    path.write_text(json.dumps(statistics_of([counted + 0], [0, 1, 50, 99, 100])))
    return path


def run(folder, model, case, task_size, python=None):
    """Return the result of a case, (c, z, y, x), computed in tasks of a size, zyx."""
    image = voxels(case.size)
    write_nifti(folder / "image.nii", image, case.spacing, case.code)
    size = image.shape[::-1]
    statistics = statistics_file(folder, image, of_zeros=case.of_zeros)
    options = [str(statistics) if each == "STATISTICS" else each for each in case.options]
    store = folder / f"{'-'.join(map(str, task_size))}.zarr"
    command = [
        "generate-tasks", "--roi-start", 0, 0, 0, "--roi-size", *size, "--chunk-size", *task_size,
        "load-volume", "--volume-path", folder / "image.nii", "--expand-margin-size", "auto",
        "inference", "--convnet-model", model, "--device", "cpu", *options,
        "save-zarr", "--store", store, "--chunk-size", *task_size,
    ]  # fmt: skip
    if python is None:
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, command)))
        assert not stop.value.code
    else:
        command = list(map(str, [python, "-m", "chunkflow_py", *command]))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
    volume = open_volume(str(store))
    array = volume.read(volume.bounds).array
    return array if array.ndim == 4 else array[None]


def check(folder, model, case, expected, python=None):
    """Compare one task with MONAI, and eight or more tasks with the one."""
    size = case.size[::-1]
    whole = run(folder, model, case, size, python)
    parts = run(folder, model, case, [-(-n // 2) for n in size], python)
    assert parts.dtype == whole.dtype
    assert parts.tobytes() == whole.tobytes()
    assert whole.shape == expected.shape
    if whole.dtype == np.uint8:
        assert len(np.unique(whole)) > 1
        np.testing.assert_array_equal(whole, expected)
    else:
        assert expected.std() > 1e-2
        np.testing.assert_allclose(whole, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", STORED_CASES)
def test_results_stored_by_monai(tmp_path, name):
    """The stored results of MONAI come out of its bundles with TorchScript, without MONAI."""
    expected = np.load(STORED / f"{name}.npz")["result"]
    check(tmp_path, STORED / f"{name}.zip", CASES[name], expected)


def test_stored_results_are_those_of_cases():
    """At least one case with each kind of result and each kind of normalisation is stored."""
    assert len(STORED_CASES) >= 4
    assert set(STORED_CASES) <= CASES.keys()


@pytest.mark.models
@pytest.mark.parametrize("name", CASES)
def test_results_of_monai(tmp_path, name):
    """MONAI, run on the same bundle and image, gives the same, with either kind of weights."""
    python = python_of("monai")
    if python is None:
        pytest.skip("MONAI is not installed; make test-models installs it")
    script = ROOT / "tests" / "rigs" / "monai_oracle.py"
    subprocess.run([python, "-W", "ignore", script, tmp_path, name, "--weights"], check=True)
    expected = np.load(tmp_path / f"{name}.npz")["result"]
    check(tmp_path, tmp_path / f"{name}.zip", CASES[name], expected)
    # The network itself, made by MONAI from the definition.
    (tmp_path / "weights").mkdir()
    check(tmp_path / "weights", tmp_path / f"{name}-weights.zip", CASES[name], expected, python)
    if name in STORED_CASES:
        stored = np.load(STORED / f"{name}.npz")["result"]
        np.testing.assert_allclose(expected, stored, atol=1e-5, rtol=0)
