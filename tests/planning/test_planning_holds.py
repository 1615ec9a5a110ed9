"""A plan holds: memory and time are within 20 % of what the run then takes, on three pipelines.

On a shared machine a run takes now more and now less time, so plans and runs take turns and their
medians are compared. Memory depends on which tasks overlap in the stages; with two tasks one run
takes a third less than the next, with eight the peak is nearly the same in each run. The short test
accepts any time of the same order.
"""

import json
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
from rigs.command_line import say

EXAMPLE = Path(__file__).parents[2] / "examples" / "fib25"
FIB = (
    "generate-tasks --roi-start 80 0 0 --roi-size 100 96 96 --chunk-size 20 48 48 "
    f"load-h5 -f {EXAMPLE}/raw.h5 --expand-margin-size auto inference --framework pytorch "
    f"--convnet-model {EXAMPLE}/unet_fib25_model.py --convnet-weight-path "
    f"{EXAMPLE}/unet_fib25.pt --output-kind affinity --input-patch-size 32 64 64 "
    "--output-patch-size 20 48 48 --output-patch-overlap 0 0 0 save-zarr --store out.zarr"
)
FILTER = (
    "generate-tasks -v zarr://image.zarr --chunk-size 64 128 128 load-zarr --store image.zarr "
    "--expand-margin-size auto gaussian-filter --sigma 2 --sigma-z 1 save-zarr --store out.zarr"
)
COMPONENTS = (
    "generate-tasks -v zarr://image.zarr --chunk-size 64 256 256 load-zarr --store image.zarr "
    "connected-components --threshold 120 save-zarr --store out.zarr"
)
RUN = """
from pathlib import Path
from chunkflow_py.cli.main import main
from chunkflow_py.planning.pilot import peak_bytes
try:
    main()
finally:
    Path("peak").write_text(str(peak_bytes()))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="memory is measured as Linux tells it"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def image(size):
    """Make an image of noise, in blocks of 64 voxels."""
    say(f"--quiet create-chunk --size {size} --pattern random save-zarr -s image.zarr")


def planned(line):
    """Return the estimated memory of a process in bytes, and seconds."""
    command = [sys.executable, "-m", "chunkflow_py", "--quiet", "plan", "--json"]
    done = subprocess.run(
        [*command, *shlex.split(line)], capture_output=True, text=True, check=True
    )
    (stage,) = json.loads(done.stdout)["stages"]
    return stage["memory"]["bytes"], stage["duration"]["seconds"]


def taken(line):
    """Return peak memory of the process of a run in bytes, and its seconds."""
    start = perf_counter()
    command = [sys.executable, "-c", RUN, "--quiet", *shlex.split(line)]
    subprocess.run(command, capture_output=True, check=True)
    seconds = perf_counter() - start
    shutil.rmtree("out.zarr")
    return int(Path("peak").read_text()), seconds


def ratios(line, times):
    """Return the plan over the run: memory and seconds, medians of turns."""
    plans, runs = [], []
    for _ in range(times):
        plans.append(planned(line))
        runs.append(taken(line))
    return [
        statistics.median(row[k] for row in plans) / statistics.median(row[k] for row in runs)
        for k in range(2)
    ]


@pytest.mark.parametrize("line", [FILTER, COMPONENTS], ids=["filter", "components"])
@pytest.mark.long
def test_a_plan_holds(line):
    """Peak memory is within 20 % of the plan, and the time is of its order."""
    image("512 256 256")
    memory, seconds = ratios(line, 3)
    assert memory == pytest.approx(1, rel=0.2)
    assert 0.2 < seconds < 5


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("line", [FIB, FILTER, COMPONENTS], ids=["fib25", "filter", "components"])
def test_plans_hold_within_20_percent(line):
    """Memory and time of a trained network, a filter and labels are within 20 % of the plan."""
    image("256 512 512")
    for _ in range(3):  # others who work here may spoil a measurement; a wrong plan stays wrong
        memory, seconds = ratios(line, 5)
        print(f"memory {memory:.3f}, time {seconds:.3f} of what was taken")  # noqa: T201
        if seconds == pytest.approx(1, rel=0.2):
            break
    assert memory == pytest.approx(1, rel=0.2)
    assert seconds == pytest.approx(1, rel=0.2)
