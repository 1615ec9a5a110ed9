"""Older names of commands and options, and their present names.

Older names still work, with a notice, but appear neither in help nor in shell completion.
"""

from __future__ import annotations

# older command -> command
COMMANDS = {
    "cutout": "load-precomputed",
    "delete-chunk": "delete-var",
    "fetch-task": "fetch-task-from-sqs",
    "load-pngs": "load-png",
    "normalize-contrast-nkem": "normalize-contrast",
    "normalize-section-contrast": "normalize-contrast",
    "read-h5": "load-h5",
    "read-json": "load-json",
    "read-npy": "load-npy",
    "read-nrrd": "load-nrrd",
    "read-pngs": "load-png",
    "read-precomputed": "load-precomputed",
    "read-tif": "load-tif",
    "save": "save-precomputed",
    "skip-task": "skip-task-by-file",
    "write-h5": "save-h5",
    "write-nrrd": "save-nrrd",
    "write-pngs": "save-pngs",
    "write-precomputed": "save-precomputed",
    "write-tif": "save-tif",
}

_CUT = {"--start": "--chunk-start", "--stop": "--chunk-stop"}

_FLAG_FILE = {
    **dict.fromkeys(("--pre", "-e"), "--prefix"),
    **dict.fromkeys(("--post", "-t"), "--suffix"),
    **dict.fromkeys(("--grow-size", "-g"), "--adjust-size"),
}

# command -> older option -> option, with a value if the older one was a flag
OPTIONS = {
    "create-chunk": {"--all-zero": "--pattern=zero", "--not-all-zero": "--pattern=sin"},
    "create-info": dict.fromkeys(("--output-layer-path", "--layer-path", "-l"), "--volume-path"),
    "delete-var": dict.fromkeys(("--chunk-name", "--var-name", "-c"), "--var-names"),
    "generate-tasks": {
        **dict.fromkeys(("--layer-path", "-l"), "--volume-path"),
        "--start": "--roi-start",
    },
    "inference": {
        "--patch-size": "--input-patch-size",
        "--patch-overlap": "--output-patch-overlap",
    },
    "load-json": {"-n": "--name"},
    "load-n5": _CUT,
    "load-png": {"--path-prefix": "--path", "--volume-offset": "--voxel-offset"},
    "load-precomputed": _CUT,
    "load-skeleton": dict.fromkeys(("--fname", "-f"), "--path"),
    "load-synapses": {"-n": "--name", "--path-suffix": "--suffix"},
    "load-tensorstore": _CUT,
    "load-volume": _CUT,
    "load-zarr": {**_CUT, "--backend": "--driver"},
    "mask": {
        "--input-chunk-name": "--input-names",
        "--output-chunk-name": "--output-names",
    },
    "mask-out-objects": {"--output_chunk_name": "--output-chunk-name"},
    "neuroglancer": dict.fromkeys(("--chunk-names", "-c"), "--inputs"),
    "normalize-contrast": {"-p": "--levels"},
    "save-precomputed": {"--nproc": "--parallel"},
    "save-volume": {"--nproc": "--parallel"},
    "save-zarr": {"--nproc": "--parallel"},
    "setup-env": {"--output-layer-path": "--volume-path"},
    "skip-all-zero": _FLAG_FILE,
    "skip-task-by-file": _FLAG_FILE,
}

# command -> ignored option -> the value that selected what is now always done
OPTIONS_NEEDLESS: dict[str, dict[str, tuple[str, ...]]] = {
    "generate-tasks": dict.fromkeys(("--overlap", "-o"), ("0", "0", "0")),
    "load-h5": {"--no-zero-filling": ()},
    "mask": {"--maskout": ()},
}

_EXPAND = (
    "expand both sides with --expand-margin-size, then remove the margin on one side with "
    "crop-margin --margin-size"
)
_SKIPPED = "use generate-tasks --mask URL, which makes tasks only inside the mask"

# command -> removed option -> what to do instead
OPTIONS_INSTEAD = {
    "generate-tasks": dict.fromkeys(
        ("--overlap", "-o"),
        "tasks do not overlap: remove this option, and read a margin around tasks with "
        "--expand-margin-size",
    ),
    "inference": {
        "--original-num-output-channels": "use --num-output-channels for the number of channels "
        "that the network returns",
        "--output-key": "let the network return one tensor, or write a model file whose "
        "PatchInferencer returns only that tensor, and give --framework universal",
    },
    "load-h5": {
        "--zero-filling": "use skip-task-by-file --mode missing to skip tasks without a file"
    },
    "load-precomputed": dict.fromkeys(("--expand-direction", "-d"), _EXPAND),
    "mask": dict.fromkeys(("--check-all-zero", "--skip-to"), _SKIPPED),
    "mesh-manifest": {"-i": "select the task by the first digits of its object ids, with --prefix"},
}

# removed command -> what to do instead
INSTEAD = {
    "cutout-dvid-label": "convert the labels of DVID to precomputed or zarr, and read the copy: "
    "load-volume -v URL",
    "czann-inference": "export the network to ONNX or to a BioImage package, and give the "
    "exported file to inference --convnet-model",
    "remap-segmentation": "assign ids that are unique in the volume when you label the objects: "
    "connected-components --global-ids or agglomerate --global-ids",
    "napari-pixel-classifier": "train a classifier in napari, and call it from your own file: "
    "plugin -f my_classifier.py (see docs/extending.md)",
}

# Weight file to pass to load_model of a model file if load_model ignores its argument.
NO_FILE = "none"

# Plugin folders of chunkflow 1.x: `plugin -f aws/cloud-watch` is now the command cloud-watch.
PLUGIN_FOLDERS = ("aws", "synapse")

# plugin -> parameters of the command that take its inputs, in order; "" for an unused input
PLUGIN_INPUTS = {
    "adjust-pre": ("synapses_name", "input_name"),
    "detect-duplicate-post": ("", "synapses_name", "input_name"),  # the first input was the box
    "find-tbar-object": ("synapses_name", "input_name"),
}

# plugin -> its argument -> parameter of the command; "" for an unused argument
PLUGIN_ARGUMENTS = {
    "detect-duplicate-post": {"args": "max_post_num"},  # a single number
    "gaussian-filter": {"inplace": ""},  # inputs are never modified
}
