"""What messages say, and what they must not say."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.errors import QueueError
from chunkflow_py.queue.message_body import LONGEST, Body, BodyError, parse_body

BOX = "0-64_0-512_0-512"


def corners(limit):
    """Boxes that are not empty, within *limit* voxels of the origin."""
    number = st.integers(-limit, limit - 1)
    size = st.integers(1, limit)

    def box(start, extent):
        stop = [min(a + b, limit) for a, b in zip(start, extent)]
        return BoundingBox(Zyx(*start), Zyx(*stop))

    return st.builds(box, st.tuples(number, number, number), st.tuples(size, size, size))


NAMES = st.none() | st.from_regex(r"[\w][\w.-]{0,127}", fullmatch=True)
REGIONS = st.builds(Region, corners(1 << 62), st.none() | st.integers(0, 1 << 62))


@given(REGIONS, NAMES, NAMES)
def test_round_trip(region, run, stage):
    """Every task can be said and is understood, wherever it is and whatever it belongs to."""
    body = Body(region, run, stage)
    assert parse_body(str(body)) == body
    assert len(str(body)) < LONGEST


def test_boxes_are_plain():
    """Without a run a message is the box string that users of chunkflow send."""
    body = parse_body(BOX)
    assert body == Body(Region.parse(BOX))
    assert str(body) == BOX
    assert parse_body(f"t3_{BOX}").region.time == 3
    assert parse_body("-8-8_0-64_0-64").region.bbox.start == Zyx(-8, 0, 0)


def test_more_is_json():
    """A message of a run says which, and of what stage; blanks and order do not matter."""
    text = f' {{"stage": "infer", "run" : "3f9a", "bbox":"t1_{BOX}"}} '
    assert parse_body(text) == Body(Region.parse(f"t1_{BOX}"), "3f9a", "infer")
    assert parse_body(f'{{"bbox": "{BOX}"}}') == Body(Region.parse(BOX))


HOSTILE = {
    "nothing": "",
    "blank": " \n",
    "words": "not a box",
    "two axes": "0-64_0-512",
    "four axes": f"{BOX}_0-1",
    "backwards": "64-0_0-512_0-512",
    "empty": "0-0_0-512_0-512",
    "fractions": "0.0-64.0_0-512_0-512",
    "exponents": "0-1e3_0-512_0-512",
    "hexadecimal": "0x0-0x40_0-512_0-512",
    "huge": f"0-{10**30}_0-512_0-512",
    "huge and negative": f"-{10**30}-0_0-512_0-512",
    "huge time": f"t{10**30}_{BOX}",
    "negative time": f"t-1_{BOX}",
    "too many digits": f"0-{'9' * 4080}_0-1_0-1",
    "beyond what Python turns to a number": f"0-{'9' * 5000}_0-1_0-1",
    "long": "0" * (LONGEST + 1),
    "path": "../../etc/passwd",
    "path and box": f"../../{BOX}",
    "box and path": f"{BOX}/../../x",
    "zero byte": f"{BOX}\0",
    "two lines": f"{BOX}\n{BOX}",
    "code": "__import__('os').system('touch hacked')",
    "template": "${BOX} {0.__class__} %s",
    "pickle": pickle.dumps(print, protocol=0).decode(),
    "yaml": "!!python/object/apply:os.system ['touch hacked']",
    "half JSON": '{"bbox": "0-1_0',
    "list": f'["{BOX}"]',
    "text in JSON": f'"{BOX}"',
    "deep": '{"bbox":' * 500,
    "deep list": '{"bbox":' + "[" * 4000,
    "no box": '{"run": "3f9a"}',
    "null": '{"bbox": null}',
    "number": '{"bbox": 5}',
    "NaN": '{"bbox": NaN}',
    "list of numbers": '{"bbox": [0, 0, 0, 1, 1, 1]}',
    "object": '{"bbox": {"__reduce__": "os.system"}}',
    "half of a character": '{"bbox": "\\ud800"}',
    "another key": json.dumps({"bbox": BOX, "exec": "rm -r /"}),
    "key of Python": json.dumps({"bbox": BOX, "__class__": "os.system"}),
    "key twice": f'{{"bbox": "{BOX}", "bbox": "0-1_0-1_0-1"}}',
    **{
        f"{key} {value!r}": json.dumps({"bbox": BOX, key: value})
        for key in ("run", "stage")
        for value in ("../x", "..", ".", "a/b", "", "a b", "x\n", "\0", "x" * 129, 5, ["a"], True)
    },
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_messages(tmp_path, monkeypatch, text):
    """What is no task is refused in one short sentence; nothing is run or written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BodyError) as caught:
        parse_body(text)
    sentence = str(caught.value)
    assert sentence.startswith("message ")
    assert sentence.isprintable()
    assert len(sentence) < 500
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=60) | st.text("0123456789-_t{}\"': bx", max_size=60))
def test_any_text_is_a_task_or_refused(text):
    """No text does anything else, and what is accepted is said again the same way."""
    try:
        body = parse_body(text)
    except BodyError as error:
        assert isinstance(error, QueueError)  # noqa: PT017 another type would fail the test
    else:
        assert parse_body(str(body)) == body


@given(st.dictionaries(st.sampled_from(["bbox", "run", "stage", "x"]), st.none() | st.text()))
def test_any_json_is_a_task_or_refused(said):
    """The same of JSON, whatever the values."""
    try:
        body = parse_body(json.dumps(said))
    except BodyError:
        return
    assert set(said) <= {"bbox", "run", "stage"}
    assert parse_body(str(body)) == body
