"""doctor finds faults that are planted in this machine: packages, folders, limits, devices."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from torch.overrides import TorchFunctionMode

from chunkflow_py.planning.doctor.machine_checks import (
    GpuSystem,
    check_processor,
    check_threads,
    compare_precisions,
    gpu_system,
    judge_convolution,
    judge_gpus,
    judge_half_speed,
)
from chunkflow_py.planning.doctor.package_checks import BRINGS

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")


def fake(folder, name, version):
    """Make a folder look as if this version of a package were installed in it."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (place / "METADATA").write_text(text)


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("numpy", "1.26.4", "pip install --upgrade 'numpy>=2.2'"),
        ("zfpy", "1.0.1.post0", "with this version, numcodecs and zarr cannot be imported"),
        ("neuroglancer", "2.22", "--no-binary atomicwrites"),
        ("h5py", "4.0.dev1", None),  # newer than all that is known is no fault
    ],
)
def test_fault_wrong_version(name, version, said, doctor, tmp_path):
    """A version that is not allowed is a problem that names both versions and the pip line."""
    fake(tmp_path / "fakes", name, version)
    report = doctor("packages,extras", PYTHONPATH=str(tmp_path / "fakes"))
    if said is None:
        assert report.code == 0, report.output
        return
    problem = report.problem()
    assert f"{name} {version}" in problem
    assert said in problem


def test_fault_pair_that_does_not_fit(doctor, tmp_path):
    """Two packages that must have one version are a problem if they have two."""
    fake(tmp_path / "fakes", "distributed", "2026.7.0")
    report = doctor("packages", PYTHONPATH=str(tmp_path / "fakes"))
    assert "distributed 2026.7.0 are installed, but must have the same version" in report.problem()


BARE = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.path[:0] = sys.argv.pop(1).split(":")
from chunkflow_py.cli.main import main
main()
"""


def test_fault_missing_extra(doctor, tmp_path):
    """Without extras each is a note with what goes with it and its pip line; nothing fails.

    What is always needed and missing is a problem; other checks go on.
    """
    site = tmp_path / "site"
    site.mkdir()
    for name in ("click", "packaging", "chunkflow_py"):
        distribution = metadata.distribution(name)
        found = Path(distribution._path)
        if found.suffix == ".egg-info" or not (found / "RECORD").exists():
            found = next(
                Path(metadata.distribution("click")._path).parent.glob(f"{name}-*.dist-info")
            )
        (site / found.name).symlink_to(found)
        if name != "chunkflow_py":
            (site / name).symlink_to(found.parent / name)
    root = Path(__file__).parents[3]
    (site / "chunkflow_py").symlink_to(root / "chunkflow_py")
    program = (sys.executable, "-S", "-c", BARE, str(site))
    notes = doctor("extras", program=program).notes()
    said = {note.split("[")[1].split("]")[0]: note for note in notes}
    assert set(said) == set(BRINGS)
    assert said["image"].endswith("pip install 'chunkflow_py[image]'")
    assert "save-tif" in said["image"]
    report = doctor("packages,processor,gpu", program=program)
    found = [each["text"] for each in report.findings if each["level"] == "problem"]
    assert "torch is not installed" in found
    assert "numpy is not installed" in found
    assert any(each["check"] == "processor" for each in report.findings)


def test_extras_are_those_of_the_project_and_of_the_commands():
    """What an extra brings is told of every extra, and names every command that asks for it."""
    import re
    import tomllib

    from chunkflow_py.cli import catalog
    from chunkflow_py.planning.doctor.package_checks import NOT_EXTRAS

    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert set(BRINGS) == set(project["optional-dependencies"]) - set(NOT_EXTRAS)
    asked = re.compile(r'needs_extra\(\s*"(\w+)",\s*f?"([^"]+)"')
    for path in (root / "chunkflow_py").rglob("*.py"):
        for extra, purpose in asked.findall(path.read_text()):
            words = purpose.split()
            if words[0] in catalog.commands():
                assert words[0] in BRINGS[extra], f"{path}: {purpose} is not told of [{extra}]"
    names = {Requirement(text).name for text in project["dependencies"]}
    assert {"click", "numpy", "packaging", "torch"} <= names


@as_root
def test_fault_full_disk(doctor, tmp_path):
    """A disk without space for temporary files is a problem, even if another would be taken."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        (disk / "full").write_bytes(bytes(64 << 10))
        problem = doctor("disk", TMPDIR=str(disk)).problem()
    finally:
        subprocess.run(["umount", disk], check=True)
    assert f"temporary files {disk} cannot be written to: No space left on device" in problem


def test_a_temporary_folder_that_is_not_there_is_told(doctor, tmp_path):
    """Another one would be taken in silence."""
    problem = doctor("disk", TMPDIR=f"{tmp_path}/nothing").problem()
    assert f"TMPDIR is {tmp_path}/nothing, which is not a folder" in problem


def test_fault_unwritable_folder(doctor, tmp_path):
    """A cache that cannot be written to is a problem that names the folder and the reason."""
    (tmp_path / "file").touch()
    problem = doctor("disk", CHUNKFLOW_CACHE_DIR=str(tmp_path / "file" / "cache")).problem()
    assert f"{tmp_path}/file/cache" in problem
    assert "Not a directory" in problem


@as_root
def test_fault_read_only_store(doctor, tmp_path):
    """A folder on a read-only file system is found when it is tried, and named."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], check=True)
    try:
        problem = doctor("store", "--store", f"{disk}/out").problem()
    finally:
        subprocess.run(["umount", disk], check=True)
    assert f"no permission to write to {disk}" in problem


@as_root
def test_fault_tiny_shared_memory(doctor):
    """Shared memory as small as containers have it is told, with the option that mends it."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    report = doctor("shared-memory", before=("unshare", "-m", "sh", "-c", mount, "sh"))
    (note,) = report.notes()
    assert "67.1 MB" in note
    assert "--shm-size" in note


@pytest.mark.parametrize(("limit", "level"), [(128, "problem"), (512, "note")])
def test_fault_few_open_files(limit, level, doctor):
    """A low limit of open files is told with the command that raises it."""
    report = doctor("open-files", before=("sh", "-c", f'ulimit -Sn {limit}; exec "$@"', "sh"))
    (finding,) = report.findings
    assert (finding["level"], finding["remedy"]) == (level, "ulimit -n 1024")
    assert str(limit) in finding["text"]
    assert report.code == (level == "problem")


def test_fault_one_thread(doctor):
    """OMP_NUM_THREADS=1 on a machine with more cores is told."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    (note,) = doctor("threads", OMP_NUM_THREADS="1").notes()
    assert "OMP_NUM_THREADS=1" in note
    assert "unset OMP_NUM_THREADS" in note
    assert doctor("threads").notes() == []
    assert "'many'" in doctor("threads", OMP_NUM_THREADS="many").problem()


def test_fault_quota_of_a_container(tmp_path, monkeypatch):
    """Fewer cores than threads, by the limit of a control group, are told with what to set."""
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (found,) = check_threads(tmp_path)
    if cores > 1:
        assert (found.level, found.remedy) == ("note", "export OMP_NUM_THREADS=1")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert [each.level for each in check_threads(tmp_path)] == ["ok"]


def test_fault_old_processor(tmp_path):
    """A CPU without AVX2 is told."""
    (tmp_path / "cpuinfo").write_text("model name : Old\nflags : fpu sse4_2 avx\n")
    (found,) = check_processor(tmp_path)
    assert found.level == "note"
    assert "Old has no AVX2" in found.text


@pytest.mark.parametrize(
    ("cuda", "driver", "card", "level", "said"),
    [
        ("13.0", None, False, "note", "networks run on the CPU"),
        (None, None, False, "note", "networks run on the CPU"),
        ("13.0", None, True, "problem", "has no driver"),
        ("13.0", "470.1", True, "problem", "cannot use a GPU with driver 470.1"),
        ("13.0", "580.159.04", True, "problem", "cannot use a GPU with driver 580.159.04"),
        (None, "580.1", True, "problem", "built without CUDA"),
    ],
)
def test_fault_gpu_that_cannot_be_used(cuda, driver, card, level, said, tmp_path):
    """A GPU without driver or CUDA is a problem; no GPU is a note that says what that means."""
    if driver:
        (tmp_path / "driver/nvidia").mkdir(parents=True)
        kernel = "Open Kernel Module for x86_64" if "04" in driver else "x86_64 Kernel Module"
        text = f"NVRM version: NVIDIA UNIX {kernel}  {driver}  Release Build  (root@linux)  Tue\n"
        text += "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
        (tmp_path / "driver/nvidia/version").write_text(text)
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x8086", "0x030000")):
        if card or name == "b":
            folder = tmp_path / "bus/pci/devices" / name
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text(f"{kind}\n")
    there = gpu_system(tmp_path, tmp_path)
    assert (there.driver, there.cards) == (driver, int(card))
    found = judge_gpus(GpuSystem("2.13.0", cuda, there.driver, there.cards, 0))
    assert found.level == level
    assert said in found.text


def test_convolution_is_timed_and_compared(doctor):
    """A convolution is timed, and a device that computes something else is a problem."""
    speed, precisions = doctor("convolution", OMP_NUM_THREADS="1").findings
    assert speed["level"] == precisions["level"] == "ok"
    assert "FLOP/s" in speed["text"]
    assert "3D convolutions in bfloat16 are correct with PyTorch" in precisions["text"]
    for error in (0.5, float("nan")):
        assert judge_convolution("gpu", "cuda:0", 1e12, error).level == "problem"


def test_fault_wrong_convolution_in_one_precision(doctor):
    """A device whose bfloat16 is wrong is a problem with versions and remedy; float32 is right."""
    report = doctor("convolution", OMP_NUM_THREADS="1", CHUNKFLOW_FAILPOINT="convolution:corrupt")
    problem = report.problem()
    assert f"computes wrong values with PyTorch {metadata.version('torch')}" in problem
    assert "(bfloat16, channels last)" in problem
    assert "or use --dtype float32" in problem


class WrongInFloat16(TorchFunctionMode):
    """Computes 3D convolutions in float16 without their last plane, as a faulty library would."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call *func*."""
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.conv3d and result.dtype is torch.float16:
            result[..., -1] = 0
        return result


def test_each_precision_is_compared_by_itself():
    """What is wrong is told of one precision, and the others are named as right."""
    cpu, precisions = torch.device("cpu"), ["float16", "TF32", "bfloat16"]
    (right,) = compare_precisions("gpu", cpu, precisions)
    assert "convolutions in float16, TF32, bfloat16 are correct" in right.text
    with WrongInFloat16():
        wrong, right = compare_precisions("gpu", cpu, precisions)
    assert (wrong.level, right.level) == ("problem", "ok")
    assert "(float16, channels last) has a relative error of" in wrong.text
    assert "convolutions in TF32, bfloat16 are correct" in right.text


def test_slow_half_precision_is_told():
    """A half precision that is slower than float32 by half is a note with the versions."""
    assert judge_half_speed("gpu", "cuda:0", "float16", 0.015, 0.01) is None
    found = judge_half_speed("gpu", "cuda:0", "float16", 0.04, 0.01)
    assert found.level == "note"
    assert "float16 take 4.0 times as long as in float32 with PyTorch" in found.text
    assert "--dtype float32" in found.remedy


def test_a_check_that_does_not_exist_is_refused(doctor):
    """A mistyped name is met with the nearest."""
    report = doctor("dsk")
    assert report.code == 2
    assert "did you mean disk?" in report.output


@pytest.mark.parametrize(
    ("check", "option"), [("store", "--store URL"), ("queue", "--queue URL"), ("clock", "--store")]
)
def test_a_check_of_nothing_is_refused(doctor, check, option):
    """Who looks at stores alone and names none is not told that all is well."""
    report = doctor(check)
    assert report.code == 2
    assert option in report.output
