"""Every command line of chunkflow 1.x means the same in this version."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
from vocabulary import AWAITED, COMMANDS, NOT_HERE, OPTIONS, PLUGINS, Row
from vocabulary.cases import CASES, NOT_RUN

from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.command_parts import operators_of
from chunkflow_py.core import older_names
from chunkflow_py.core.task import Task
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Source
from chunkflow_py.pipeline.params import ItemName, ItemNames
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.pipeline.plugin_command import find

NAMES = set(catalog.commands())
THERE = [row for row in OPTIONS if row.command not in AWAITED]


def command_of(plugin):
    """Return the name of the command that replaces a plugin."""
    return plugin.rpartition("/")[2]


# --- what there is --------------------------------------------------------------------------------


def test_every_command_and_plugin_exists():
    """Each name of the vocabulary is a command, except planned ones that are missing."""
    named = {*COMMANDS, *map(command_of, PLUGINS)}
    assert len(COMMANDS) == 61
    assert named - NAMES == AWAITED, "a command that exists is not awaited any more"
    assert not NAMES & {*NOT_HERE, *older_names.COMMANDS}


# --- options --------------------------------------------------------------------------------------


def option_of(row: Row) -> click.Option:
    """Return the option of all spellings of *row*."""
    params = [p for p in catalog.load(row.command).params if isinstance(p, click.Option)]
    by_name = {o: p for p in params for o in (*p.opts, *p.secondary_opts)}
    older = older_names.OPTIONS.get(row.command, {})
    assert not {*older} & {*row.spellings} - {*by_name}, f"{row} is no older spelling"
    missing = {*row.spellings} - {*by_name}
    assert not missing, f"{row.command} has no {missing}"
    (option,) = {id(by_name[word]): by_name[word] for word in row.spellings}.values()
    return option


@pytest.mark.parametrize("row", THERE, ids=str)
def test_an_option_is_spelled_and_means_as_ever(row: Row) -> None:
    """The option keeps its names, number of values, choices and default."""
    option = option_of(row)
    assert option.nargs == row.count
    assert row.choices <= {*getattr(option.type, "choices", ())}
    settings = option.to_info_dict()["default"]
    settings = tuple(settings) if isinstance(settings, list) else settings
    is_same = option.required == row.required and settings == row.default
    assert is_same != bool(row.differs), row.differs or f"default {settings}, not {row.default}"
    if isinstance(row.default, bool) and len(row.spellings) > 1:
        assert option.is_flag
        assert row.spellings[0] in option.opts, "the first spelling is the one that switches on"


def value_of(option: click.Option, row: Row | None = None) -> list[str]:
    """Return arguments that are valid for an option of this type."""
    if option.is_flag:
        return []
    if option.name == "file":  # of plugin
        return ["threshold"]
    if isinstance(option.type, click.Choice):
        return [min(row.choices if row and row.choices else option.type.choices)]
    if isinstance(option.type, (ItemName, ItemNames, click.types.StringParamType, click.Path)):
        return ["x"] * option.nargs
    if option.type.name == "box":
        return ["0-1_0-1_0-1"]
    if isinstance(option.type, click.FloatRange):
        return ["0.1"]
    return [str(max(1, getattr(option.type, "min", None) or 1))] * option.nargs


@pytest.mark.parametrize("row", THERE, ids=str)
def test_an_option_parses(row: Row) -> None:
    """Every spelling is accepted, with a value of its type, and reaches the command."""
    option, command = option_of(row), catalog.load(row.command)
    required = [p for p in command.params if p.required and p is not option]
    others = [word for p in required for word in (p.opts[0], *value_of(p))]
    for spelling in row.spellings:
        words = [*others, spelling, *value_of(option, row)]
        ctx = command.make_context(row.command, words)
        assert ctx.get_parameter_source(option.name).name == "COMMANDLINE"


# --- plugins --------------------------------------------------------------------------------------

BUILT = [plugin for plugin in PLUGINS if command_of(plugin) not in AWAITED]


@pytest.mark.parametrize("plugin", BUILT)
def test_a_plugin_is_a_command(plugin: str) -> None:
    """Any spelling of a plugin (dashes, underscores, folder, .py) names the operator."""
    operator = catalog.load(command_of(plugin))
    spellings = {plugin, plugin.replace("-", "_"), f"{plugin.replace('-', '_')}.py"}
    for name in spellings | {command_of(each) for each in spellings}:
        assert find(name).operator is operator
    (stage,) = read_line(["plugin", "-f", plugin, "--args", PLUGINS[plugin] or "{}"])
    assert stage.name == command_of(plugin)


@pytest.mark.parametrize("name", NOT_HERE)
def test_a_plugin_that_is_not_here_names_the_alternative(name: str) -> None:
    """The message names the alternative, for every spelling."""
    for spelling in (name, name.replace("-", "_"), f"{name.replace('-', '_')}.py"):
        with pytest.raises(OptionError, match=older_names.INSTEAD[name].split(":")[0]):
            read_line(["plugin", "-f", spelling])


# --- older spellings ------------------------------------------------------------------------------

OLDER_COMMANDS = {
    "cutout": "load-precomputed", "delete-chunk": "delete-var", "fetch-task": "fetch-task-from-sqs",
    "load-pngs": "load-png", "normalize-contrast-nkem": "normalize-contrast",
    "normalize-section-contrast": "normalize-contrast", "read-h5": "load-h5",
    "read-json": "load-json", "read-npy": "load-npy", "read-nrrd": "load-nrrd",
    "read-pngs": "load-png", "read-precomputed": "load-precomputed", "read-tif": "load-tif",
    "save": "save-precomputed", "skip-task": "skip-task-by-file", "write-h5": "save-h5",
    "write-nrrd": "save-nrrd", "write-pngs": "save-pngs", "write-precomputed": "save-precomputed",
    "write-tif": "save-tif",
}  # fmt: skip
OLDER_OPTIONS = """
    create-chunk --all-zero --pattern=zero
    create-info --output-layer-path --volume-path
    create-info --layer-path --volume-path
    delete-var -c --var-names
    delete-var --chunk-name --var-names
    delete-var --var-name --var-names
    generate-tasks --layer-path --volume-path
    generate-tasks -l --volume-path
    generate-tasks --start --roi-start
    inference --patch-size --input-patch-size
    inference --patch-overlap --output-patch-overlap
    load-json -n --name
    load-png --path-prefix --path
    load-png --volume-offset --voxel-offset
    load-precomputed --start --chunk-start
    load-precomputed --stop --chunk-stop
    load-skeleton --fname --path
    load-skeleton -f --path
    load-synapses -n --name
    load-synapses --path-suffix --suffix
    load-zarr --backend --driver
    mask --input-chunk-name --input-names
    mask --output-chunk-name --output-names
    mask-out-objects --output_chunk_name --output-chunk-name
    mesh --dust-threshold --dust-threshold
    mesh --ids --ids
    neuroglancer -c --inputs
    neuroglancer --chunk-names --inputs
    normalize-contrast -p --levels
    normalize-contrast --levels-path --levels
    save-precomputed --nproc --parallel
    setup-env --output-layer-path --volume-path
    setup-env --layer-path --volume-path
    skip-all-zero --pre --prefix
    skip-all-zero -t --suffix
    skip-task-by-file -e --prefix
    skip-task-by-file --pre --prefix
    skip-task-by-file --post --suffix
    skip-task-by-file -g --adjust-size
"""


def test_older_commands_are_known():
    """Each older command is an alias in one table; cloud-watch is a command."""
    assert older_names.COMMANDS == OLDER_COMMANDS
    assert {*older_names.COMMANDS.values()} <= NAMES | AWAITED
    assert "cloud-watch" in NAMES | AWAITED


@pytest.mark.parametrize("line", OLDER_OPTIONS.strip().splitlines())
def test_older_options_are_read(line: str) -> None:
    """Each older option is accepted as an alias, or is still an option."""
    name, old, spelled = line.split()
    new = spelled.partition("=")[0]
    if name in AWAITED:
        pytest.skip(f"{name} is awaited")
    command = catalog.load(name)
    by_name = {o: p for p in command.params for o in p.opts}
    required = [p for p in command.params if p.required and p is not by_name[new]]
    others = [word for p in required for word in (p.opts[0], *value_of(p))]
    if name == "inference":  # whose patches have to be larger than they overlap
        others = [
            "-f",
            "identity",
            *(["-s", "3", "3", "3"] if "overlap" in old else ["-v", "0", "0", "0"]),
        ]
    if name == "setup-env":
        others = ["--volume-start", "0", "0", "0", "-s", "64", "256", "256", "-z", "8", "32", "32"]
    if name == "generate-tasks":
        others = ["-z", "1", "1", "1", "-c", "1", "1", "1"]
    if name == "mask" and "output" in old:
        others += ["-i", "y"]
    value = [] if "=" in spelled else value_of(by_name[new])
    (stage,) = read_line([name, *others, old, *value])
    (same,) = read_line([name, *others, spelled, *value])
    assert (stage.options, stage.name) == (same.options, same.name)
    if new == "--name":
        assert stage.name == value[0]
    else:
        assert stage.options[by_name[new].name] != by_name[new].get_default(click.Context(command))


# --- what commands do -----------------------------------------------------------------------------


THINGS = """
import numpy as np
from chunkflow_py import Points, Synapses

def execute():
    places = np.array([[1, 2, 3], [9, 9, 9]])
    return Points(places), Synapses(places, places + 1, np.array([0, 1]), (8, 8, 8))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder of small files, and their arrays."""
    folder = tmp_path_factory.mktemp("vocabulary")
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.integers(1, 256, (4, 6, 8), np.uint8),
        "m": rng.random((3, 4, 6, 8), np.float32),
        "l": np.zeros((4, 6, 8), np.uint32),
        "k": np.zeros((4, 6, 8), np.uint8),
    }
    arrays["l"][:2, :3, :4], arrays["l"][3, 5, 6:], arrays["k"][:, :, :4] = 7, 9, 1
    with contextlib.chdir(folder):
        for name, key in (("image", "a"), ("map", "m"), ("labels", "l"), ("mask", "k")):
            np.save(f"{name}.npy", arrays[key])
            outcome(f"load-npy -f {name}.npy -t 2 4 6 -s 40 4 4 save-h5 -f {name}.h5")
        with h5py.File("sub.h5", "w") as file:
            file["deep/array"] = arrays["a"]
        outcome("load-h5 -f image.h5 save-precomputed -v file://em save-zarr -s em.zarr")
        outcome("load-h5 -f image.h5 save-tif -f image.tif save-pngs -o sections/")
        outcome("load-h5 -f mask.h5 save-precomputed -v file://mask")
        outcome("create-chunk -p zero save-h5 -f zeros.h5")
        outcome("generate-tasks -c 4 3 8 -s 2 4 6 -z 4 6 8 -f tasks.npy")
        outcome("load-h5 -f image.h5 save-zarr -s nested.zarr --path deep/em")
        outcome("load-h5 -f image.h5 create-info -v file://levels -b 4 6 8 -m 1 -s 40 4 4")
        outcome("load-h5 -f image.h5 save-precomputed -v file://levels")
        outcome("load-h5 -f image.h5 downsample-upload -v file://levels -p 2")
        Path("em/blackout_section_ids.json").write_text('{"section_ids": [3]}')
        Path("digits").mkdir()
        for z in range(4):
            shutil.copy(f"sections/{z + 2:05}.png", f"digits/em{z:03}.png")
        Path("flags").mkdir()
        for name, text in (("empty.f", ""), ("full.f", "x"), ("other", "")):
            Path("flags", name).write_text(text)
        Path("things.py").write_text(THINGS)
        outcome("plugin -f things -o p,syns save-synapses -i syns -f syns_0-4_0-4_0-4.h5")
        Path("done_2-6_4-7_6-14.txt").touch()
        Path("null.json").write_text("null")
        Path("some.json").write_text('{"a": [1]}')
        Path("twice.py").write_text("def execute(x, times=2):\n    return x.array * times\n")
    return folder, arrays


def outcome(line: str) -> list[Task]:
    """Return the tasks that a pipeline yields."""
    stages = read_line(line.removeprefix("--mip 0 ").split())
    source = stages[0] if isinstance(stages[0], Source) else None
    pipeline = Pipeline(list(operators_of(stages)), source, ahead=0)
    pipeline.check()
    tasks = list(pipeline.run())
    for task in tasks:
        assert not task.failed, f"{line}: {task.outcome}"
    return tasks


@pytest.mark.parametrize(("line", "check"), CASES, ids=[line for line, _ in CASES])
def test_a_command_does_the_documented_thing(line, check, data, tmp_path, monkeypatch):
    """Each command has its documented result on a small input, with short and long options."""
    if awaited := {word.replace("_", "-") for word in line.split()} & AWAITED:
        pytest.skip(f"awaits {', '.join(awaited)}")
    folder, arrays = data
    shutil.copytree(folder, tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    assert check(outcome(line), arrays)


def test_every_option_is_used():
    """Each option occurs in a command line run here or published, or has a reason not to."""
    published = (Path(__file__).parent / "published" / "lines.txt").read_text(encoding="utf-8")
    lines = [line for line in published.replace("\\\n", " ").splitlines() if line[:1] not in "#="]
    used = set()
    for line in [*(line for line, _ in CASES), *filter(None, lines)]:
        command, by_name = "", {}
        for word in shlex.split(line):
            name = older_names.COMMANDS.get(word, word)
            if name in COMMANDS:
                command = name
                by_name = {
                    o: p for p in catalog.load(name).params for o in (*p.opts, *p.secondary_opts)
                }
            spelled = word.partition("=")[0]
            option = by_name.get(older_names.OPTIONS.get(command, {}).get(spelled, spelled))
            used |= {(command, option.name)} if option and word.startswith("-") else set()
    unused = {
        str(row)
        for row in OPTIONS
        if (row.command, option_of(row).name) not in used
        and not {row.command, *row.spellings} & {*NOT_RUN}
    }
    assert not unused
