"""plugin."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.chunk import Chunk
from chunkflow_py.cli.line import read_line
from chunkflow_py.cli.main import cli
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.plugin import Plugin, command
from chunkflow_py.plugin import as_items, literal, parse_arguments, split_options
from chunkflow_py.task import Task

CHUNK = Chunk(np.arange(120, dtype=np.uint8).reshape(4, 5, 6), (10, 20, 30), (40, 4, 4), "image")

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


def test_the_name_of_an_operator_calls_it():
    """A name without a file calls the operator's function on the item called chunk."""
    body = command.main(["-f", "threshold", "--threshold", "60"], standalone_mode=False).body
    result = body(Task(items={"chunk": CHUNK}))
    assert np.array_equal(result["chunk"].array, CHUNK.array > 60)
    line = "create-chunk -s 4 4 4 plugin -f normalize-intensity -o scaled delete-var -v scaled"
    assert run(line).exit_code == 0


def test_an_operators_arguments_are_checked_before_the_line_runs():
    """An argument that the operator does not take is a usage error that names its parameters."""
    result = run("create-chunk plugin -f threshold --treshold 0.5")
    assert result.exit_code == 2
    assert "treshold" in result.output
    assert "threshold: 'float'" in result.output.replace("\n", " ")


def test_agglomerate_as_the_published_line_has_it():
    """`plugin -f agglomerate --threshold 0.7 --aff-threshold-low 0.001` segments in a line."""
    pytest.importorskip("waterz")
    parts = ["plugin -f agglomerate --threshold 0.7 --aff-threshold-low 0.001"]
    body = command.main(parts[0].split()[1:], standalone_mode=False).body
    affinities = np.ones((3, 4, 8, 8), np.float32)
    affinities[:, :, :, 4] = 0
    result = body(Task(items={"chunk": Chunk(affinities, kind="affinity")}))["chunk"]
    assert (result.kind, result.ndim) == ("segmentation", 3)
    result = run(f"create-chunk -s 4 4 4 {parts[0]} delete-var -v chunk")
    assert result.exit_code == 1  # a chunk of one channel holds no affinities
    assert "plugin failed" in result.output


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
        ("def execute(a): pass", "it takes (a)"),
    ],
)
def test_plugins_that_cannot_work_end_with_2(folder, source, words):
    """A file that fails, lacks execute or takes other arguments stops the line at its start."""
    (folder / "bad.py").write_text(source)
    result = run("create-chunk plugin -f bad")
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_missing_plugins_suggest_an_operator():
    """A name that is found nowhere is refused; a mistyped operator is suggested."""
    result = run("create-chunk plugin -f treshold")
    assert result.exit_code == 2
    assert "did you mean threshold?" in result.output
    with pytest.raises(OptionError, match="nor an operator"):
        command.main(["-f", "../../x"], standalone_mode=False)


def test_contradictions_are_refused():
    """An argument given twice is an error, as is a mistyped command after an option."""
    result = run("create-chunk plugin -f threshold --threshold 1 --args threshold=2")
    assert (result.exit_code, "leave one out" in result.output) == (2, True)
    result = run("create-chunk plugin -f threshold --threshold 1 save-h6 -f x.h5")
    assert (result.exit_code, "save-h5" in result.output) == (2, True)


def test_what_a_run_takes_along(tmp_path, monkeypatch):
    """The file of a plugin is code that other machines need; one that is built in is neither."""
    path = tmp_path / "double.py"
    path.write_text("def execute(chunk):\n    return chunk.array * 2\n")
    (body,) = (stage.body for stage in read_line(["plugin", "-f", str(path)]))
    assert body.needed_files == {str(path): "code"}
    assert body.code == (f"the plugin {path}",)
    (built_in,) = (stage.body for stage in read_line(["plugin", "-f", "quantize"]))
    assert (built_in.needed_files, built_in.code) == ({}, ())
    score = ["plugin", "-f", "agglomerate", "--scoring-function", "MinSize<int>"]
    assert read_line(score)[0].body.code == ("the scoring function MinSize<int>, as C++",)
    monkeypatch.setenv("CHUNKFLOW_PLUGIN_DIR", str(tmp_path))
    (found,) = (stage.body for stage in read_line(["plugin", "-f", "double"]))
    with pytest.raises(OptionError, match="plugin double is the file .*/double.py, which a run ta"):
        _ = found.needed_files
