"""Option types of the command line, with uniform error messages.

This module imports neither numpy nor a volume library, so that a command line is parsed quickly.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkflowError, OptionError

if TYPE_CHECKING:
    from fractions import Fraction

logger = logging.getLogger(__name__)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


_Box = TypeVar("_Box", BoundingBox, Region)
TimePoints = tuple[int, int] | Literal["all"]  # the first and the last time index


class BoxType(click.ParamType[_Box]):
    """Type of an option whose value is a box, such as ``0-64_0-512_0-512``.

    If the type parses a `Region`, the value may begin with a time index:
    ``t1_0-64_0-512_0-512``.
    """

    name = "box"

    def __init__(self, kind: type[_Box]) -> None:
        """Set the class to parse: `BoundingBox` or `Region`."""
        self._kind: type[_Box] = kind

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> _Box:
        """Convert text such as ``0-64_0-512_0-512`` to a box or region."""
        if isinstance(value, self._kind):
            return value
        try:
            return self._kind.parse(value)
        except ChunkflowError as error:
            self.fail(str(error), param, ctx)


class TimePointsType(click.ParamType[TimePoints]):
    """Time points: an index such as 3, a range such as 0-9 (9 is included), or ``all``."""

    name = "time points"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> TimePoints:
        """Return the first and the last time index, or ``all``."""
        if isinstance(value, tuple):
            return int(value[0]), int(value[1])
        if value == "all":
            return "all"
        first, _, last = value.partition("-")
        parts = (first, last or first) if value.count("-") <= 1 else ()
        if not parts or not all(is_digits(part) for part in parts) or value.endswith("-"):
            self.fail(f"{value!r} is neither a number, a range such as 0-9, nor 'all'", param, ctx)
        if int(parts[0]) > int(parts[1]):
            self.fail(f"{value!r} ends before it begins; write {last}-{first}", param, ctx)
        return int(parts[0]), int(parts[1])


class NamesType(click.ParamType[tuple[str, ...]]):
    """Names of items, separated by commas."""

    name = "names"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, ...]:
        """Split at commas, and remove spaces around each name."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in value.split(","))
        if not all(names):
            self.fail(f"{value!r} has an empty name; write a,b,c", param, ctx)
        return names


class ItemName(click.ParamType[str]):
    """Type of an option whose value is the name of an item of the task.

    The type also stores whether the operator reads or makes the item. From the types of an
    operator's options, the pipeline knows before the first task which items the operator uses.
    """

    name = "name"

    def __init__(self, direction: Literal["in", "out"]) -> None:
        self.direction = direction


class ItemNames(NamesType):
    """Type of an option whose value is the names of several items of the task; see `ItemName`."""

    def __init__(self, direction: Literal["in", "out"]) -> None:
        self.direction = direction


class MarginType(click.ParamType[Any]):
    """The margin along one axis, in voxels, or ``auto``, which applies to all three axes."""

    name = "int"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | str:
        """Return ``auto`` or a non-negative number."""
        if value == "auto" or (isinstance(value, int) and value >= 0):
            return value  # type: ignore[no-any-return]
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < 0:
            self.fail(f"{value!r} is neither auto nor a number of voxels", param, ctx)
        return number


UNITS_NM = {"nm": 1.0, "um": 1e3, "µm": 1e3, "μm": 1e3, "mm": 1e6}
_FRACTION = re.compile(r"[0-9]{1,9}(/0*[1-9][0-9]{0,8}|\.[0-9]{1,9})?")
_LENGTH = re.compile(r"(?P<number>.+?)\s*(?P<unit>[A-Za-zµμÅ]*)")
_USUAL_NM = (1.0, 1e7)  # voxels are rarely smaller or larger


class LengthType(click.ParamType[float]):
    """A length: a finite number above 0, in nanometres or with a unit, such as 0.5um."""

    name = "float"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the length in nanometres."""
        match = _LENGTH.fullmatch(str(value))
        try:
            length, unit = (float(value), "") if match is None else (float(match[1]), match[2])
        except ValueError:
            length, unit = 0.0, ""
        if unit and unit not in UNITS_NM:
            units = ", ".join(UNITS_NM)
            self.fail(f"{value!r} has the unit {unit}, which is not one of {units}", param, ctx)
        if not 0 < length < float("inf"):
            self.fail(f"{value!r} is not a number above 0, such as 40 or 0.5um", param, ctx)
        # 0.0033 um are 3.3 nm, not 3.3000000000000003 nm
        return float(f"{length * UNITS_NM[unit]:.12g}") if unit else length


class FractionType(click.ParamType["Fraction"]):
    """An exact positive fraction, such as 3/2, or a decimal number, such as 1.5."""

    name = "fraction"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Fraction:
        """Convert text such as ``3/2`` or ``1.5`` to a fraction."""
        from fractions import Fraction

        if isinstance(value, Fraction):
            return value
        fraction = Fraction(value) if _FRACTION.fullmatch(value) else Fraction(0)
        if not fraction:
            self.fail(f"{value!r} is not a number above 0, such as 2, 1.5 or 3/2", param, ctx)
        return fraction


class NumberType(click.ParamType[float]):
    """A number; an integer of any size stays exact."""

    name = "float"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number; an integer in any notation, such as 1e3, becomes an int."""
        if isinstance(value, int | float):
            return value
        if is_digits(value.removeprefix("-")):
            return int(value)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid float", param, ctx)
        return int(number) if number.is_integer() else number


NUMBER = NumberType()


class NumbersType(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas, in the given order."""

    name = "numbers"
    least, description = 1, "numbers above 0; write 3,1"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        """Split at commas."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(is_digits(part) and int(part) >= self.least for part in parts):
            self.fail(f"{value!r} is not a list of {self.description}", param, ctx)
        return tuple(int(part) for part in parts)


class FloatsType(click.ParamType[tuple[float, ...]]):
    """Finite numbers separated by commas, in the given order."""

    name = "floats"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[float, ...]:
        """Split at commas."""
        parts = value if isinstance(value, tuple) else str(value).split(",")
        try:
            numbers = tuple(float(part) for part in parts)
        except ValueError:
            numbers = (math.nan,)
        if not all(math.isfinite(number) for number in numbers):
            self.fail(f"{value!r} is not a list of numbers; write 131.2,24.9", param, ctx)
        return numbers


class ChannelsType(NumbersType):
    """Indices of channels, separated by commas."""

    name = "channels"
    least, description = 0, "channels; write 0,2"


def three_of(option: str, value: Any) -> str:
    """Return a sentence for an error message that asks for three numbers, with an example.

    Args:
        option: name of the option and a space, for the example; may be empty.
        value: wrong value; its numbers, if there are one or three, are used in the example.
    """
    parts = [part for part in str(value).replace("x", ",").split(",") if is_digits(part)]
    numbers = {1: parts * 3, 3: parts}.get(len(parts), ["16", "64", "64"])
    return f"Give three, for z, y and x, with spaces between them: {option}{' '.join(numbers)}"


class AxisType(click.IntRange):
    """A whole number for one of three axes; the error message asks for three numbers."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Convert the text of a whole number to an int."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid integer. {three_of('', value)}", param, ctx)
        return int(super().convert(value, param, ctx))

    def _describe_range(self) -> str:
        # The default text of click would be ``x<=None``.
        return "" if self.min is None and self.max is None else super()._describe_range()


BBOX = BoxType(BoundingBox)
REGION = BoxType(Region)
TIME_POINTS = TimePointsType()
NAMES = NamesType()
NUMBERS = NumbersType()
FLOATS = FloatsType()


def zyx_option(
    *declarations: str,
    minimum: int | None = None,
    **settings: Any,
) -> Decorator:
    """Declare an option of three whole numbers in zyx order; its value is a Zyx.

    Args:
        declarations: names of the option, such as ``--size`` and ``-s``.
        minimum: smallest allowed number, such as 1 for a size or 0 for a margin. By default, any
            number is allowed.
        settings: further settings of `click.option`.
    """

    def convert(ctx: click.Context, param: click.Parameter, value: Any) -> Zyx | None:  # noqa: ARG001
        return None if value is None else Zyx.of(value)

    settings.setdefault("metavar", "Z Y X")
    kind = AxisType(min=minimum)
    return click.option(*declarations, nargs=3, type=kind, callback=convert, **settings)


def floats_option(
    *declarations: str,
    **settings: Any,
) -> Decorator:
    """Declare an option for a voxel size: three lengths in zyx order, in nm or with a unit."""

    def convert(ctx: click.Context, param: click.Parameter, value: Any) -> Any:  # noqa: ARG001
        low, high = _USUAL_NM
        if value is not None and not low <= min(value) <= max(value) <= high:
            size = " ".join(f"{length:g}" for length in value)
            remedy = "check the unit"
            if min(value) < low:
                remedy = f"for micrometres, write {' '.join(f'{each:g}um' for each in value)}"
            logger.warning(
                "%s %s is in nanometres, and voxels rarely have edges of less than 1 nm or more "
                "than 1 cm; %s", param.opts[0], size, remedy,
            )  # fmt: skip
        return value

    settings.setdefault("metavar", "Z Y X")
    return click.option(*declarations, nargs=3, type=LengthType(), callback=convert, **settings)


class MarginOption(click.Option):
    """An option of three margins, or the single word ``auto``."""


def spread_auto(params: Sequence[click.Parameter], args: list[str]) -> list[str]:
    """Return *args* with each margin ``auto`` written out as ``auto auto auto``.

    Args:
        params: the parameters of one command.
        args: arguments after the name of the command. They contain the options of the command,
            then further commands. The further commands are returned unchanged, because ``-m``, for
            example, may have another meaning in another command.
    """
    options = {name: p for p in params if isinstance(p, click.Option) for name in p.opts}
    result: list[str] = []
    rest = list(args)
    while rest and rest[0].startswith("-"):
        name, _, value = rest[0].partition("=")
        option = options.get(name)
        count = 1 if option is None or option.is_flag or value else 1 + option.nargs
        if isinstance(option, MarginOption):
            given = [value, *rest[1:3]] if value else rest[1:4]
            more = any(each == "auto" or is_digits(each.lstrip("-")) for each in given[1:2])
            alone = given[:1] == ["auto"] and not more
            count = (1 if value else 2) if alone else (3 if value else 4)
            result += [name, *(["auto"] * 3 if alone else given)]
        else:
            result += rest[:count]
        del rest[:count]
    return result + rest


def margin_option(
    *declarations: str,
    **settings: Any,
) -> Decorator:
    """Declare an option of three margins (zyx, voxels); its value is a Zyx or ``"auto"``."""

    def convert(
        ctx: click.Context,
        param: click.Parameter,
        value: Any,
    ) -> Zyx | Literal["auto"] | None:
        if value is None:
            return None
        if "auto" in value:
            if set(value) != {"auto"}:
                msg = "give three numbers of voxels, or the single word auto"
                raise click.BadParameter(msg, ctx, param)
            return "auto"
        return Zyx.of(value)

    settings.setdefault("metavar", "Z Y X|auto")
    return click.option(
        *declarations, cls=MarginOption, nargs=3, type=MarginType(), callback=convert, **settings
    )


def expand_margin_option(*more: str) -> Decorator:
    """Declare ``--expand-margin-size`` of a loader, optionally with further names."""
    return margin_option(
        "--expand-margin-size",
        *more,
        default=(0, 0, 0),
        show_default=True,
        help="Voxels to read around the task's box, zyx; or auto: as many as later operators need.",
    )


def channels_option(*more: str) -> Decorator:
    """Declare ``--channels`` of a loader, optionally with further names."""
    text = "Channels to read, such as 0,2.  [default: all]"
    return click.option("--channels", *more, type=ChannelsType(), help=text)


def mip_option(
    *declarations: str,
    help: str = "Resolution level.  [default: value of --mip before the first operator]",
) -> Decorator:
    """Declare ``--mip/-m``; its default is the global --mip, given before the first command."""

    def convert(ctx: click.Context, param: click.Parameter, value: int | None) -> int:  # noqa: ARG001
        if value is not None or ctx.parent is None:
            return value or 0
        return ctx.parent.params.get("mip") or 0

    names = declarations or ("--mip", "-m")
    return click.option(*names, type=click.IntRange(min=0), callback=convert, help=help)


def input_option(
    *more: str, default: str = "chunk", help: str = "Name of the chunk to read."
) -> Decorator:
    """Declare ``--input-name/-i``, with the older spelling ``--input-chunk-name``."""
    names = more or ("--input-name", "--input-chunk-name", "-i")
    dest = names[0].removeprefix("--").replace("-", "_")
    return click.option(
        *names, dest, type=ItemName("in"), default=default, show_default=True, help=help
    )


def output_option(
    *more: str, default: str = "chunk", help: str = "Name of the chunk to make."
) -> Decorator:
    """Declare ``--output-name/-o``, with the older spelling ``--output-chunk-name``."""
    names = more or ("--output-name", "--output-chunk-name", "-o")
    dest = names[0].removeprefix("--").replace("-", "_")
    return click.option(
        *names, dest, type=ItemName("out"), default=default, show_default=True, help=help
    )


def several_names_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare ``--input-names/-i`` and ``--output-names/-o``; `paired_names` reads them."""
    outputs = click.option(
        "--output-names",
        "-o",
        type=ItemNames("out"),
        help="Names of the chunks to make.  [default: the names of --input-names]",
    )
    inputs = click.option(
        "--input-names",
        "-i",
        type=ItemNames("in"),
        default="chunk",
        show_default=True,
        help="Names of the chunks to read, separated by commas.",
    )
    return inputs(outputs(function))


def paired_names(ctx: click.Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in --input-names and --output-names, one output for each input.

    Raises:
        OptionError: the numbers of inputs and outputs differ.
    """
    inputs = ctx.params["input_names"]
    outputs = ctx.params["output_names"] or inputs
    if len(outputs) != len(inputs):
        msg = (
            f"--output-names has {len(outputs)} names and --input-names has {len(inputs)}; "
            "give one output name for each input name"
        )
        raise OptionError(msg)
    ctx.params["output_names"] = outputs  # so that the pipeline knows the outputs
    return inputs, outputs


def is_dry_run() -> bool:
    """Return whether the pipeline that is being parsed must not save anything."""
    return bool(click.get_current_context().find_root().params.get("dry_run"))


def environment_number(variable: str, option: str) -> int:
    """Return the task number that a batch system has stored in an environment variable.

    Raises:
        OptionError: the variable is not set, or is not a number.
    """
    text = os.environ.get(variable, "")
    if not is_digits(text):
        found = f"is {text!r}" if text else "is not set"
        msg = (
            f"{option} takes the task's number from the environment variable {variable}, which "
            f"{found}"
        )
        raise OptionError(msg)
    return int(text)
