"""log-summary: sums, speeds and plots of the logs that savers leave."""

import io
import json
import logging

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.ops.log_summary import log_summary
from chunkflow_py.ops.viewing import run_log
from chunkflow_py.store import open_store


def logs(url, *contents):
    """Write logs to a store; return its URL."""
    store = open_store(url)
    for number, content in enumerate(contents):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        store.put(f"{number}.json", data)
    return url


def log(device="GPU", box="0-100_0-100_0-200", **timer):
    """Return a log; the box has 2 Mvoxel."""
    return {"timer": timer, "bbox": box, "compute_device": device}


def test_times_are_summed_by_device_and_operator(tmp_path):
    """Tasks, total, mean, extremes and Mvoxel/s, by hand; the sum of operators comes last."""
    url = logs(
        str(tmp_path / "log"),
        log(load=1.0, inference=4.0),
        log(load=3.0, inference=4.0, save=0.5),
        log("CPU", load=10),
    )
    found = log_summary(url)
    assert (found.tasks, set(found.devices)) == (3, {"GPU", "CPU"})
    gpu = found.devices["GPU"]
    assert list(gpu) == ["load", "inference", "save", run_log.TOTAL]
    load = gpu["load"]
    assert (load.tasks, load.total_s, load.mean_s, load.least_s, load.most_s) == (2, 4, 2, 1, 3)
    assert load.mvoxel_s == 2 * 2 / 4
    assert gpu[run_log.TOTAL].mvoxel_s == pytest.approx(4 / 12.5)
    assert log_summary(url, Zyx(100, 100, 100)).devices["CPU"]["load"].mvoxel_s == 0.1
    rows = [line.split("  ") for line in run_log.table(found).splitlines() if "inference" in line]
    assert [word.strip() for word in rows[0] if word] == [
        "inference", "2", "8.0 s", "64.0%", "4.000", "4.000", "4.000", "0.5",
    ]  # fmt: skip


def test_logs_of_others_are_read_and_speeds_left_open_where_unknown(tmp_path):
    """Without a box there is no speed, without a device it is unknown; names may lie in folders."""
    url = logs(str(tmp_path), {"timer": {"a": 1}}, {"timer": {"a": 2}, "bbox": "nonsense"})
    open_store(url).put("deep/x.json", b'{"timer": {"a": 3}, "bbox": "t1_0-1_0-1_0-9"}')
    open_store(url).put("notes.txt", b"no log")
    times = log_summary(url).devices["unknown"]["a"]
    assert (times.tasks, times.voxels, times.known_s) == (3, 9, 3)


BROKEN = [
    b"{", b"\xff\xfe", b"[1]", b"null", b'{"timer": {}}', b'{"timer": {"a": "fast"}}',
    b'{"timer": {"a": -1}}', b'{"timer": {"a": NaN}}', b'{"timer": {"a": true}}', b"",
]  # fmt: skip


def test_malformed_logs_are_named_and_left_out(tmp_path, caplog):
    """Each of them is a warning with its name; only all of them are an error."""
    url = logs(str(tmp_path), *BROKEN)
    with pytest.raises(
        VolumeError, match=rf"none of the {len(BROKEN)} files in .* is a log; for example, 0"
    ):
        log_summary(url)
    open_store(url).put("good.json", json.dumps(log(a=1)).encode())
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = log_summary(url)
    assert found.tasks == 1
    assert sorted(found.malformed) == sorted(f"{n}.json" for n in range(len(BROKEN)))
    assert len(caplog.records) == len(BROKEN)
    assert "7.json" in caplog.text
    with pytest.raises(VolumeNotFoundError, match="--upload-log"):
        log_summary(str(tmp_path / "nothing"))


def test_durations_have_the_unit_that_suits_them():
    """Seconds, minutes from two on, hours from two on."""
    words = [run_log.duration(s) for s in (0, 119.9, 120, 7199, 7200, 36e5)]
    assert words == ["0.0 s", "119.9 s", "2.0 min", "120.0 min", "2.0 h", "1,000.0 h"]


def test_a_plot_has_a_bar_for_each_operator():
    """The picture of the same logs is the same bytes, and longer times have longer bars."""
    found = run_log.RunLog()
    found.add(log(short=1, long=4))
    data = run_log.plot(found)
    assert data == run_log.plot(found)
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    blue = (abs(pixels - (31, 119, 180)) < 3).all(axis=-1).sum(axis=1)
    lengths = sorted(set(blue[blue > 50].tolist()))
    assert len(lengths) >= 2
    assert lengths[-1] / lengths[0] == pytest.approx(4, rel=0.1)


def test_a_line_prints_the_table_of_what_a_saver_left(tmp_path, monkeypatch):
    """Logs of --upload-log are summed; the plot goes to any store, in a dry run nowhere."""
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    save = "create-chunk -s 8 64 64 save-volume -v zarr://em.zarr --upload-log"
    assert run(cli, ["--quiet", *save.split()]).exit_code == 0
    line = "log-summary -l em.zarr/log --plot mem://plots/times.png"
    assert run(cli, ["--quiet", "--dry-run", *line.split()]).exit_code == 0
    assert open_store("mem://plots").get("times.png") is None
    result = run(cli, ["--quiet", *line.split()])
    assert result.exit_code == 0, result.output
    assert "save-volume" in result.stdout
    assert "1 tasks" in result.stdout
    assert open_store("mem://plots").get("times.png")[:4] == b"\x89PNG"
