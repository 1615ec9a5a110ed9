"""Mistakes that everybody makes on the command line are answered with the words that work."""

import pytest
from rigs.command_line import say


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("load-zarr nuclei.zarr preview", "Write --store nuclei.zarr"),
        ("load-h5 raw.h5 threshold", "Write --file-name raw.h5"),
        ("inference --input-patch-size 16,64,64", "--input-patch-size 16 64 64"),
        ("inference --input-patch-size=16,64,64", "--input-patch-size 16 64 64"),
        ("inference -s 16x64x64", "-s 16 64 64"),
        ("inference --input-patch-size 64", "--input-patch-size 64 64 64"),
        ("inference -s 16,64,64 -c 1 save-h5 -f a.h5", "with spaces between them: 16 64 64"),
        ("generate-tasks --chunk-size a b c", "with spaces between them: 16 64 64"),
    ],
)
def test_the_words_that_work_are_named(line, answer):
    """The message has the option and the value as they have to be typed."""
    assert answer in " ".join(say(line, code=2).split())


@pytest.mark.parametrize("line", ["load-zarr preview", "load-zarr", "load-zarr --mip 1"])
def test_nothing_is_guessed_where_nothing_was_given(line):
    """A command, or nothing, after one that lacks an option is no value."""
    output = say(line, code=2)
    assert "Missing option '--store'" in output
    assert "Write" not in output


def test_help_is_a_word():
    """`help` shows the help, and `help COMMAND` that of a command."""
    assert say("help") == say("--help")
    assert say("help inference") == say("inference --help")
    assert "No such command 'infrence'. Did you mean inference" in say("help infrence", code=2)


@pytest.mark.parametrize("reader", ["load-tif", "load-h5", "load-nrrd", "load-npy", "load-mrc"])
def test_what_is_not_there_is_said_to_be_missing(reader, tmp_path, monkeypatch):
    """A path without an extension that names nothing is missing, and no prefix."""
    monkeypatch.chdir(tmp_path)
    output = say(f"{reader} --file-name data/nopages", code=1)
    assert "data/nopages does not exist" in " ".join(output.split())


@pytest.mark.parametrize("name", ["a.tif", "a.nrrd", "pages/00.tif", "pages/00.png"])
@pytest.mark.parametrize("line", ["convert {} zarr://out.zarr", "generate-tasks -c 1 1 1 -v {}"])
def test_damaged_image_files_are_named(line, name, tmp_path, monkeypatch):
    """What reads volumes also reads image files, and names the one that is damaged."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages").mkdir()
    (tmp_path / name).write_bytes(b"II*\0")
    output = say(line.format(name.partition("/")[0]), code=1)
    assert name in " ".join(output.split())
    assert "cannot read" in output or "is damaged" in output or "not a NRRD file" in output, output
