"""Untrusted text: how it is shown, how it is cut, and that all code uses it."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chunkflow_py
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.plain_text import bounded, is_digits, plain, tail
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.pipeline.terminal import echo
from chunkflow_py.queue.box_file import read_regions
from chunkflow_py.queue.message_body import BodyError, parse_body
from chunkflow_py.store.store_address import public, public_line

BOX = "0-8_0-16_0-16"
anything = st.text(st.characters(exclude_categories=()))  # lone surrogates too
STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200b\u2028\x00\x85\ud800\ufeff\r"


@given(anything)
@example(STEERING)
def test_plain_text_steers_nothing(text):
    """Each character is shown as itself or replaced; safe text is unchanged."""
    found = plain(text)
    assert all(each.isprintable() or each in "\n\t" for each in found)
    assert len(found) == len(text)
    assert plain(found) == found
    found.encode()
    assert all(a == b for a, b in zip(text, found) if a.isprintable() or a in "\n\t")


@given(anything, st.integers(1, 30))
def test_a_line_is_one_line_of_its_length(text, most):
    """The result is safe to show."""
    line = public_line(text, most)
    assert len(line) <= most + 1
    assert line.isprintable()


@given(st.text("ab \n", max_size=20), st.integers(1, 60), st.text("cd /", max_size=10))
def test_no_cut_shows_a_password(before, most, after):
    """A password without its end is not recognised, so the whole address is dropped."""
    text = f"{before} https://me:GEHEIM@host/{after}"
    assert not set("GEHIM") & set(public(bounded(text, most)).replace("host", ""))
    assert not set("GEHIM") & set(public(tail(f"{text}\nlast", most)))


@pytest.mark.parametrize("text", ["٣", "３", "²", "1_0", " 1", "-1", "", "1٣"])
def test_digits_of_other_scripts_are_none(text):
    """Other text that `int` accepts is refused, too."""
    assert not is_digits(text)
    assert is_digits("0123456789")


@pytest.mark.parametrize("zero", ["٠", "０", "०", "𝟘"])
def test_boxes_in_digits_of_other_scripts_are_none(zero, tmp_path):
    """In a text, a message, a file of boxes and the names of sections."""
    digits = str.maketrans("0123456789", "".join(chr(ord(zero) + n) for n in range(10)))
    box = "0-8_0-16_0-16".translate(digits)
    for text in (box, f"t{zero}_0-8_0-16_0-16"):
        with pytest.raises(ValueError, match="box"):
            Region.parse(text)
        with pytest.raises(BodyError, match="is not a task"):
            parse_body(text)
    with pytest.raises(BodyError, match="is not a task"):
        parse_body(f'{{"bbox": "{box}"}}')
    for row in (box, ",".join("080816").translate(digits)):
        (tmp_path / "boxes.csv").write_text(f"bbox\n{row}\n" if "-" in row else f"{row}\n")
        with pytest.raises(OptionError):
            read_regions(tmp_path / "boxes.csv")


@pytest.mark.parametrize(
    "text",
    [f'{{"bbox": "{BOX}", "run": "a", "run": "b"}}', f'{{"bbox": "{BOX}", "stage": NaN}}',
     f'{{"bbox": "{BOX}", "stage": {"1" * 400}}}', '{"bbox": ' * 400, f'{{"bbox": "{BOX}\ud800"}}'],
    ids=range(5),
)  # fmt: skip
def test_messages_with_two_readings_are_none(text):
    """The message can be printed to any stream and sent to any queue."""
    with pytest.raises(BodyError, match="^message ") as caught:
        parse_body(text)
    str(caught.value).encode()
    assert len(str(caught.value)) < 400


def test_no_other_way_to_ask_for_digits():
    """The package uses `is_digits` or [0-9]; Python's own tests accept digits of other scripts."""
    folder = Path(chunkflow_py.__file__).parent
    pattern = re.compile(r"\\d|\.isdecimal\(|\.isdigit\(|\.isnumeric\(")
    found = {
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in folder.rglob("*.py")
        for line in path.read_text().splitlines()
        if pattern.search(line) and path.name != "plain_text.py"
    }
    assert not found


def test_what_is_printed_is_plain(capsys):
    """On both streams, lone surrogates too."""
    echo(STEERING)
    echo(STEERING, err=True)
    out, err = capsys.readouterr()
    assert out == err == f"{plain(STEERING)}\n"


def test_what_an_error_says_is_plain():
    """Names of channels, keys and messages appear in error messages."""
    assert str(VolumeError(f"no channel {STEERING}")) == f"no channel {plain(STEERING)}"
