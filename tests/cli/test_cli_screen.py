"""The view at the bottom of a terminal: other lines above it, resized terminals, nothing left."""

from __future__ import annotations

import os
import threading

import pytest
from rigs.terminal import Terminal

from chunkflow_py.cli.screen import Row, Screen, above_view, clipped, erase_view, is_terminal

ROWS = [Row("35 %  3 of 8 tasks", "bold"), Row("read     waits", "dim"), Row("write    save-h5")]
LINES = [row.text for row in ROWS]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that knows its size."""
    made = Terminal(40, 10)
    monkeypatch.setattr(
        "shutil.get_terminal_size", lambda **_: os.terminal_size((made.columns, made.lines))
    )
    return made


def test_the_view_stands_below_what_is_printed_and_leaves_nothing(terminal: Terminal) -> None:
    """Lines of whoever prints stay, in their order; at the end nothing else does."""
    terminal.write("before\n")
    with Screen(terminal, lambda: ROWS) as screen:
        assert terminal.text.splitlines() == ["before", "", *(row.text for row in ROWS)]
        with above_view():
            terminal.write("a log line\n")
        assert terminal.text.splitlines()[:3] == ["before", "a log line", ""]
        terminal.write("said by nobody who knows\n")
        screen.draw()
        shown = terminal.text.splitlines()
        assert shown == ["before", "a log line", "said by nobody who knows", "", *shown[-3:]]
        assert shown[-3:] == [row.text for row in ROWS]
    assert terminal.text.splitlines() == ["before", "a log line", "said by nobody who knows"]
    assert (terminal.row, terminal.column) == (3, 0)
    with above_view():
        terminal.write("after\n")
    assert terminal.text.splitlines()[-1] == "after"
    assert terminal.modes["?7"], "lines are folded again"
    assert not terminal.modes["?2026"], "what is drawn is shown"
    assert "?25" not in terminal.modes, "the cursor is not touched"


def test_the_view_stays_whole_at_the_bottom_of_the_screen(terminal: Terminal) -> None:
    """Lines scroll up, and the view stays where it is, once."""
    with Screen(terminal, lambda: ROWS):
        for number in range(30):
            with above_view():
                terminal.write(f"line {number}\n")
        assert terminal.text.splitlines() == [*(f"line {n}" for n in range(30)), "", *LINES]
    assert terminal.text.splitlines() == [f"line {n}" for n in range(30)]


def test_a_terminal_may_be_resized(terminal: Terminal) -> None:
    """Lines are cut at the width of the terminal; wrapped lines are erased."""
    wide = [Row("0123456789" * 5), Row("short")]
    with Screen(terminal, lambda: wide) as screen:
        terminal.write("before\n")
        screen.draw()
        assert terminal.text.splitlines() == ["before", "", ("0123456789" * 4)[:38] + "…", "short"]
        terminal.resize(15)
        screen.draw()
        assert terminal.text.splitlines() == ["before", "", "0123456789012…", "short"]
        terminal.resize(70)
        screen.draw()
        assert terminal.text.splitlines() == ["before", "", "0123456789" * 5, "short"]
    assert terminal.text == "before"


def test_more_lines_than_fit_are_counted(terminal: Terminal) -> None:
    """Of many processes those are shown for which there is room, and the terminal does not jump."""
    with Screen(terminal, lambda: [Row(f"child {n}") for n in range(64)]):
        shown = terminal.text.splitlines()
        assert shown == ["", *(f"child {n}" for n in range(7)), "… and 57 more"]
    assert terminal.text == ""


@pytest.mark.parametrize(("no_color", "styles"), [("", {"1", "2", ""}), ("1", set())])
def test_styles_can_be_refused(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, no_color: str, styles: set[str]
) -> None:
    """NO_COLOR, if it is not empty, leaves bare text (no-color.org)."""
    monkeypatch.setenv("NO_COLOR", no_color)
    with Screen(terminal, lambda: ROWS):
        assert terminal.text.splitlines()[1:] == LINES
    assert terminal.styles == styles


def test_text_that_is_shown_cannot_move_the_cursor() -> None:
    """Names come from users: control characters are left out, and wide ones are counted as two."""
    assert clipped("a\x1b[2Jb\nc", 10) == "a[2Jbc"
    assert clipped("漢字漢字", 8) == "漢字漢字"
    assert clipped("漢字漢字", 7) == "漢字…"
    assert clipped("abc", 2) == "a…"
    assert clipped("abc", 0) == ""


def test_many_threads_may_print(terminal: Terminal) -> None:
    """No line is lost or torn, and none stands below the view."""

    def speak(who: int) -> None:
        for number in range(20):
            with above_view():
                terminal.write(f"{who} {number}\n")

    with Screen(terminal, lambda: ROWS):
        threads = [threading.Thread(target=speak, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    said = terminal.text.splitlines()
    assert sorted(said) == sorted(f"{who} {number}" for who in range(4) for number in range(20))


def test_a_terminal_that_is_gone_does_not_end_the_work() -> None:
    """A view whose stream is closed raises no error."""
    terminal = Terminal()
    with Screen(terminal, lambda: ROWS) as screen:
        terminal.close()
        screen.draw()
        went_on = False
        with above_view():
            went_on = True
    assert went_on


def test_who_leaves_at_once_erases_the_view(
    terminal: Terminal, capfd: pytest.CaptureFixture[str]
) -> None:
    """By one write to the descriptor, and only if there is a view."""
    erase_view()
    assert capfd.readouterr().err == ""
    with Screen(terminal, lambda: ROWS):
        erase_view()
    assert capfd.readouterr().err == "\r\x1b[J"


def test_dumb_terminals_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view needs a terminal that can move its cursor."""
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Terminal())
