"""What a pipeline has written is named on the screen, by every operator that writes."""

import pytest
from rigs.command_line import say

LABELS = "create-chunk --size 4 16 16 --dtype uint32"
IMAGE = "create-chunk --size 4 16 16 --dtype uint8"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"{IMAGE} save-h5 --file-name a.h5", "wrote a.h5"),
        (f"{IMAGE} save-tif --file-name a.tif", "wrote a.tif"),
        (f"{IMAGE} save-nrrd --file-name a.nrrd", "wrote a.nrrd"),
        (f"{IMAGE} preview", "wrote preview.png"),
        (f"{IMAGE} preview --output-path sheets/", "wrote sheets/0-4_0-16_0-16.png"),
        (f"{IMAGE} save-pngs --output-path pages", "wrote 4 sections to pages"),
        (f"{IMAGE} save-zarr --store a.zarr", "created a.zarr"),
        (f"{IMAGE} save-precomputed --volume-path pc", "created pc"),
        (
            "create-bbox --start 0 0 0 --size 4 16 16 "
            f"{IMAGE} detect-points save-points --file-path pts.h5", "wrote pts.h5",
        ),
        (f"{LABELS} skeletonize save-swc --output-prefix swc/", "skeletons to "),
    ],
)  # fmt: skip
def test_what_is_written_is_named(line, named, tmp_path, monkeypatch):
    """The place is in the output, as it was typed where it is one file."""
    monkeypatch.chdir(tmp_path)
    assert named in say(line)
