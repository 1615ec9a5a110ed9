"""What `benchmarks/operators.py` runs: one command a case, with the same words for both tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SIZE = (64, 1024, 1024)
SMALL = (64, 256, 256)  # of what takes minutes on all of it
QUICK = (16, 128, 128)


@dataclass(frozen=True)
class Case:
    """One command on one chunk.

    Attributes:
        words: of the command; ``{folder}`` is a new folder, ``{files}`` one with what is loaded,
            ``{size}`` the extent of the chunk.
        items: name of an item -> which of the inputs it is (see `peers/make_chunks.py`).
        peer: words for chunkflow 1.2.0, if they are others; ``None`` if it has no such command.
        note: why there is no peer, or what differs.
        is_inside: whether the chunk is a part of a larger volume.
        size: of the chunk, if it is another one.
    """

    words: str
    items: dict[str, str] = field(default_factory=dict)
    peer: str | None = ""
    note: str = ""
    is_inside: bool = False
    size: tuple[int, int, int] = SIZE

    def job(self, *, quick: bool) -> dict[str, Any]:
        """Return it for a report."""
        size = QUICK if quick else self.size
        return asdict(self) | {"size": size, "peer": self.words if self.peer == "" else self.peer}


IMAGE, MAP, AFFINITY = {"chunk": "image"}, {"chunk": "map"}, {"chunk": "affinity"}
LABELS, TRUTH = {"chunk": "segmentation"}, {"chunk": "segmentation", "groundtruth": "truth"}
NO_PEER = "its plugins are not in its package"
MESH = "mesh -o file://{files}/seg -v 40 8 8"

CASES = {
    "create-chunk, sine": Case("create-chunk -s {size}"),
    "create-chunk, random": Case("create-chunk -s {size} -p random"),
    "create-chunk, zero": Case("create-chunk -s {size} -p zero"),
    "load-h5": Case("load-h5 -f {files}/image.h5"),
    "save-h5": Case("save-h5 -f {folder}/a.h5", IMAGE),
    "load-tif": Case("load-tif -f {files}/image.tif"),
    "save-tif": Case("save-tif -f {folder}/a.tif", IMAGE),
    "load-npy": Case("load-npy -f {files}/image.npy"),
    "load-png": Case("load-png -p {files}/png/"),
    "save-pngs": Case("save-pngs -o {folder}/png/", IMAGE),
    "save-nrrd": Case("save-nrrd -f {folder}/a.nrrd", IMAGE),
    "copy-var": Case("copy-var -f chunk -t other", IMAGE),
    "crop-margin": Case("crop-margin -m 4 32 32 4 32 32", IMAGE),
    "threshold": Case("threshold -t 0.5", MAP),
    "multiply": Case("multiply -i chunk -m other", {"chunk": "map", "other": "map"}),
    "normalize-intensity": Case("normalize-intensity", IMAGE),
    "normalize-contrast, sections": Case("normalize-contrast", IMAGE),
    "normalize-contrast, whole": Case(
        "normalize-contrast --whole", IMAGE, None, "with --whole its command changes nothing"
    ),
    "normalize-section-shang": Case("normalize-section-shang", IMAGE),
    "gaussian-filter": Case("gaussian-filter -s 1", IMAGE),
    "channel-voting": Case("channel-voting", AFFINITY),
    "quantize, xy": Case("quantize", AFFINITY),
    "quantize, z": Case("quantize --mode z", AFFINITY),
    "downsample, image": Case("downsample", IMAGE),
    "downsample, labels": Case("downsample", LABELS),
    "mask": Case("mask -v file://{files}/mask -m 0", IMAGE),
    "connected-components, map": Case("connected-components -t 0.5", MAP),
    "connected-components, labels": Case("connected-components", LABELS),
    "mask-out-objects, dust": Case("mask-out-objects -d 500", LABELS),
    "mask-out-objects, ids": Case("mask-out-objects -s 1,2,3,5,8,13", LABELS),
    "evaluate-segmentation": Case("evaluate-segmentation", TRUTH),
    # chunkflow 1.2.0 leaves surfaces open where a chunk ends.
    "mesh, inside a volume": Case(MESH, LABELS, f"{MESH} -m 0", is_inside=True, size=SMALL),
    "mesh, closed": Case(MESH, LABELS, None, "it leaves surfaces open", size=SMALL),
    "median-filter": Case("median-filter", IMAGE, None, NO_PEER),
    "clahe": Case("clahe", IMAGE, None, NO_PEER),
    "inverse": Case("inverse", IMAGE, None, NO_PEER),
    "mapto01": Case("mapto01", MAP, None, NO_PEER),
    "rescale-intensity": Case("rescale-intensity", IMAGE, None, NO_PEER),
    "stretch-intensity": Case("stretch-intensity", IMAGE, None, NO_PEER),
    "transpose": Case("transpose", IMAGE, None, NO_PEER),
    "statistics": Case("statistics", IMAGE, None, NO_PEER),
    "fill-segmentation-holes": Case("fill-segmentation-holes", LABELS, None, NO_PEER),
    "print-max-id": Case("print-max-id", LABELS, None, NO_PEER),
}


def cases(*, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Return all cases by name, as a report has them."""
    return {name: case.job(quick=quick) for name, case in CASES.items()}
