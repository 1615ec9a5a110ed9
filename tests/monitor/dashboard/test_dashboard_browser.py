"""The page of a dashboard in a real browser: planted states are seen where and as what they are."""

import json
import time

import pytest
from rigs.browser import browser
from rigs.planted import failure, planted_run, record

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.monitor.dashboard.dashboard_server import DashboardServer
from chunkflow_py.monitor.dashboard.run_watch import RunWatch
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.tasks.task_plan import GridPlan

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.browser

COUNT = Zyx(3, 4, 5)
PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), COUNT))
COLOURS = {
    "done": (0, 135, 95), "skipped": (143, 205, 185), "failed": (209, 65, 12),
    "retry": (232, 163, 23), "running": (31, 120, 209), "missing": (205, 211, 216),
}  # fmt: skip
# (z, y, x) -> state, all others missing; (1, 2, 4) fails while the page is looked at.
STATES = {
    (1, 0, 0): "done", (1, 0, 1): "done", (1, 0, 4): "skipped", (1, 1, 0): "failed",
    (1, 3, 2): "retry", (1, 3, 4): "running", (0, 1, 2): "done", (2, 1, 2): "failed",
}  # fmt: skip
LATER = (1, 2, 4)
# What a canvas shows, by the middles of its cells.
READ = """
const canvas = document.getElementById(arguments[0]), [wide, high] = arguments[1];
const context = canvas.getContext("2d");
const rows = [];
for (let v = 0; v < high; v++) {
  rows.push([]);
  for (let h = 0; h < wide; h++) {
    const at = [(h + 0.5) * canvas.width / wide, (v + 0.5) * canvas.height / high].map(Math.floor);
    rows[v].push([...context.getImageData(...at, 1, 1).data].slice(0, 3));
  }
}
return rows;
"""


def number(place):
    """Return the number of the task in a cell."""
    return (place[0] * COUNT.y + place[1]) * COUNT.x + place[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A dashboard of a run with planted states."""
    folder = tmp_path_factory.mktemp("dashboard")
    queue_url = f"sqlite://{folder}/tasks.sqlite"
    home = planted_run(f"{folder}/em.run", {"infer": PLAN}, queue_url)
    ledger = home.ledger("infer")
    for place, state in STATES.items():
        task = number(place)
        if state in ("done", "skipped"):
            ledger.record([record(PLAN, task, state)])
        elif state == "running":
            with_queue = open_queue(queue_url)
            with_queue.send([body_text(PLAN.text(task), home.spec.hash, "infer")])
            assert with_queue.receive(1, 3600)
            with_queue.close()
        else:
            ledger.fail(failure(PLAN, task))
            if state == "failed":
                ledger.record([record(PLAN, task, "dead", "machine-2")])
    made = DashboardServer(RunWatch(home, 0.5))
    made.home = home
    yield made
    made.stop()


def until(judge, wanted, seconds=20):
    """Return what *judge* gives: *wanted* as soon as it is so, else the last."""
    deadline = time.monotonic() + seconds
    while (seen := judge()) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


def words_of(rows):
    """Return the states that colours stand for."""
    by_colour = {colour: name for name, colour in COLOURS.items()}
    return [[by_colour.get(tuple(colour), tuple(colour)) for colour in row] for row in rows]


def plane(fixed, axis, states):
    """Return the states of a slice: rows down, columns across."""
    across, down = {0: (2, 1), 1: (2, 0), 2: (1, 0)}[axis]
    rows = []
    for v in range(COUNT[down]):
        rows.append([])
        for h in range(COUNT[across]):
            place = [fixed] * 3
            place[down], place[across] = v, h
            rows[v].append(states.get(tuple(place), "missing"))
    return rows


NAMES = {"plane-XY": (0, (5, 4)), "plane-XZ": (1, (5, 3)), "plane-YZ": (2, (4, 3))}


def shown(browser, name):
    return words_of(browser.execute_script(READ, name, NAMES[name][1]))


def test_what_is_planted_is_seen(server, browser):
    """Each task in its colour at its place, in three planes, now and when it changes."""
    browser.set_window_size(1300, 1000)
    browser.get(server.url)
    at = {0: 1, 1: 3, 2: 4}  # where something runs
    for name, (axis, _) in NAMES.items():
        wanted = plane(at[axis], axis, STATES)
        assert (
            until(lambda name=name: has(browser, name) and shown(browser, name), wanted) == wanted
        )
    # Other layers, by the slider.
    slide = (
        "const all = document.querySelectorAll('.layer'); all[arguments[0]].value = arguments[1];"
        "all[arguments[0]].dispatchEvent(new Event('input'));"
    )
    browser.execute_script(slide, 0, 2)
    assert shown(browser, "plane-XY") == plane(2, 0, STATES)
    # All layers: a failure is seen through what is done and missing; else colours are mixed.
    browser.execute_script("document.getElementById('whole').click()")
    together = shown(browser, "plane-XY")
    assert together[1][2] == "failed"
    assert together[3][4] == "running"
    assert together[2][2] == "missing"
    mixed = tuple(round((COLOURS["done"][c] + 2 * COLOURS["missing"][c]) / 3) for c in range(3))
    assert all(abs(a - b) <= 1 for a, b in zip(together[0][0], mixed))
    browser.execute_script("document.getElementById('whole').click()")
    browser.execute_script(slide, 0, 1)
    # The legend counts what is planted, and the page follows what happens.
    counts = {name: [*STATES.values()].count(name) for name in COLOURS}
    counts["missing"] = 60 - len(STATES)
    assert legend(browser) == counts
    server.home.ledger("infer").record([record(PLAN, number(LATER))])
    later = plane(1, 0, STATES | {LATER: "done"})
    assert until(lambda: shown(browser, "plane-XY"), later) == later
    counts["done"], counts["missing"] = counts["done"] + 1, counts["missing"] - 1
    assert until(lambda: legend(browser), counts) == counts


def has(browser, name):
    return browser.execute_script("return !!document.getElementById(arguments[0])", name)


def legend(browser):
    said = "return document.getElementById('count-' + arguments[0]).textContent"
    return {name: int(browser.execute_script(said, name)) for name in COLOURS}


def test_a_task_is_told_and_nothing_of_it_runs(server, browser):
    """Hovering tells box, state, worker; clicking shows record and traceback, as text."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.set_window_size(1300, 1000)
    browser.get(server.url)
    until(lambda: has(browser, "plane-XY"), True)
    canvas = browser.find_element("id", "plane-XY")
    until(lambda: canvas.size["width"] > 100, True)
    cell = canvas.size["width"] / COUNT.x
    right, down = round(-2 * cell), round((1.5 - 2) * cell)  # (1, 1, 0), from the middle
    ActionChains(browser).move_to_element_with_offset(canvas, right, down).perform()
    tip = browser.find_element("id", "tip")
    box = PLAN.text(number((1, 1, 0)))
    assert until(lambda: "machine-2" in tip.text, True)
    assert tip.text.startswith(f"{box}\ntask {number((1, 1, 0))}: failed, given up")
    assert "attempts: 1, failed: 1" in tip.text
    ActionChains(browser).click().perform()
    task = browser.find_element("id", "task")
    assert until(lambda: "Traceback" in task.text, True)
    assert "ValueError: <script>document.title = 'run'</script>" in task.text
    assert f"<b>task {number((1, 1, 0))}</b> is broken <script>" in task.text
    browser.execute_script("document.getElementById('task').close()")
    # The errors are put together, and unfold.
    group = browser.find_element("css selector", "#errors details")
    assert group.text.startswith("3 × permanent <b>task #</b> is broken <script>")
    browser.execute_script("arguments[0].open = true", group)
    assert "raise ValueError(" in group.text
    scripts = "return [...document.scripts].map((each) => each.getAttribute('src'))"
    assert browser.execute_script(scripts) == ["common.js", "map.js", "page.js"]
    assert not browser.find_elements("css selector", "#task b, #errors summary b + b")
    assert browser.title != "run"
    # The cost follows the price.
    field = browser.find_element("id", "price")
    assert field.get_attribute("value") == "0.5"
    told = browser.find_element("id", "cost").text
    field.clear()
    field.send_keys("500")
    assert until(lambda: browser.find_element("id", "cost").text != told, True)
    logs = [each for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    assert not logs, json.dumps(logs)


def test_a_hidden_page_asks_for_nothing(server, browser):
    """And goes on when it is seen again."""
    browser.get(server.url)
    until(lambda: has(browser, "plane-XY"), True)
    asked = "return performance.getEntriesByType('resource').filter((e) => e.name.includes('status.json')).length"  # noqa: E501
    hide = (
        "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    browser.execute_script("performance.setResourceTimingBufferSize(1000)")
    browser.execute_script(hide, True)
    assert until(lambda: browser.execute_script("return isAsking"), False) is False
    before = browser.execute_script(asked)
    time.sleep(1)
    browser.execute_script("poll()")
    assert browser.execute_script(asked) == before
    browser.execute_script(hide, False)
    assert until(lambda: browser.execute_script(asked) > before, True)
