"""chunkflow report: the page on a run of eight tasks, of which one fails and one is skipped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from rigs.browser import browser
from rigs.command_line import say

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

__all__ = ["browser"]  # a fixture

# Fails in the last task, with words that would be a script, a password and a signature on a page.
POISON = """
def execute(chunk):
    if tuple(chunk.voxel_offset) == (8, 16, 16):
        raise ValueError("<script>alert(1)</script> & https://me:hunter2@host/x?signature=s3cr3t")
"""
BOX = BoundingBox.from_size((0, 0, 0), (16, 32, 32))
TASK = Zyx(8, 16, 16)
LINE = """
    generate-tasks --roi-size 16 32 32 --chunk-size 8 16 16 load-zarr --store image.zarr
    skip-all-zero plugin --name poison --file poison.py -i chunk
    save-zarr --store out.zarr --chunk-size 8 16 16
"""


class Page(HTMLParser):
    """A page, read strictly: every element is closed, in order.

    Attributes:
        text: all that is seen.
        names: of the elements -> how many.
        loads: values of attributes from which a browser would load something.
    """

    def __init__(self, html):
        super().__init__()
        self.words, self.names, self.loads, self.open = [], Counter(), [], []
        self.feed(html)
        self.close()
        assert self.open == []

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.names[tag] += 1
        self.loads += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run on which two reports were written: before and after its work."""
    path = tmp_path_factory.mktemp("report")
    ramp = np.add.outer(np.add.outer(np.arange(16) * 4, np.arange(32) * 2), np.arange(32) * 3)
    image = ramp.astype(np.uint8)
    image[:8, :16, :16] = 0
    spec = VolumeSpec(BOX, (40.0, 8.0, 8.0), image.dtype, None, "image", TASK)
    create_volume(spec, f"zarr://{path}/image.zarr").write(Chunk(image))
    (path / "poison.py").write_text(POISON)
    with contextlib.chdir(path):
        say(f"submit --run one.run {LINE}")
        say("report one.run -o before.html --verify", 1)
        command = "work one.run --max-failures 1 --worker-name <b>w</b>"
        done = subprocess.run(
            [sys.executable, "-m", "chunkflow_py", *shlex.split(command)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(path / "cache")},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert say("--quiet report one.run -o after.html --price 2") == "after.html\n"
        yield path


@pytest.fixture
def page(folder):
    """The report on the run that has ended."""
    return Page((folder / "after.html").read_text())


def test_the_page_says_what_ran(folder, page):
    """Line, digests, files with their hashes, versions, places: all to repeat the run."""
    spec = RunDirectory(str(folder / "one.run")).spec
    stage = spec.steps[0]
    for said in (
        spec.digest, spec.version, spec.queue, stage.hash, stage.files[0].sha256,
        "skip-all-zero plugin --name poison --file poison.py -i chunk save-zarr --store out.zarr",
        f"{folder}/image.zarr at mip 0", f"{folder}/out.zarr at mip 0",
        "boxes of 8, 16, 16 from 0, 0, 0", "nothing: this run does all steps itself",
    ):  # fmt: skip
        assert said in page.text
    assert "chunkflow-file:" not in page.text


def test_the_page_says_what_went_wrong(page):
    """Failed and skipped tasks are on top and listed, with reasons, attempts and tracebacks."""
    assert "1 of 8 tasks were given up" in page.text
    assert "1 failed tasks 8-16_16-32_16-32" in page.text
    assert "1 failed attempts (1 permanent)" in page.text
    assert "Causes: 1 error." in page.text
    assert "1 x poison failed on task (box): " in page.text
    assert "ValueError: <script>alert(1)</script>" in page.text
    assert page.names["pre"] == 3, "the line, the traceback of the task, and that of its reason"
    assert "1 missing blocks read as the fill value" in page.text
    assert re.search(r"1 skipped tasks tasks reason 1 .*zero", page.text)
    assert "was not compared with the records" in page.text


def test_the_page_counts_time_and_cost(page):
    """Times of every operator, workers, machine hours, and dollars by the price that was given."""
    for operator in ("load-zarr", "skip-all-zero", "poison", "save-zarr"):
        assert re.search(rf"{operator} \d\S* m?s", page.text)
    assert "12,288 in done tasks" in page.text, "six of eight"
    assert (
        re.search(r"Workers: 1 from .* <b>w</b> 7 tasks", page.text)
        or "<b>w</b> 8 tasks" in page.text
    )
    assert "at $2.00 per worker hour" in page.text
    assert re.search(r"dollars per teravoxel \$[\d,.]+", page.text)
    assert re.search(r"wasted 1 failed attempts, \S+ m?s \(\d", page.text), "measured"
    assert "svg" in page.names


def test_prices_come_from_the_table_too(folder):
    """--instance takes the price of a type of machine, --spot that of what may be taken away."""
    table = {
        "date": "2026-01-02", "source": "a test", "queue_request": 0,
        "instances": {"m.one": {"hour": 3.0, "spot": 1.5, "memory_gib": 4}},
        "stores": {"file": {"gb_month": 1e6, "put": 2.0, "get": 1.0, "egress_gb": 1.0}},
    }  # fmt: skip
    (folder / "prices.json").write_text(json.dumps(table))
    line = "report one.run -o priced.html --faces 0 --instance m.one --price-file prices.json"
    say(line)
    text = Page((folder / "priced.html").read_text()).text
    assert "at $3.00 per worker hour" in text
    assert re.search(r"dollars of file \$12.00 to write, \$\S+ per month .* 2026-01-02", text)
    say(f"{line} --spot")
    assert "at $1.50 per worker hour" in (folder / "priced.html").read_text()
    assert "similar ones are m.one" in say(line.replace("m.one", "m.two"), code=2)
    assert "--instance" in say("report one.run --spot", code=2)


def test_the_page_loads_nothing_and_runs_nothing(folder, page):
    """What a ledger holds is text on the page, addresses of images hold the images."""
    assert (
        not {"script", "link", "iframe", "object", "embed", "form", "b", "base"} & page.names.keys()
    )
    assert page.loads
    assert all(value.startswith("data:image/png;base64,") for value in page.loads)
    html = (folder / "after.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; https://host/x" in html
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_the_page_holds_no_secret(folder):
    """Passwords and signatures of addresses, in whatever text, are left out."""
    html = (folder / "after.html").read_text()
    assert "hunter2" not in html
    assert "s3cr3t" not in html


def test_the_page_shows_slices_and_seams(page):
    """Three planes of input and output, and a seam measure an axis: the ramp has no seam."""
    assert len(page.loads) == 6
    assert "Input of step" in page.text
    for axis in "xyz":
        assert re.search(rf" {axis} 1 1 to 1 2 ", page.text)


@pytest.mark.browser
def test_a_browser_shows_the_page_and_loads_nothing(folder, browser):
    """All images are there, nothing was fetched or run, and it fits into a narrow window."""
    browser.get(f"file://{folder}/after.html")
    assert browser.get_log("browser") == [], "complaints, such as of the page's own policy"
    fetched = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert all(name.startswith("data:") for name in browser.execute_script(fetched))
    assert browser.execute_script("return document.scripts.length") == 0
    seen = "return [...document.images].map(e => e.naturalWidth)"
    assert browser.execute_script(seen) == [32, 32, 16] * 2
    wide = "return [document.documentElement.scrollWidth, window.innerWidth]"
    needed, there = browser.execute_script(wide)
    assert needed <= there
    assert "1 of 8 tasks were given up" in browser.find_element("css selector", ".failures").text


def test_the_page_is_the_same_again_but_for_the_date(folder):
    """The same ledger gives the same bytes, the date left out."""
    say("report one.run -o again.html --price 2")
    pages = [(folder / name).read_text() for name in ("after.html", "again.html")]
    one, two = (re.sub(r"Written on [-\d: ]+ UTC", "", each) for each in pages)
    assert one == two
    assert one != pages[0]


def test_a_run_that_is_not_complete_says_so_on_top(folder):
    """A report on a run that nobody has begun is written, and says how much is left."""
    text = Page((folder / "before.html").read_text()).text
    head, _, rest = text.partition("What ran")
    assert "This run is not complete: 8 of 8 tasks have not ended" in head
    assert "No task has ended." in rest
    assert "complete: all" not in head
    assert "not what was recorded" not in head, "nothing was recorded"
    assert "8 findings: 8 not recorded" in rest


def test_verify_is_run_when_asked_for(folder):
    """--verify reads all that was stored: what is damaged is on top, and the exit code is 1."""
    record = next(
        r for r in RunDirectory("one.run").ledger("poison").records() if r.state == "done"
    )
    path = record.written[0].url.removeprefix("file://")
    with open(path, "rb") as file:  # noqa: PTH123
        kept = file.read()
    try:
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(b"damage")
        say("report one.run -o damaged.html --verify --faces 0", code=1)
    finally:
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(kept)
    text = Page((folder / "damaged.html").read_text()).text
    assert "Some stored objects differ from the records; see the section Verified." in text
    assert "2 findings: 1 damaged, 1 failed." in text
    assert record.box in text


def test_a_volume_that_is_gone_is_said_to_be(folder):
    """Where a volume cannot be read there is the reason, and all the rest of the report."""
    os.rename("image.zarr", "moved.zarr")  # noqa: PTH104
    try:
        say("report one.run -o gone.html")
    finally:
        os.rename("moved.zarr", "image.zarr")  # noqa: PTH104
    page = Page((folder / "gone.html").read_text())
    assert "This volume cannot be shown:" in page.text
    assert len(page.loads) == 3


def test_stages_that_were_taken_over_are_told(tmp_path, monkeypatch):
    """A stage of another run is there with its records, its profile, and where it is from."""
    monkeypatch.chdir(tmp_path)
    size = "--roi-size 16 32 32 --chunk-size 8 16 16"
    tasks, save = f"generate-tasks {size}", "save-zarr --chunk-size 8 16 16 --store"
    first = f"--stage one {tasks} create-chunk --size 8 16 16 {save} a.zarr"
    say(f"submit --run old.run {first}")
    old = RunDirectory("old.run")
    hash_ = old.spec.steps[0].hash
    plan = old.plan("one")
    old.ledger("one").record(
        [Record(n, plan.text(n), "done", hash_, f"a{n}", "w1", seconds={"x": 1}) for n in plan]
    )
    old.check_profile("one", {"torch": "2.99"})
    old.close("one")
    second = f"--stage two {tasks} load-zarr --store a.zarr {save} b.zarr"
    say(f"submit --run new.run --fork old.run {first} then {second}")
    say("report new.run --faces 0")
    text = Page((tmp_path / "report.html").read_text()).text
    assert f"taken over step one from file://{tmp_path}/old.run" in text
    assert "torch 2.99" in text
    assert "8 of 16 tasks have not ended (two: 8 of 8)" in text


def test_a_run_that_is_not_there_is_an_error(folder):
    """A wrong address is a usage error that names it, and no file is written."""
    assert "there is no run at" in say("report two.run -o none.html", code=2)
    assert not (folder / "none.html").exists()
