"""Names that command lines of earlier years still hold: what each is called now, one table.

They work, with a notice, and are listed nowhere else: neither in help nor in completion.
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
    "read-pngs": "load-png",
    "read-precomputed": "load-precomputed",
    "read-tif": "load-tif",
    "save": "save-precomputed",
    "skip-task": "skip-task-by-file",
    "write-h5": "save-h5",
    "write-pngs": "save-pngs",
    "write-precomputed": "save-precomputed",
    "write-tif": "save-tif",
}

_CUT = {"--start": "--chunk-start", "--stop": "--chunk-stop"}

# command -> older option -> option
OPTIONS = {
    "create-info": dict.fromkeys(("--output-layer-path", "--layer-path", "-l"), "--volume-path"),
    "delete-var": {"-c": "--var-names"},
    "inference": {
        "--patch-size": "--input-patch-size",
        "--patch-overlap": "--output-patch-overlap",
    },
    "load-n5": _CUT,
    "load-precomputed": _CUT,
    "load-tensorstore": _CUT,
    "load-volume": _CUT,
    "load-zarr": _CUT,
    "neuroglancer": {"-c": "--inputs"},
    "save-precomputed": {"--nproc": "--parallel"},
    "save-volume": {"--nproc": "--parallel"},
    "save-zarr": {"--nproc": "--parallel"},
    "setup-env": {"--output-layer-path": "--volume-path"},
}

# What there was and is not here -> what to do instead.
INSTEAD = {
    "cutout-dvid-label": "read labels of DVID from a precomputed or zarr copy of them: "
    "load-volume -v URL",
    "czann-inference": "export the network to ONNX or to a BioImage package and give that to "
    "inference --convnet-model",
    "napari-pixel-classifier": "train a classifier in napari, and call it from a file of your own: "
    "plugin -f my_classifier.py (see docs/extending.md)",
}

# Folders in which plugins lay: `plugin -f aws/cloud-watch` is the command cloud-watch.
PLUGIN_FOLDERS = ("aws", "synapse")

# plugin -> which of the command's items its inputs were, in their order; "" for one without use
PLUGIN_INPUTS = {
    "adjust-pre": ("synapses_name", "input_name"),
    "detect-duplicate-post": ("", "synapses_name", "input_name"),  # the first was the box
    "find-tbar-object": ("synapses_name", "input_name"),
}

# plugin -> its argument -> the command's option; "" for one without use
PLUGIN_ARGUMENTS = {
    "detect-duplicate-post": {"args": "max_post_num"},  # a number alone
    "gaussian-filter": {"inplace": ""},  # inputs are never changed
}
