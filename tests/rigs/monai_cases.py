"""Bundles, images and options that are compared with MONAI.

Each case has two bundles with the same network: one with a state dict, from which chunkflow and
MONAI make the network, and one with TorchScript.
"""

from __future__ import annotations

from dataclasses import dataclass

from rigs.monai_bundles import config, sliding_window

_UNET = {
    "_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 2,
    "channels": [4, 8], "strides": [2], "num_res_units": 1, "norm": "batch",
}  # fmt: skip
_SEGRESNET = {
    "_target_": "monai.networks.nets.SegResNet", "spatial_dims": 3, "init_filters": 4,
    "in_channels": 1, "out_channels": 3, "blocks_down": [1, 1], "blocks_up": [1],
    "norm": ["GROUP", {"num_groups": 2}],
}  # fmt: skip
_DYN_UNET = {
    "_target_": "monai.networks.nets.DynUNet", "spatial_dims": 3, "in_channels": 1,
    "out_channels": "@classes", "kernel_size": [3, [3, 1, 3], 3], "strides": [1, 2, 2],
    "upsample_kernel_size": [2, 2], "filters": [2, 4, 4], "norm_name": "batch",
}  # fmt: skip
_RANGE = {
    "_target_": "ScaleIntensityRanged", "keys": "@image_key", "a_min": -100, "a_max": 200,
    "b_min": 0.0, "b_max": 1.0, "clip": True,
}  # fmt: skip
_FIXED = {
    "_target_": "NormalizeIntensityd", "keys": ["image"], "subtrahend": 40.0, "divisor": 90.0,
    "nonzero": True,
}  # fmt: skip
_SOFTMAX = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
_SIGMOID = {"_target_": "Activationsd", "keys": "pred", "sigmoid": True}
_ARGMAX = {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}
_INVERT = {
    "_target_": "Invertd", "keys": "pred", "transform": "@preprocessing",
    "orig_keys": "@image_key", "nearest_interp": False, "to_tensor": True,
}  # fmt: skip


def _oriented(code):
    return {"_target_": "Orientationd", "keys": "@image_key", "axcodes": code, "labels": None}


def _spaced(*pixdim):
    return {"_target_": "Spacingd", "keys": "@image_key", "pixdim": list(pixdim)}


@dataclass(frozen=True)
class Case:
    """A bundle and an image.

    Attributes:
        inference: the inference config.
        size: size of the image, x, y, z.
        outputs: number of channels of the network.
        code: directions of the image's axes.
        spacing: voxel size in millimetres, x, y, z.
        options: options of the command `inference`; ``STATISTICS`` stands for a statistics file of
            the image.
        of_zeros: whether the statistics include voxels that are 0.
    """

    inference: dict
    size: tuple = (19, 23, 26)
    outputs: int = 2
    code: str = "RAS"
    spacing: tuple = (1.5, 1.5, 2.0)
    options: tuple = ()
    of_zeros: bool = True


CASES = {
    "unet-softmax": Case(config(_UNET, before=[_RANGE], after=[_SOFTMAX])),
    "unet-argmax": Case(config(_UNET, before=[_RANGE], after=[_SOFTMAX, _ARGMAX])),
    # Spleen, pancreas: orientation, spacing and inversion around a range.
    "segresnet-inverted": Case(
        config(
            _SEGRESNET,
            before=[_oriented("RAS"), _spaced(1.5, 1.5, 2.0), _RANGE],
            after=[_SOFTMAX, _INVERT, _ARGMAX],
            inferer=sliding_window((8, 16, 8), overlap=[0.25, 0.5, 0.0], mode="constant"),
        ),
        # From both ends the patches have the same positions: (size - patch) / stride is whole.
        size=(20, 24, 24),
        outputs=3,
        code="LPS",
        options=("--image-orientation", "LPS"),
    ),
    "dyn-unet-turned": Case(
        config(
            _DYN_UNET,
            before=[_oriented("PLI"), _FIXED],
            after=[_INVERT, _SIGMOID],
            inferer=sliding_window((16, 12, 8), overlap=0.5),
            classes=2,
        ),
        size=(24, 24, 16),
        options=("--image-orientation", "RAS"),
    ),
    # Another voxel size than that of the network: probabilities are resampled back.
    "segresnet-spaced": Case(
        config(
            _SEGRESNET,
            before=[_oriented("RAS"), _spaced(1.5, 1.5, 2.0), _RANGE],
            after=[_SOFTMAX, _INVERT],
            inferer=sliding_window((8, 16, 8), overlap=[0.25, 0.5, 0.0], mode="constant"),
        ),
        # At the voxel size of the network, the image has 20 by 24 by 16 voxels.
        size=(29, 30, 19),
        outputs=3,
        code="LPS",
        spacing=(1.0, 1.2, 1.7),
        options=("--image-orientation", "LPS", "--resample", "linear"),
    ),
    # Smaller voxels along an axis; labels are resampled back by the nearest voxel.
    "unet-spaced-nearest": Case(
        config(
            _UNET,
            before=[_FIXED, _spaced(1.5, -1, 2.3)],
            after=[_ARGMAX, {key: _INVERT[key] for key in _INVERT if key != "nearest_interp"}],
        ),
        size=(25, 23, 30),
        spacing=(1.9, 1.5, 1.3),
        options=("--resample", "linear"),
    ),
    # The activation follows the resampling.
    "unet-spaced-logits": Case(
        config(_UNET, before=[_spaced(1.1, 1.3, 1.7), _RANGE], after=[_INVERT, _SIGMOID]),
        size=(17, 19, 23),
        options=("--resample", "linear"),
    ),
    "unet-statistics": Case(
        config(
            _UNET,
            before=[{"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True}],
            after=[_ARGMAX],
            inferer=sliding_window((10, 12, 14), overlap=0.3),
        ),
        options=("--normalize-statistics", "STATISTICS"),
    ),
    "unet-nonzero-statistics": Case(
        config(
            _UNET,
            before=[{"_target_": "NormalizeIntensityd", "keys": "image", "nonzero": True}],
            after=[_ARGMAX],
        ),
        options=("--normalize-statistics", "STATISTICS"),
        of_zeros=False,
    ),
    "unet-percentiles": Case(
        config(
            _UNET,
            before=[
                {"_target_": "ScaleIntensityd", "keys": "image", "minv": -1.0, "maxv": 1.0},
                {"_target_": "ThresholdIntensityd", "keys": "image", "threshold": -0.8},
            ],
            after=[_ARGMAX],
        ),
        options=("--normalize-statistics", "STATISTICS"),
    ),
}  # fmt: skip
