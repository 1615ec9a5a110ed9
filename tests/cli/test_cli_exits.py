"""Operators and plugins that end the process, as they think: it fails, and says who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chunkflow_py.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

EXITS = ["SystemExit(0)", "SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()"]


@pytest.mark.parametrize("ahead", ["0", "1"])
@pytest.mark.parametrize("error", EXITS)
def test_an_operator_that_exits_has_failed(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, error: str, ahead: str
) -> None:
    """The pipeline never ends as if it were done, but with 1 and the name of the operator."""
    plugin = tmp_path / "leaves.py"
    plugin.write_text(f"def execute(chunk):\n    raise {error}\n")
    words = ("create-chunk", "--size", "1", "1", "1", "plugin", "-f", str(plugin), "-i", "chunk")
    with pytest.raises(SystemExit) as ended:
        main(["--quiet", "--ahead", ahead, *words])
    assert ended.value.code == 1
    message = capfd.readouterr().err
    assert "plugin failed" in message
    assert error.partition("(")[0] in message
    assert "leaves.py, line 2" in message


@pytest.mark.parametrize("error", EXITS)
def test_a_plugin_that_exits_when_it_is_read_has_failed(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, error: str
) -> None:
    """The process does not end with the code that the plugin has chosen."""
    plugin = tmp_path / "leaves.py"
    plugin.write_text(f"raise {error}\n")
    words = ("create-chunk", "--size", "1", "1", "1", "plugin", "-f", str(plugin), "-i", "chunk")
    with pytest.raises(SystemExit) as ended:
        main(["--quiet", *words])
    assert ended.value.code in (1, 2)
    message = capfd.readouterr().err
    assert error.partition("(")[0] in message
