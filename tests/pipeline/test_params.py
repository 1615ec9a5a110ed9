"""Option types of the command line."""

from __future__ import annotations

import math
from typing import Any

import click
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.pipeline.operator import OperatorCommand, Source
from chunkflow_py.pipeline.params import (
    BBOX,
    FLOATS,
    NUMBER,
    NUMBERS,
    ChannelsType,
    ItemNames,
    LengthType,
    NamesType,
    channels_option,
    floats_option,
    input_option,
    margin_option,
    mip_option,
    output_option,
    zyx_option,
)


def parse(option: Any, *args: str) -> Any:
    """Return what a command with one option is given for *args*, or the text of the error."""
    seen: list[Any] = []

    def callback(**options: Any) -> object:
        seen.extend(options.values())
        return object

    command = OperatorCommand("it", callback=option(callback), make=lambda *_: Source("it", []))
    command.params = [*callback.__click_params__, *command.params]  # type: ignore[attr-defined]
    result = CliRunner().invoke(command, args)
    if result.exit_code == 0:
        return seen[0]
    assert result.exit_code == 2, result.output
    return result.output.partition("Error: ")[2].strip()


box = click.option("--box", type=BBOX)
names = click.option("--names", type=NamesType())
channels = channels_option("-c")
numbers = click.option("--numbers", "-n", type=NUMBERS)
floats = click.option("--floats", "-f", type=FLOATS)
size = zyx_option("--size", "-s", minimum=1)
offset = zyx_option("--offset", "-t", default=(0, 0, 0))
voxel_size = floats_option("--voxel-size", "-v")
margin = margin_option("--margin", "-e")


@pytest.mark.parametrize(
    ("option", "args", "value"),
    [
        (box, ["--box", "-8-8_0-64_0-64"], BoundingBox.parse("-8-8_0-64_0-64")),
        (names, ["--names", "a, b ,c"], ("a", "b", "c")),
        (channels, ["-c", "2, 0"], (2, 0)),
        (numbers, ["-n", "3, 1"], (3, 1)),
        (numbers, ["-n", "12"], (12,)),
        (floats, ["-f", "-3.5, 2,1e3"], (-3.5, 2.0, 1000.0)),
        (floats, ["--floats=7"], (7.0,)),
        (size, ["--size", "1", "2", "3"], Zyx(1, 2, 3)),
        (size, [], None),
        (offset, ["-t", "-8", "-0", "-16"], Zyx(-8, 0, -16)),
        (offset, ["--offset=-8", "-1", "-2"], Zyx(-8, -1, -2)),
        (offset, [], Zyx(0, 0, 0)),
        (voxel_size, ["-v", "40", "4.5", "4.5"], (40.0, 4.5, 4.5)),
        (margin, ["--margin", "2", "0", "3"], Zyx(2, 0, 3)),
        (margin, ["--margin=2", "0", "3"], Zyx(2, 0, 3)),
        (margin, ["--margin", "auto"], "auto"),
        (margin, ["--margin=auto"], "auto"),
        (margin, ["-e", "auto"], "auto"),
        (margin, ["-e", "auto", "auto", "auto"], "auto"),
        (margin, ["-e", "auto", "--name", "x"], "auto"),
        (margin, ["--name", "auto", "-e", "auto"], "auto"),
        (margin, [], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_right_values(option: Any, args: list[str], value: object) -> None:
    """A command is given values of our own types, negative numbers and `auto` included."""
    assert parse(option, *args) == value
    assert type(parse(option, *args)) is type(value)


@pytest.mark.parametrize(
    ("option", "args", "message"),
    [
        (box, ["--box", "0-1"], "'0-1' is not a box; write z0-z1_y0-y1_x0-x1"),
        (box, ["--box", "1-0_0-1_0-1"], "lies before its start"),
        (names, ["--names", "a,,b"], "'a,,b' has an empty name; write a,b,c"),
        (channels, ["-c", "0,x"], "'0,x' is not a list of channels"),
        (numbers, ["-n", "3,0"], "'3,0' is not a list of numbers above 0; write 3,1"),
        (numbers, ["-n", "3,,1"], "'3,,1' is not a list of numbers above 0; write 3,1"),
        (numbers, ["-n", "3,-1"], "'3,-1' is not a list of numbers above 0; write 3,1"),
        (numbers, ["-n", "3,1.5"], "'3,1.5' is not a list of numbers above 0; write 3,1"),
        (floats, ["-f", "1,,2"], "'1,,2' is not a list of numbers; write 131.2,24.9"),
        (floats, ["-f", "1;2"], "'1;2' is not a list of numbers"),
        (floats, ["-f", "1,inf"], "'1,inf' is not a list of numbers"),
        (size, ["-s", "1", "2", "0"], "0 is not in the range x>=1"),
        (size, ["-s", "1", "2"], "requires 3 arguments"),
        (size, ["-s", "1", "2", "3.5"], "'3.5' is not a valid integer"),
        (size, ["-s", "1", "2", "-x"], "'-x' is not a valid integer. Give three, for z, y and x"),
        (voxel_size, ["-v", "1", "1", "0"], "'0' is not a number above 0"),
        (voxel_size, ["-v", "1", "1", "nan"], "'nan' is not a number above 0"),
        (voxel_size, ["-v", "inf", "1", "1"], "'inf' is not a number above 0"),
        (voxel_size, ["-v", "1", "1", "wide"], "'wide' is not a number above 0"),
        (margin, ["-e", "1", "-1", "1"], "'-1' is neither auto nor a number of voxels"),
        (margin, ["-e", "1", "2.5", "1"], "'2.5' is neither auto nor a number of voxels"),
        (margin, ["-e", "1", "auto", "1"], "or the single word auto"),
        (margin, ["-e", "auto", "1", "1"], "or the single word auto"),
        (margin, ["-e", "auto", "auto", "--name", "x"], "'--name' is neither auto nor a number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_values(option: Any, args: list[str], message: str) -> None:
    """A value that cannot work is a usage error that shows it and says what would work."""
    assert message in " ".join(parse(option, *args).split())


def test_types_take_their_own_values() -> None:
    """Defaults and Python callers may pass what the type would return."""
    value = BoundingBox.parse("0-1_0-1_0-1")
    assert BBOX.convert(value, None, None) is value
    assert NamesType().convert(("a",), None, None) == ("a",)
    assert ItemNames("in").convert("a,b", None, None) == ("a", "b")
    assert ChannelsType().convert((0,), None, None) == (0,)
    assert FLOATS.convert((1, 2.5), None, None) == (1.0, 2.5)
    assert parse(margin_option("--margin", default=(1, 2, 3))) == Zyx(1, 2, 3)


@pytest.mark.parametrize(
    ("option", "spellings"),
    [
        (input_option(), ["--input-name", "--input-chunk-name", "-i"]),
        (output_option(), ["--output-name", "--output-chunk-name", "-o"]),
        (input_option("--aff-name", "-a"), ["--aff-name", "-a"]),
        (output_option("--mask-name"), ["--mask-name"]),
    ],
)
def test_names_of_items(option: Any, spellings: list[str]) -> None:
    """Both spellings and the letter name the item; without them it is `chunk`."""
    for spelling in spellings:
        assert parse(option, spelling, "image") == "image"
    assert parse(option) == "chunk"


def line(*args: str) -> list[Any]:
    """Run a chain of three commands that each collect their options."""
    seen: list[Any] = []

    @click.group(chain=True)
    def group() -> None:
        pass

    def add(name: str, *options: Any) -> None:
        def callback(**values: Any) -> object:
            seen.append((name, values))
            return object

        for option in options:
            option(callback)
        command = OperatorCommand(name, callback=callback, make=lambda *_: Source("it", []))
        command.params = [*callback.__click_params__, *command.params]  # type: ignore[attr-defined]
        group.add_command(command)

    flag = click.option("--fill/--no-fill", "-x", default=False)
    add("load", margin_option("--margin", "-e"), flag, click.option("--path", "-p"))
    add("grow", margin_option("--margin", "-e"))
    add("save", click.option("--encoding", "-e", default="raw"))
    result = CliRunner().invoke(group, args)
    assert result.exit_code == 0, result.output
    return seen


def test_two_margins_in_one_line() -> None:
    """Each command's `auto` is its own, in every spelling."""
    for first in (["-e", "auto"], ["--margin=auto"], ["--margin", "auto", "auto", "auto"]):
        load, grow = line("load", *first, "grow", "-e", "auto")
        assert load[1]["margin"] == grow[1]["margin"] == "auto"
    load, grow = line("load", "-e", "auto", "grow", "-e", "1", "2", "3")
    assert (load[1]["margin"], grow[1]["margin"]) == ("auto", Zyx(1, 2, 3))


def test_auto_of_another_option_is_left_alone() -> None:
    """The same letter of a later command, and `auto` as the value of another option, stay."""
    load, save = line(
        "load", "--path", "auto", "-x", "--no-fill", "-e", "auto", "save", "-e", "auto"
    )
    assert load[1] == {"margin": "auto", "fill": False, "path": "auto"}
    assert save[1] == {"encoding": "auto"}


@pytest.mark.parametrize(
    ("args", "mip"),
    [("load", 0), ("--mip 3 load", 3), ("--mip 3 load --mip 1", 1), ("--mip 3 load -m 0", 0)],
)
def test_mip_of_the_line_and_of_a_command(args: str, mip: int) -> None:
    """A command that is not told its resolution level takes that of the whole line."""
    seen = []

    @click.group(chain=True)
    @click.option("--mip", type=int, default=0)
    def group(mip: int) -> None:
        pass

    @group.command()
    @mip_option()
    def load(mip: int) -> None:
        seen.append(mip)

    result = CliRunner().invoke(group, args.split())
    assert result.exit_code == 0, result.output
    assert seen == [mip]


@pytest.mark.parametrize(
    ("size", "meant"),
    [
        ("2 0.5 0.5", "write 2um 0.5um 0.5um"),
        ("0.04 0.004 0.004", "write 0.04um 0.004um 0.004um"),
        ("40 4 2e+07", "check the unit"),
        ("40 4 4", None),
        ("2um 500 0.5mm", None),
    ],
)
def test_sizes_that_voxels_rarely_have_are_warned_of(size, meant, caplog):
    """Micrometres given for nanometres are noticed by every command that takes a voxel size."""
    for command, option in (("load-tif", "--voxel-size"), ("create-chunk", "--voxel-size"),
                            ("save-zarr", "--resolution")):  # fmt: skip
        caplog.clear()
        required = ["--file-name", "a.tif"] if command == "load-tif" else []
        required = ["--store", "a.zarr"] if command == "save-zarr" else required
        catalog.load(command).make_context(command, [*required, option, *size.split()])
        warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(warned) == (meant is not None)
        if meant:
            assert warned[0].startswith(f"{option} {size} is in nanometres")
            assert warned[0].endswith(meant)


@pytest.mark.parametrize(
    ("text", "nanometres"),
    [("40", 40), ("0.5um", 500), ("0.0033um", 3.3), ("0.5 µm", 500), ("1e-3mm", 1000), ("8nm", 8)],
)
def test_lengths_have_units(text, nanometres):
    """Without one, a length is in nanometres."""
    assert LengthType().convert(text, None, None) == nanometres


@pytest.mark.parametrize(
    ("text", "said"),
    [("0.5pm", "unit pm, which is not one of nm, um"), ("um", "not a number above 0"),
     ("-1um", "not a number above 0"), ("nan", "not a number above 0"), ("1infum", "infum")],
)  # fmt: skip
def test_fault_length(text, said):
    """Other units, and what is no number, are refused."""
    with pytest.raises(click.BadParameter, match=said):
        LengthType().convert(text, None, None)


def test_a_whole_number_is_one_value_however_it_is_written():
    """100 and 100.0 make the same spec; 64-bit integers stay exact, and 0.5 and inf stay floats."""
    written = {"100": 100, "100.0": 100, "1e2": 100, str(2**53 + 1): 2**53 + 1, "0.5": 0.5}
    for text, number in written.items():
        found = NUMBER.convert(text, None, None)
        assert (found, type(found)) == (number, type(number))
    assert NUMBER.convert("-inf", None, None) == -math.inf
