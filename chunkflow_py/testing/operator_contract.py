"""Contract of operators: tests of their help, their options and their effect on chunks."""

import inspect
import re
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import Operator, OperatorCommand

BOX = BoundingBox.from_size((3, 4, 5), (4, 8, 8))
DOMAIN = BoundingBox.from_size((0, 0, 0), (16, 16, 16))


def arrays():
    """Return a dict from names such as ``image zyx`` to (array, kind of the chunk)."""
    rng = np.random.default_rng(0)
    return {
        "image zyx": (rng.integers(0, 256, (4, 8, 8)).astype(np.uint8), "image"),
        "image czyx": (rng.integers(0, 256, (2, 4, 8, 8)).astype(np.uint8), "image"),
        "probability zyx": (rng.random((4, 8, 8), np.float32), "probability"),
        "affinity czyx": (rng.random((3, 4, 8, 8), np.float32), "affinity"),
        "segmentation zyx": (rng.integers(0, 9, (4, 8, 8)).astype(np.uint32), "segmentation"),
    }


def options_of(command):
    """Return the options of a command, without its positional arguments."""
    return [param for param in command.params if isinstance(param, click.Option)]


class OperatorContract:
    """Tests of a command made by `transform`, `operator` or `source`.

    Attributes:
        command: click command to test.
        takes_unknown_options: whether the command accepts unknown options, as `plugin` does.
    """

    command: OperatorCommand
    takes_unknown_options = False

    @pytest.fixture(name="operator")
    def _operator(self):
        """Provide the command under test to each test."""
        return self.command

    def run(self, operator, *arguments):
        """Run a pipeline of only this operator, and return click's result."""
        group = click.Group("cli", commands=[operator], chain=True, params=list(cli.params))
        return CliRunner().invoke(group, [operator.name, *arguments])

    def test_help_shows_summary_and_example(self, operator):
        """The option --help prints the summary and an example that uses the command."""
        result = self.run(operator, "--help")
        assert result.exit_code == 0
        text = " ".join(result.output.split())
        assert operator.help.partition("\n")[0] in text
        assert f"Usage: cli {operator.name}" in text
        assert "None]" not in text, "the help shows a range or a default that is None"
        assert re.search(rf"Example: chunkflow .*\b{operator.name}\b", text)

    def test_the_summary_is_one_short_sentence(self, operator):
        """The summary is the first line of the module's docstring, with a full stop."""
        module = sys.modules[inspect.unwrap(operator.callback).__module__]
        summary, _, rest = inspect.getdoc(module).partition("\n")
        assert re.fullmatch(r"[A-Z0-9].{,70}\.", summary)
        assert not rest or rest.startswith("\n"), "the line after the summary is not blank"
        assert operator.help.startswith(summary)

    def test_options_say_their_default_and_what_they_do(self, operator):
        """Each option has a help text, which shows the default value if the option has one."""
        for option in options_of(operator):
            assert option.help, f"{option.opts[0]} has no help"
            default = option.to_info_dict()["default"]
            switch = option.is_flag and not option.secondary_opts  # off unless it is given
            if default is not None and not option.required and not switch:
                shown = option.show_default or "[default:" in option.help
                assert shown, f"{option.opts[0]} does not show its default {default}"

    def test_spellings_are_used_once(self, operator):
        """No two options of a command share a spelling."""
        spellings = [o for p in options_of(operator) for o in (*p.opts, *p.secondary_opts)]
        assert len(spellings) == len(set(spellings))

    def test_bad_values_end_with_2(self, operator):
        """Values of a wrong type and unknown options are usage errors, without a traceback."""
        for option in options_of(operator):
            if isinstance(option.type, click.types.StringParamType | click.Path) or option.is_flag:
                continue
            if getattr(option.type, "name", "") == "name":
                continue
            values = [","] * option.nargs  # no number, choice, box or list of names is written so
            result = self.run(operator, option.opts[0], *values)
            assert result.exit_code == 2, f"{option.opts[0]}: {result.output}"
            assert "Traceback" not in result.output
        if not self.takes_unknown_options:
            result = self.run(operator, "--no-such-option")
            assert result.exit_code == 2
            assert "No such option" in result.output

    def test_missing_options_end_with_2(self, operator):
        """A missing required option is a usage error."""
        if any(option.required for option in options_of(operator)):
            result = self.run(operator)
            assert result.exit_code == 2
            assert "Missing option" in result.output


class TransformContract:
    """Tests of a command made by `transform`, with its default options.

    Attributes:
        command: click command to test.
    """

    command: OperatorCommand

    @pytest.fixture(name="operator")
    def _operator(self):
        """Provide the command under test to each test."""
        return self.command

    @pytest.mark.parametrize("key", list(arrays()))
    def test_a_local_transform_needs_no_more_than_it_asks_for(self, operator, key):
        """If `is_local` is true, output in a box depends only on input in `required_input(box)`."""
        made = operator.main([], standalone_mode=False)
        array, kind = arrays()[key]
        whole = Chunk(array, BOX.start, (40, 4, 4), kind, BOX)
        try:
            result = made.call(Task(Region(BOX), {"chunk": whole}))["chunk"]
        except ChunkflowError:  # it does not take such voxels
            return
        if not made.is_local:
            return
        for start, size in (((0, 0, 0), (2, 3, 4)), ((1, 3, 3), (2, 4, 4)), ((3, 7, 7), (1, 1, 1))):
            box = BoundingBox.from_size(BOX.start + start, size)
            part = whole.cut(made.hooks.required_input(box, BOX).intersection(BOX))
            found = made.call(Task(Region(box), {"chunk": part}))["chunk"]
            np.testing.assert_array_equal(found.cut(box).array, result.cut(box).array)

    @pytest.mark.parametrize("key", list(arrays()))
    def test_a_transform_keeps_the_place_and_its_input(self, operator, key):
        """A transform does not change its input chunk, and returns a chunk with the same offset."""
        made = operator.main([], standalone_mode=False)
        assert isinstance(made, Operator)
        array, kind = arrays()[key]
        before = array.copy()
        chunk = Chunk(array, BOX.start, (40, 4, 4), kind, DOMAIN)
        task = Task(Region(BOX), {"chunk": chunk})
        result = error = None
        try:
            result = made.call(task)["chunk"]
        except ChunkflowError as failure:
            error = failure
        assert np.array_equal(array, before)
        assert (chunk.voxel_offset, chunk.voxel_size_nm) == (BOX.start, (40, 4, 4))
        if result is None:
            assert len(str(error)) > 20
            return
        assert result is not chunk
        assert result.voxel_offset == BOX.start
        assert result.voxel_size_nm == (40, 4, 4)
        assert result.size == BOX.size
        assert result.domain == DOMAIN
