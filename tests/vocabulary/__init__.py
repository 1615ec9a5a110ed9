"""The vocabulary of chunkflow 1.x as tables; what is awaited of it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

# Commands that are being written. One that exists must leave this list, which shrinks to nothing.
AWAITED: frozenset[str] = frozenset()

# Plugins by the name after `plugin -f`; their arguments, where the vocabulary or published lines
# give any, with a value of each.
PLUGINS = {
    "agglomerate": "threshold=0.7;aff_threshold_low=0.001;aff_threshold_high=0.9999;"
    "flip_channel=true",
    "aggregate-skeleton-fragments": "fragments_path=file:///tmp",
    "clahe": "",
    "detect-points": "min_distance=15;threshold_rel=0.3",
    "fill-segmentation-holes": "",
    "gaussian-filter": "sigma=1.0",
    "inverse": "",
    "load-mrc": "file_name=a.mrc",
    "load-n5": "n5_dir=a.n5;group_path=em;voxel_size=(40,4,4)",
    "load-nrrd": "file_name=a.nrrd;voxel_offset=(0,0,0);voxel_size=(1,1,1)",
    "load-tensorstore": "driver=n5;kvstore=file://a.n5;cache=1000000;voxel_size=(40,4,4)",
    "mapto01": "",
    "median-filter": "size=(3,1,1);mode=reflect",
    "print-max-id": "",
    "rescale-intensity": "low=3;high=200",
    "save-nrrd": "file_name=a.nrrd",
    "skeletonize": "voxel_size=(40,4,4);output_path=file:///tmp/skeletons",
    "statistics": "",
    "stretch-intensity": "min_threshold=10;max_threshold=200",
    "transpose": "",
    "aws/cloud-watch": "log_name=chunkflow-test",
    "synapse/adjust-pre": "img_threshold=60;radius=4",
    "synapse/detect-duplicate-post": "",
    "synapse/detect-post-synapses": "",
    "synapse/detect-pre-synapses": "",
    "synapse/find-tbar-object": "",
}
NOT_HERE = ("cutout-dvid-label", "czann-inference", "napari-pixel-classifier")


@dataclass(frozen=True)
class Row:
    """One option of a command.

    Attributes:
        command: its name.
        spellings: of the option.
        count: how many values it takes.
        choices: that it has to have.
        required: whether it has to be given.
        default: its value where it is not given.
        differs: why it is required here, or has another default.
    """

    command: str
    spellings: tuple[str, ...]
    count: int
    choices: frozenset[str]
    required: bool
    default: object
    differs: str

    def __str__(self) -> str:
        return f"{self.command} {self.spellings[0]}"


def read_table() -> tuple[list[str], list[Row]]:
    """Return the names of all commands, and all options."""
    names: list[str] = []
    rows = []
    text = (Path(__file__).parent / "commands.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            names.append(line)
            continue
        match = re.fullmatch(r" +(\S+)(?: \*(\d))?(?: \{(.*?)\})?(?: (!|= .*?))?(?: ~ (.*))?", line)
        assert match, line
        spelling, count, choices, rest, why = match.groups()
        rows.append(
            Row(
                names[-1],
                tuple(spelling.split("/")),
                int(count or 1),
                frozenset() if choices is None else frozenset(choices.split(",")),
                rest == "!",
                ast.literal_eval(rest[2:]) if rest and rest != "!" else None,
                why or "",
            )
        )
    return names, rows


COMMANDS, OPTIONS = read_table()
