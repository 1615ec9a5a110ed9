"""Make the pictures of docs/dashboard.md: dashboard.png and dashboard-task.png.

Run it in the root of the repository, with another folder for the pictures if they are not to be
replaced; needs chromium and chromedriver. The run is planted: a ledger
as workers leave it in the middle of a run, with the failures that such a run has.
"""

import io
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from PIL import Image  # noqa: E402, TID253
from rigs.browser import headless  # noqa: E402
from rigs.planted import failure, planted_run, record  # noqa: E402

from chunkflow_py.core.geometry import BoxGrid, Zyx  # noqa: E402
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer  # noqa: E402
from chunkflow_py.monitor.dashboard.run_watch import RunWatch  # noqa: E402
from chunkflow_py.queue.message_body import body_text  # noqa: E402
from chunkflow_py.queue.queue_protocol import open_queue  # noqa: E402
from chunkflow_py.tasks.task_plan import GridPlan  # noqa: E402

FIGURES = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "figures"
SIZE = Zyx(256, 1024, 1024)
PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), SIZE, SIZE, Zyx(12, 24, 30)))
DONE = 5200  # tasks
SAID = {
    "permanent": (
        "affinity is nan in 17 of 268435456 voxels; look at the image",
        "ChunkError",
    ),
    "transient": ("s3://bucket/em.zarr cannot be read: 503 Slow Down", "TransientError"),
    "resource": ("no space left on /tmp", "VolumeError"),
}
TRACEBACK = """Traceback (most recent call last):
  File "chunkflow_py/pipeline/pipeline.py", line 241, in _apply
    return operator(task)
  File "chunkflow_py/ops/{operator}.py", line 88, in __call__
    chunk = self.volume.read(box)
chunkflow_py.errors.{name}: {reason}"""


def plant(folder: str) -> DashboardServer:
    """Return a dashboard of a run that twelve workers are in the middle of."""
    draw, now = random.Random(5), time.time()  # noqa: S311 a picture
    home = planted_run(f"{folder}/affinity.run", {"affinity": PLAN, "segment": PLAN},
                       f"sqlite://{folder}/tasks.sqlite")  # fmt: skip
    ledger = home.ledger("affinity")
    lost = {PLAN.number(PLAN.region(n)) for n in (1810, 2533, 2534, 2563, 4807)}
    late = {n for n in range(DONE - 400, DONE) if draw.random() < (n - DONE + 400) / 900}
    records, failures = [], []
    for number in range(DONE):
        worker = f"spot-{1 + number % 12:02d}"
        when = now - 20 - 5.2 * (DONE - number) - (1800 if number < 2900 else 0)
        if number in late:
            continue
        state = "dead" if number in lost else "skipped" if number % 720 < 22 else "done"
        settings = {"finished": when, "seconds": {"load-zarr": 3.1, "inference": draw.gauss(54, 3)}}
        if state == "dead":
            settings["reason"] = SAID["permanent"][0]
        records.append(record(PLAN, number, state, worker, **settings))
        kinds = ["permanent"] * 3 if number in lost else []
        kinds += ["transient"] * (draw.random() < 0.01) + ["resource"] * (draw.random() < 0.002)
        for attempt, kind in enumerate(kinds):
            reason, name = SAID[kind]
            text = TRACEBACK.format(operator="load_zarr", name=name, reason=reason)
            said = {"reason": reason, "traceback": text, "when": when - 60 * attempt - 5}
            failures.append(failure(PLAN, number, attempt, kind, worker, **said))
    for first in range(0, len(records), 500):
        ledger.record(records[first : first + 500])
    for each in failures:
        ledger.fail(each)
    for number in sorted(late)[:3]:
        reason, name = SAID["transient"]
        ledger.fail(failure(PLAN, number, kind="transient", worker="spot-04", reason=reason,
                            traceback="", when=now - 90))  # fmt: skip
    ledger.compact()
    queue = open_queue(home.spec.queue)
    spec = home.spec.step("affinity").hash
    queue.send(body_text(PLAN.text(n), spec, "affinity") for n in sorted(late)[3:])
    queue.receive(len(late) - 40, 3600)
    queue.send(body_text(PLAN.text(n), spec, "affinity") for n in range(DONE, PLAN.span))
    queue.close()
    return DashboardServer(RunWatch(home, 0.42))


def save(png: bytes, name: str) -> None:
    """Write a picture in few colours, so that it is small."""
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE).save(
            FIGURES / name, optimize=True
        )


def main() -> None:
    """Make the pictures."""
    with tempfile.TemporaryDirectory() as folder, headless(1280, 1330) as browser:
        server = plant(folder)
        browser.get(server.url)
        time.sleep(4)
        text = browser.find_element("id", "address").text
        browser.execute_script("document.getElementById('address').textContent = arguments[0]",
                               text.replace(folder, "/data"))  # fmt: skip
        browser.execute_script("document.querySelector('#errors details').open = true")
        save(browser.get_screenshot_as_png(), "dashboard.png")
        browser.set_window_size(1000, 860)
        browser.execute_script("showTask(2533)")
        time.sleep(1)
        save(browser.get_screenshot_as_png(), "dashboard-task.png")
        server.stop()


if __name__ == "__main__":
    main()
