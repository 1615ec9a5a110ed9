"""plugin."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.plugin import Plugin, command
from chunkflow_py.pipeline.plugin import as_items, literal, parse_arguments, split_options

CHUNK = Chunk(np.arange(120, dtype=np.uint8).reshape(4, 5, 6), (10, 20, 30), (40, 4, 4), "image")


def stages(line):
    """Return what the commands of a line return."""
    return read_line(line.split())


# Writes down what it was called with, and returns its first input twice as large.
RECORD = """
from pathlib import Path

def execute(*inputs, **arguments):
    Path("record").write_text(repr((len(inputs), arguments)))
    return inputs[0].array * 2 if inputs else None
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder that holds one plugin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHUNKFLOW_PLUGIN_DIR", raising=False)
    (tmp_path / "record_it.py").write_text(RECORD)
    return tmp_path


def run(line):
    """Run a line of commands."""
    return CliRunner().invoke(cli, line.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size=(3,1,1);mode=reflect", {"size": (3, 1, 1), "mode": "reflect"}),
        ("a=0.5; b = true ;c=None;", {"a": 0.5, "b": True, "c": None}),
        ('{"size": [3, 1, 1], "flag": true}', {"size": [3, 1, 1], "flag": True}),
        ("a=b=c", {"a": "b=c"}),
        ("just a text", {"args": "just a text"}),
        ("a=1;and a text", {"args": "a=1;and a text"}),
        ("{broken", {"args": "{broken"}),
        ("", {"args": ""}),
    ],
)
def test_arguments_have_three_forms(text, expected):
    """Pairs, JSON, and any other text."""
    assert parse_arguments(text) == expected


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_any_text_is_an_argument(text):
    """No text fails."""
    assert isinstance(parse_arguments(text), dict)


def test_arguments_are_not_evaluated():
    """What is no literal stays a text."""
    assert literal("{[]: 1}") == "{[]: 1}"
    assert literal("__import__('os').getcwd()") == "__import__('os').getcwd()"


@pytest.mark.parametrize(
    ("line", "known", "extra"),
    [
        ("-f a --threshold 0.7 save-h5 -f x", "-f a save-h5 -f x", {"threshold": 0.7}),
        ("--low -1 --high=2 -f a", "-f a", {"low": -1, "high": 2}),
        ("--size 3 1 1 save-h5", "save-h5", {"size": (3, 1, 1)}),
        ("--flag save-h5 --flag", "save-h5 --flag", {"flag": True}),
        ("--flag --mode reflect -fa", "-fa", {"flag": True, "mode": "reflect"}),
        ("--mode=save-h5 save-h5", "save-h5", {"mode": "save-h5"}),
        ("--threshold 0.7 save-h6 -f x", "save-h6 -f x", {"threshold": 0.7}),
        ("-f a save-h5 --size 3", "-f a save-h5 --size 3", {}),
        ("--file=a --mode x y", "--file=a y", {"mode": "x"}),
    ],
)
def test_unknown_options_stop_at_the_next_command(line, known, extra):
    """An unknown option's values end at an option, a command, or a word that is no number."""
    words, found = split_options(command.params, line.split(), ["save-h5"])
    assert (words, found) == (known.split(), extra)


def test_options_and_args_reach_execute_in_a_line(folder):
    """What plugin does not know goes to execute; the commands after it still run."""
    line = (
        "create-chunk -s 2 2 2 plugin -f record_it -i chunk,None -o twice --some-number 0.5 "
        "--args size=(3,1,1);mode=reflect threshold -i twice -o mask delete-var -v mask,twice"
    )
    result = run(line)
    assert result.exit_code == 0, result.output
    arguments = {"size": (3, 1, 1), "mode": "reflect", "some_number": 0.5}
    assert (folder / "record").read_text() == repr((2, arguments))


def test_an_error_names_the_file_and_the_line(folder):
    """The last line of the plugin that was at work, be it in execute or in an operator's body."""
    (folder / "wrong.py").write_text(
        "def helper(chunk):\n    return int('seven')\ndef execute(chunk):\n    helper(chunk)\n"
    )
    assert "'seven' (wrong.py, line 2)" in run("create-chunk plugin -f wrong.py -i chunk").output
    (folder / "command.py").write_text(
        "from chunkflow_py.pipeline.operator import transform\n"
        "@transform\ndef command():\n    return lambda chunk: chunk.slab\n"
    )
    assert "'slab' (command.py, line 4)" in run("create-chunk plugin -f command.py").output


def test_a_plugin_without_inputs_and_outputs(folder):
    """Without names it is called with nothing and may return nothing."""
    assert run("plugin --file record_it.py --args text").exit_code == 0
    assert (folder / "record").read_text() == "(0, {'args': 'text'})"


def test_where_plugins_are_found(folder, monkeypatch):
    """The working folder comes before $CHUNKFLOW_PLUGIN_DIR; paths and hyphens work."""
    (folder / "more" / "sub").mkdir(parents=True)
    source = "def execute():\n    raise ValueError('called %s')\n"
    (folder / "more" / "record_it.py").write_text(source % "the wrong one")
    (folder / "more" / "sub" / "two_words.py").write_text(source % "two words")
    monkeypatch.setenv("CHUNKFLOW_PLUGIN_DIR", f"{folder}/nowhere:{folder}/more")
    assert run("plugin -f record_it").exit_code == 0
    for name in ("sub/two-words", "sub/two_words.py", f"{folder}/more/sub/two_words.py"):
        result = run(f"plugin -f {name}")
        assert result.exit_code == 1
        assert "called two words" in result.output


def test_the_name_of_an_operator_is_the_operator():
    """A shipped plugin is the command: its options, names in either way, lane and label."""
    (stage,) = read_line(
        ["plugin", "-f", "threshold", "--threshold", "60", "-i", "image", "-o", "mask"]
    )
    result = stage.call(Task(items={"image": CHUNK}))
    assert np.array_equal(result["mask"].array, CHUNK.array > 60)
    (same,) = stages("threshold --threshold 60 -i image -o mask")
    assert stage.options == same.options | {"file": "threshold"}
    assert (stage.name, stage.stage, stage.inputs, stage.outputs) == (
        *(same.name, same.stage, same.inputs, same.outputs),
    )
    (written,) = read_line(["plugin", "-f", "normalize_contrast.py", "--name", "n", "-a"] + [
        "lower_clip_fraction=0.1;per_section=false;minval=None"
    ])  # fmt: skip
    assert (written.name, written.options["lower_clip_fraction"]) == ("n", 0.1)
    assert (written.options["per_section"], written.options["minval"]) == (False, 1)
    (several,) = read_line(
        ["plugin", "-f", "multiply", "-i", "a,b", "-o", "c,d", "--multiplier-name", "m"]
    )
    assert (set(several.inputs), several.outputs) == ({"a", "b", "m"}, ("c", "d"))
    (loader,) = read_line(
        [
            "plugin",
            "-f",
            "load-h5",
            "-o",
            "image",
            "--file-name",
            "a.h5",
            "--cutout-start",
            "0",
            "-4",
            "0",
        ]
    )
    assert (loader.stage, loader.outputs) == ("read", ("image",))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--treshold 0.5", "No such option '--treshold'. Did you mean '--threshold'?"),
        ("--threshold high", "'high' is not a valid float"),
        ("--args treshold=1", "plugin threshold has no argument 'treshold'"),
        (
            "--args 0.5",
            "--args 0.5 of plugin threshold gives no name; write NAME=VALUE, where NAME is one of",
        ),
        ("--threshold 1 --args threshold=2", "leave one out"),
        ("-t 1 --args threshold=2", "leave one out"),
    ],
)
def test_an_operators_arguments_are_checked_as_its_options(line, said):
    """What the operator does not take is a usage error, in the words of its own."""
    result = run(f"create-chunk plugin -f threshold {line}")
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_agglomerate_as_the_published_line_has_it():
    """`plugin -f agglomerate --threshold 0.7 --aff-threshold-low 0.001` segments in a line."""
    pytest.importorskip("waterz")
    line = "plugin -f agglomerate --threshold 0.7 --aff-threshold-low 0.001 -i affs -o seg"
    (stage,) = read_line(line.split())
    affinities = np.ones((3, 4, 8, 8), np.float32)
    affinities[:, :, :, 4] = 0
    result = stage.call(Task(items={"affs": Chunk(affinities, kind="affinity")}))["seg"]
    assert (result.kind, result.ndim) == ("segmentation", 3)


TYPED = '''"""A file."""
from __future__ import annotations
from typing import Literal, Optional
import not_installed_anywhere

def execute(image, mask: Chunk | None = None, size: tuple[int, int, int] = (3, 1, 1),
            mode: Literal["reflect", "nearest"] = "reflect", ids: list[int] = (), *,
            sigma: Optional[float] = None, keep: bool = False, other=2, start: Zyx = None):
    """Blur an image.

    In two dimensions.
    """
'''


def test_help_of_a_plugin_shows_its_arguments(folder):
    """Docstring, inputs, and typed arguments with defaults; the file is not run for it."""
    (folder / "typed.py").write_text(TYPED)
    result = run("create-chunk plugin -f typed --help")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for part in (
        "plugin --file typed [OPTIONS] Blur an image. In two dimensions.",
        "The chunks of --input-names are passed, in this order, as: image, mask.",
        "--size INTEGER... [default: (3, 1, 1)]",
        "--mode [reflect|nearest] [default: 'reflect']",
        "--ids INT,INT,… [default: ()]",
        "--sigma FLOAT [default: None]",
        "--keep / --no-keep [default: False]",
        "--other VALUE [default: 2]",
        "--start Z Y X",
        "-i, --input-names NAMES",
    ):
        assert part in text
    assert "Turn a map into a mask" in run("plugin -f threshold --help").output
    assert run("plugin --help -f typed").output == run("plugin -f typed --help").output


def test_arguments_have_the_types_of_their_annotations(folder):
    """A word becomes what the annotation says; a wrong one, or an unknown one, ends with 2."""
    (folder / "typed.py").write_text(TYPED.replace("import not_installed_anywhere", ""))
    line = "--size 1 2 3 --ids 4,5 --sigma 2 --no-keep --other [1] --start -1 0 5 threshold"
    plugin = read_line(["create-chunk", "plugin", "-f", "typed", *line.split()])[1].body
    assert plugin.keywords == {
        "size": (1, 2, 3), "ids": [4, 5], "sigma": 2.0, "keep": False, "other": [1],
        "start": Zyx(-1, 0, 5),
    }  # fmt: skip
    assert isinstance(plugin.keywords["start"], Zyx)
    for words, said in (
        ("--size 1 2 x", "'x' is not a valid integer"),
        ("--mode mirror", "'mirror' is not one of 'reflect', 'nearest'"),
        ("--ids 1,a", "'1,a' is not a list such as int,int"),
        ("--szie 1 2 3", "No such option '--szie'"),
    ):
        result = run(f"create-chunk plugin -f typed {words}")
        assert (result.exit_code, said in " ".join(result.output.split())) == (2, True), (
            result.output
        )


def test_arguments_of_a_plugin_are_part_of_what_a_run_covers(folder):
    """Two lines that differ in an argument have different options."""
    (folder / "typed.py").write_text(TYPED.replace("import not_installed_anywhere", ""))
    options = [read_line(["plugin", "-f", "typed", "--sigma", s])[0].options for s in ("1", "2")]
    assert options[0] != options[1]


OPERATOR = '''"""Add a number.

Example: chunkflow create-chunk plugin -f add_it.py --number 3
"""
from functools import partial
import click
from chunkflow_py.pipeline.operator import transform

def add_it(chunk, number=1):
    return chunk.with_array(chunk.array + number)

@transform
@click.option("--number", type=int, default=1, show_default=True, help="To add.")
def command(number):
    return partial(add_it, number=number)
'''


def test_a_file_with_an_operator_is_the_operator(folder):
    """A path to it is enough: its options, its help, its names; a run takes the file along."""
    (folder / "add_it.py").write_text(OPERATOR)
    (stage,) = stages("plugin -f ./add_it.py --number 3 -o more")
    assert (stage.name, stage.outputs, stage.options["number"]) == ("add-it", ("more",), 3)
    assert (stage.files, stage.code) == ({"./add_it.py": "code"}, ("the plugin ./add_it.py",))
    result = stage.call(Task(items={"chunk": CHUNK}))["more"]
    assert np.array_equal(result.array, CHUNK.array + 3)
    text = run("plugin -f add_it.py --help").output
    assert "Add a number." in text
    assert "--number INTEGER" in text
    (folder / "add_it.py").write_text(OPERATOR.replace("@transform", "@str"))
    result = run("plugin -f add_it.py")
    assert (result.exit_code, "the function command in " in result.output) == (2, True)


def test_what_every_task_has_may_be_an_input(folder):
    """Bbox is the task's box and log the seconds so far; None may come back."""
    (folder / "look.py").write_text(
        "def execute(bbox, log):\n    assert str(bbox) == '0-1_0-2_0-3'\n"
        "    assert 'create-bbox' not in log['timer'] and log['bbox'] == str(bbox)\n"
    )
    result = run("create-bbox -s 0 0 0 -z 1 2 3 plugin -f look -i bbox,log -o nothing")
    assert result.exit_code == 0, result.output
    assert as_items("p", None, ["a"], None) == {"a": None}


def test_arrays_become_chunks_at_the_inputs_place():
    """An array of the same extent, or symmetrically smaller, lies at the input's offset."""
    items = as_items("p", [CHUNK.array * 2, CHUNK.array[1:3, :, 1:5].astype(float)], "ab", CHUNK)
    assert (items["a"].bbox, items["a"].kind) == (CHUNK.bbox, "image")
    assert str(items["b"].bbox) == "11-13_20-25_31-35"
    assert (items["b"].kind, items["b"].voxel_size_nm) == (None, (40, 4, 4))
    points = np.zeros((7, 3))
    assert as_items("p", points, ["a"], CHUNK)["a"] is points


@pytest.mark.parametrize("shape", [(3, 5, 6), (6, 5, 6)])
def test_other_extents_are_refused(shape):
    """A crop that is not symmetric, or a larger array, is refused with both extents."""
    with pytest.raises(ChunkError, match=r"extent \(4, 5, 6\)"):
        as_items("p", np.zeros(shape), ["a"], CHUNK)


@pytest.mark.parametrize(("result", "count"), [(None, 0), ([1, 2, 3], 3)])
def test_as_many_results_as_names(result, count):
    """Missing and surplus results are refused with both numbers."""
    with pytest.raises(ChunkError, match=f"returned {count} items, but --output-names has 2"):
        as_items("p", result, ("a", "b"), None)


def test_plugins_from_python(folder):
    """The body works without a command line."""
    task = Plugin("mine", folder / "record_it.py", ("chunk",), ("out",))(
        Task(items={"chunk": CHUNK})
    )
    assert np.array_equal(task["out"].array, CHUNK.array * 2)
    assert CHUNK.array[0, 0, 1] == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def run(): pass", "has no function execute"),
        ("def execute(a): pass", "its function has the signature (a)"),
        ("from chunkflow.chunk import validate", "docs/from-chunkflow.md"),
        ("from chunkflow.volume import PrecomputedVolume", "docs/from-chunkflow.md"),
    ],
)
def test_plugins_that_cannot_work_end_with_2(folder, source, words):
    """A file that fails, lacks execute or takes other arguments stops the line at its start."""
    (folder / "bad.py").write_text(source)
    result = run("create-chunk plugin -f bad")
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_plugins_take_their_items_in_the_order_that_they_had():
    """Where a command's own names come in another order, those of the plugin count."""
    for line, inputs in (
        ("synapse/adjust_pre -i s,img -o s -a img_threshold=50;radius=2", ("img", "s")),
        ("synapse/find_tbar_object -i s,seg", ("seg", "s")),
        ("find-tbar-object -i s", ("chunk", "s")),
        ("synapse/detect_duplicate_post -i bbox,s,seg -a 5", ("seg", "s")),
        ("synapse/detect_post_synapses -i img,s,bbox -o s", ("img", "s")),
        ("gaussian_filter -i img -o img -a sigma=2;inplace=False", ("img",)),
    ):
        (stage,) = read_line(["plugin", "-f", *line.split()])
        assert sorted(stage.inputs) == sorted(inputs), line
        assert stage.options["input_name"] == inputs[0], line
        assert "-a 5" not in line or stage.options["max_post_num"] == 5


def test_missing_plugins_suggest_an_operator():
    """A name that is found nowhere is refused; a mistyped operator is suggested."""
    result = run("create-chunk plugin -f treshold")
    assert result.exit_code == 2
    assert "did you mean threshold?" in result.output
    with pytest.raises(OptionError, match="nor an operator"):
        command.main(["-f", "../../x"], standalone_mode=False)


def test_contradictions_are_refused():
    """An argument given twice is an error, as is a mistyped command after an option."""
    result = run("create-chunk plugin -f record_it --a 1 --args a=2")
    assert (result.exit_code, "both in --args and as an option" in result.output) == (2, True)
    result = run("create-chunk plugin -f threshold --threshold 1 save-h6 -f x.h5")
    assert (result.exit_code, "save-h5" in result.output) == (2, True)


def test_what_a_run_takes_along(tmp_path, monkeypatch):
    """The file of a plugin is code that other machines need; one that is built in is neither."""
    path = tmp_path / "double.py"
    path.write_text("def execute(chunk):\n    return chunk.array * 2\n")
    (body,) = (stage.body for stage in read_line(["plugin", "-f", str(path)]))
    assert body.needed_files == {str(path): "code"}
    assert body.code == (f"the plugin {path}",)
    (built_in,) = stages("plugin -f quantize")
    assert (built_in.files, built_in.code) == ({}, ())
    score = ["plugin", "-f", "agglomerate", "--scoring-function", "MinSize<int>"]
    assert read_line(score)[0].body.code == ("the scoring function MinSize<int>, as C++",)
    monkeypatch.setenv("CHUNKFLOW_PLUGIN_DIR", str(tmp_path))
    (found,) = (stage.body for stage in stages("plugin -f double"))
    with pytest.raises(OptionError, match=r"plugin double is given by its name, .* path .*/double"):
        _ = found.needed_files
