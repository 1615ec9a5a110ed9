"""The default address of a run: beside its last output, for every operator."""

from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say

from chunkflow_py.cli import catalog
from chunkflow_py.core.task import Output
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.submit import default_run

# Command: its options and the expected run address; commands without options store nothing.
WRITERS = {
    "aggregate-skeleton-fragments": ("--fragments-path fragments", "fragments/skeletons-whole.run"),
    "cloud-watch": ("", ""),
    "compute-statistics": ("--statistics-path st", "st.run"),
    "create-info": ("-v seg -z 64 64 64 -d uint8 -s 4 4 4 -b 64 64 64", ""),
    "create-volume": ("-v zarr://seg -z 64 64 64 -d uint8 -s 4 4 4", ""),
    "cut-hierarchy": (
        "--hierarchy-path h --graph-path g --fragment-table-path f --table-path t", "t.run",
    ),
    "delete-task-in-queue": ("", ""),
    "download-mesh": ("-v seg -i 1 -o out/a_", "out/a.run"),
    "downsample-upload": ("--volume-path zarr://a.zarr", "a.zarr.run"),
    "evaluate-segmentation": ("--table-path scores", "scores.run"),
    "link-labels": ("-l links -v seg", "links.run"),
    "mark-complete": ("--prefix done/", "done.run"),
    "measure-contacts": ("--graph-path graph --task-size 1 1 1", "graph/contacts.run"),
    "merge-annotations": ("--parts-path parts --annotations-path points", "points.run"),
    "merge-regions": ("--graph-path g --level 1 --task-size 1 1 1", "g/level-1.run"),
    "measure-labels": ("--statistics-path st", "st.run"),
    "mesh": ("--output-path seg", "seg/mesh.run"),
    "napari": ("", ""),
    "neuroglancer": ("", ""),
    "preview": ("--output-path sheets/a_", "sheets/a.run"),
    "save-annotations": ("--parts-path parts", "parts.run"),
    "save-chunk-edges": ("--graph-path g --graph-chunk-size 1 1 1", "g/edges.run"),
    "save-h5": ("--file-name h5/", "h5.run"),
    "save-nrrd": ("--file-name a.nrrd", "a.nrrd.run"),
    "save-overlap": ("--overlap-path overlaps", "overlaps.run"),
    "save-pngs": ("--output-path pages", "pages.run"),
    "save-points": ("--file-path pts/", "pts.run"),
    "save-precomputed": ("--volume-path precomputed://seg", "seg.run"),
    "save-swc": ("--output-prefix swc/", "swc.run"),
    "save-synapses": ("--file-path syns.h5", "syns.h5.run"),
    "save-tif": ("--file-name tif_", "tif.run"),
    "save-volume": ("--volume-path h5://v.h5:raw", "v.h5.run"),
    "save-zarr": ("--store out.zarr", "out.zarr.run"),
    "skeletonize": ("--output-path seg", "seg/skeletons.run"),
    "solve-labels": ("--links-path links --table-path table", "table.run"),
    "view": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize(("name", "options", "run"), [(k, *v) for k, v in WRITERS.items()])
def test_a_run_lies_beside_what_its_last_operator_writes(name, options, run, tmp_path, monkeypatch):
    """The default run is beside the last output; an operator without output is named.

    For files with a placeholder (BOX or ID) in their names, the part before it is used.
    """
    monkeypatch.chdir(tmp_path)
    made = catalog.load(name).main(options.split(), standalone_mode=False)
    assert isinstance(made, Operator)
    if run:
        assert default_run([made]) == f"file://{tmp_path / run}"
    else:
        with pytest.raises(OptionError, match="add --run URL"):
            default_run([made])


def test_no_operator_that_writes_is_left_out():
    """The list above has all operators of the write stage that have a destination."""
    for name in catalog.names():
        if '@operator("write")' in Path(catalog.path_of(name)).read_text():
            assert name in WRITERS


@pytest.mark.parametrize(("name", "options"), [(k, v[0]) for k, v in WRITERS.items() if v[1]])
def test_files_of_tasks_are_known_as_outputs(name, options, tmp_path, monkeypatch):
    """Operators that write a file per task declare the names of the files for `verify`."""
    monkeypatch.chdir(tmp_path)
    hooks = catalog.load(name).main(options.split(), standalone_mode=False).hooks
    if any("BOX" in place for place in hooks.destinations):
        assert hooks.declares("stores")


def test_a_run_of_previews_without_a_place(tmp_path, monkeypatch):
    """`submit … preview` makes a run beside the images, which verify checks."""
    monkeypatch.chdir(tmp_path)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"submit {LINE} preview --output-path sheets/")
    (output,) = RunDirectory.parse("sheets.run").spec.steps[0].outputs
    assert output.output == Output("file", f"file://{tmp_path}/sheets/BOX.png")
