"""Published command lines: they run as they are typed, on small data."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from vocabulary import AWAITED

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.older_names import COMMANDS

FOLDER = Path(__file__).parent

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv3d(1, CHANNELS, 3, padding=1)

    def forward(self, x):
        return [torch.sigmoid(self.conv(x))]

def post_process(output):
    return output[0]

InstantiatedModel = Net()
"""

UNIVERSAL = """
class PatchInferencer:
    def __init__(self, weight_path, output_patch_mask):
        self.output_patch_mask = output_patch_mask

    def __call__(self, patch):
        return patch * self.output_patch_mask
"""


LOAD_MODEL = """
import torch

def load_model(path):
    return torch.nn.Conv3d(1, 3, 3, padding=1)
"""


@dataclass
class Story:
    """Lines that run one after the other in one folder.

    Attributes:
        title: where they are published, and what they do.
        lines: each with the paths that are there afterwards.
    """

    title: str
    lines: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def awaited(self) -> set[str]:
        """The commands of the lines that are not written yet."""
        words = {word.replace("_", "-") for line, _ in self.lines for word in shlex.split(line)}
        return {COMMANDS.get(word, word) for word in words} & AWAITED


def stories() -> list[Story]:
    """Return the stories of lines.txt."""
    found: list[Story] = []
    text = (FOLDER / "lines.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("## "):
            found.append(Story(line[3:]))
        elif line.startswith("=> "):
            found[-1].lines[-1][1].extend(line[3:].split())
        elif line and not line.startswith("#"):
            found[-1].lines.append((line, []))
    return found


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Make a folder of what the lines read."""
    folder = tmp_path_factory.mktemp("published")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for channels in (1, 3, 4, 5):
            _write_model(folder, channels)
        Path("universal_identity.py").write_text(UNIVERSAL)
        Path("load_model.py").write_text(LOAD_MODEL)
        Path("levels").mkdir()
        for z in range(16):
            Path("levels", str(z)).write_text(json.dumps({"levels": [9] * 256}))
        Path("ids.json").write_text(json.dumps([7, 9]))
        labels = np.zeros((16, 32, 32), np.uint32)
        labels[2:12, 3:13, 3:13], labels[3:14, 16:30, 15:30] = 7, 9
        np.save("labels.npy", labels)
        np.save("affinity.npy", np.random.default_rng(0).random((3, 16, 32, 32), np.float32))
        with h5py.File("sample_A.hdf", "w") as file:
            file["volumes/raw"] = np.random.default_rng(1).integers(0, 256, (16, 32, 32), np.uint8)
        for line in (
            "create-chunk -s 16 32 32 -p random save-tif -f image.tif",
            "load-npy -f affinity.npy save-h5 -f affinity.h5",
            "load-npy -f labels.npy -s 40 4 4 save-tif -f groundtruth.tif"
            " save-tif -f segmentation.tif save-precomputed -v file://labels --block-size 16 16 16",
            "create-chunk -s 16 48 48 -e 40 4 4 -p random create-info -v file://em --max-mip 2"
            " -b 8 16 16 save-precomputed -v file://em",
            "create-chunk -s 16 48 48 -e 40 4 4 -p zero save-precomputed -v file://mask",
        ):
            result = CliRunner().invoke(cli, shlex.split(f"--quiet {line}"))
            assert result.exit_code == 0, f"{line}\n{result.output}"
    finally:
        os.chdir(before)
    return folder


def _write_model(folder: Path, channels: int) -> None:
    """Write a network of so many channels, and its weights."""
    import torch

    text = MODEL.replace("CHANNELS", str(channels))
    (folder / f"model{channels}.py").write_text(text)
    names: dict[str, object] = {}
    exec(text, names)
    torch.save(names["InstantiatedModel"].state_dict(), folder / f"weight{channels}.pt")


@pytest.mark.parametrize("story", stories(), ids=lambda story: story.title)
def test_published_lines_run(story: Story, data: Path, tmp_path: Path, monkeypatch) -> None:
    """Every line ends with exit code 0 and leaves what it promises."""
    if story.awaited:
        pytest.skip(f"awaits {', '.join(sorted(story.awaited))}")
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for line, made in story.lines:
        words = shlex.split(line.replace("$QUEUE", f"sqlite://{folder}/queue.sqlite"))
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        missing = [path for path in made if not Path(path).exists()]
        assert not missing, f"{line}\n{missing} missing\n{result.output}"


def test_there_are_many() -> None:
    """The lines cover the vocabulary: more than 25, of every part of it."""
    lines = [line for story in stories() for line, _ in story.lines]
    assert len(lines) > 40
    words = {COMMANDS.get(word, word) for line in lines for word in re.findall(r"[\w-]+", line)}
    used = words & {*catalog.commands()}
    assert {catalog.describe(name).kind for name in used} >= set(catalog.SECTIONS) - {"subcommand"}
