"""Folders as nnU-Net v2 writes them after a training, with random weights.

Weights and images come from `numpy.random.RandomState`, whose numbers never change, so that the
stored outputs of nnU-Net (tests/data/nnunet) stay valid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

STORED = Path(__file__).parents[1] / "data" / "nnunet"
# Images with another voxel size than the plans: the case, and the spacing in millimetres, zyx.
RESAMPLED = {
    "plain-resampled": ("plain", (1.0, 1.4, 0.8)),
    "plain-thick": ("plain", (3.5, 1.0, 0.7)),
    "residual-resampled": ("residual", (0.7, 1.0, 1.3)),
    "flat-resampled": ("flat", (1.0, 1.25, 0.8)),
}
# Images with a border of zeros, which nnU-Net crops: the case, the spacing as above, and the number
# of zeros before and after the other voxels along z, y and x.
CROPPED = {
    "plain-cropped": ("plain", (1.0, 1.0, 1.0), ((2, 1), (0, 6), (5, 3))),
    "plain-cropped-resampled": ("plain", (1.0, 1.4, 0.8), ((2, 1), (4, 6), (5, 3))),
    "residual-cropped-resampled": ("residual", (0.7, 1.0, 1.3), ((1, 0), (3, 2), (2, 4))),
    "flat-cropped-resampled": ("flat", (1.0, 1.25, 0.8), ((3, 0), (1, 1), (0, 7))),
}
# The same, with normalisation inside the mask of the voxels other than 0, and of holes among them.
MASKED = {"residual-masked": ("residual", (0.7, 1.0, 1.3), ((1, 0), (3, 2), (2, 4)))}


def _resampling(name: str, seg: bool) -> dict[str, Any]:
    order = 3 if name == "data" else 1
    kwargs = {"is_seg": seg, "order": order, "order_z": 0, "force_separate_z": None}
    return {f"resampling_fn_{name}": "resample_data_or_seg_to_shape",
            f"resampling_fn_{name}_kwargs": kwargs}  # fmt: skip


def _configuration(patch: list[int], schemes: list[str], **more: Any) -> dict[str, Any]:
    return {
        "data_identifier": "nnUNetPlans_x",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": patch,
        "median_image_size_in_voxels": [4 * size for size in patch],
        "spacing": [1.0] * len(patch),
        "normalization_schemes": schemes,
        "use_mask_for_norm": [False] * len(schemes),
        **_resampling("data", seg=False),
        **_resampling("seg", seg=True),
        **_resampling("probabilities", seg=False),
        "batch_dice": True,
        **more,
    }


def _arguments(dims: int, blocks: str) -> dict[str, Any]:
    return {
        "n_stages": 3,
        "features_per_stage": [4, 6, 8],
        "conv_op": f"torch.nn.modules.conv.Conv{dims}d",
        "kernel_sizes": [[3] * dims] * 3,
        "strides": [[1] * dims, [2] * dims, [2] * dims],
        blocks: [1, 2, 1],
        "n_conv_per_stage_decoder": [1, 1],
        "conv_bias": True,
        "norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{dims}d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }


def _architecture(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "architecture": {
            "network_class_name": f"dynamic_network_architectures.architectures.unet.{name}",
            "arch_kwargs": arguments,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        }
    }


_INTENSITIES = {
    "mean": 101.5, "std": 31.25, "median": 100.0, "min": 1.0, "max": 254.0,
    "percentile_00_5": 22.0, "percentile_99_5": 203.0,
}  # fmt: skip

# Each case: configuration and its name, plans, dataset, axes to mirror, folds, size of the image.
CASES: dict[str, dict[str, Any]] = {
    # Two channels normalised differently, labels, two folds.
    "plain": {
        "configuration": (
            "3d_fullres",
            _configuration(
                [8, 12, 16],
                ["CTNormalization", "RGBTo01Normalization"],
                **_architecture("PlainConvUNet", _arguments(3, "n_conv_per_stage")),
            ),
        ),
        "transpose_forward": [0, 1, 2],
        "dataset": {
            "channel_names": {"0": "CT", "1": "RGB"},
            "labels": {"background": 0, "soma": 1, "glia": 2, "ignore": 3},
        },
        "mirror": (0, 1, 2),
        "folds": ("0", "1"),
        "size": (14, 27, 25),
    },
    # Regions, permuted axes, an image that is smaller than the patch along one axis.
    "residual": {
        "configuration": (
            "3d_fullres",
            _configuration(
                [8, 12, 16],
                ["ZScoreNormalization"],
                **_architecture("ResidualEncoderUNet", _arguments(3, "n_blocks_per_stage")),
            ),
        ),
        "transpose_forward": [2, 0, 1],
        "dataset": {
            "channel_names": {"0": "MRI"},
            "labels": {"background": 0, "cell": [1, 2], "nucleus": 2},
            "regions_class_order": [1, 2],
        },
        "mirror": (0, 2),
        "folds": ("0",),
        "seed": 38,  # all labels occur
        "size": (9, 26, 21),
    },
    # A 2D network in plans of an older version, slices across y.
    "flat": {
        "configuration": (
            "2d",
            _configuration(
                [12, 16],
                ["RescaleTo01Normalization"],
                UNet_class_name="PlainConvUNet",
                UNet_base_num_features=4,
                unet_max_num_features=8,
                n_conv_per_stage_encoder=[1, 1],
                n_conv_per_stage_decoder=[1],
                num_pool_per_axis=[1, 1],
                pool_op_kernel_sizes=[[1, 1], [2, 2]],
                conv_kernel_sizes=[[3, 3], [3, 3]],
            ),
        ),
        "transpose_forward": [1, 0, 2],
        "dataset": {"channel_names": {"0": "EM"}, "labels": {"background": 0, "cell": 1}},
        "mirror": (0, 1),
        "folds": ("0",),
        "size": (15, 5, 33),
    },
}


def plans_of(case: str, *, masked: bool = False) -> dict[str, Any]:
    """Return the content of plans.json; *masked* normalises every channel inside the mask."""
    described = CASES[case]
    name, configuration = described["configuration"]
    if masked:
        channels = len(configuration["use_mask_for_norm"])
        configuration = configuration | {"use_mask_for_norm": [True] * channels}
    forward = described["transpose_forward"]
    return {
        "dataset_name": "Dataset001_Random",
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": [1.0, 1.0, 1.0],
        "original_median_shape_after_transp": [32, 32, 32],
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": forward,
        "transpose_backward": [forward.index(axis) for axis in range(3)],
        "configurations": {name: configuration},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            str(channel): _INTENSITIES for channel in range(len(dataset_of(case)["channel_names"]))
        },
    }


def dataset_of(case: str) -> dict[str, Any]:
    """Return the content of dataset.json."""
    return CASES[case]["dataset"] | {"numTraining": 3, "file_ending": ".nii.gz"}


def random_weights(network: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Return a state dict with weights that depend only on names, shapes and *seed*."""
    random = np.random.RandomState(seed)
    by_storage: dict[int, torch.Tensor] = {}
    state = {}
    for name, old in network.state_dict().items():
        if old.data_ptr() not in by_storage:
            values = random.standard_normal(old.numel()).reshape(tuple(old.shape))
            if old.ndim > 1:
                values *= np.sqrt(2 / (old.numel() / old.shape[0]))
            else:
                values = 0.2 * values + (name.endswith("weight"))
            by_storage[old.data_ptr()] = torch.from_numpy(values.astype(np.float32))
        state[name] = by_storage[old.data_ptr()]
    return state


def write_folder(path: Path, case: str, *, masked: bool = False, **changes: Any) -> Path:
    """Write the folder of a trained model; return its path.

    Args:
        path: folder to create.
        case: key of `CASES`.
        masked: normalise inside the mask of the voxels other than 0.
        changes: entries of the checkpoints to replace.
    """
    from chunkflow_py.inference.nnunet.ensemble import _class_of
    from chunkflow_py.inference.nnunet.plans import read_plan

    described = CASES[case]
    name = described["configuration"][0]
    plans, dataset = plans_of(case, masked=masked), dataset_of(case)
    path.mkdir(parents=True)
    (path / "plans.json").write_text(json.dumps(plans))
    (path / "dataset.json").write_text(json.dumps(dataset))
    from dynamic_network_architectures.architectures import unet

    plan = read_plan(str(path), plans, dataset, name)
    arguments = dict(plan.arguments)
    for key in plan.imported:
        if arguments[key] is not None:
            arguments[key] = _class_of(arguments[key], key, "")
    network = getattr(unet, plan.architecture)(
        input_channels=len(plan.channels), num_classes=plan.output_channels, **arguments
    )
    for seed, fold in enumerate(described["folds"], described.get("seed", 0)):
        checkpoint = {
            "network_weights": random_weights(network, seed),
            "optimizer_state": {},
            "grad_scaler_state": None,
            "logging": {"ema_fg_dice": [np.float64(0.5), 0.75], "epochs": [np.int64(3)]},
            "_best_ema": np.float64(0.75),
            "current_epoch": 1000,
            "init_args": {
                "plans": plans,
                "configuration": name,
                "fold": 0,
                "device": torch.device("cpu"),
            },
            "trainer_name": "nnUNetTrainer",
            "inference_allowed_mirroring_axes": described["mirror"],
        } | changes
        (path / f"fold_{fold}").mkdir()
        torch.save(checkpoint, path / f"fold_{fold}" / "checkpoint_final.pth")
    return path


def image_of(
    case: str, border: tuple[tuple[int, int], ...] | None = None, *, holes: bool = False
) -> np.ndarray:
    """Return the image, (c, z, y, x) uint8, without zeros but in a border and in *holes*.

    With *holes*, zeros also enclose, open to the border, a corner of the other voxels.
    """
    channels = len(dataset_of(case)["channel_names"])
    random = np.random.RandomState(7)
    image = random.randint(1, 256, (channels, *CASES[case]["size"])).astype(np.uint8)
    if border is None:
        return image
    inside = tuple(slice(a, size - b) for (a, b), size in zip(border, image.shape[1:], strict=True))
    cropped = np.zeros_like(image)
    cropped[(slice(None), *inside)] = image[(slice(None), *inside)]
    # Only one voxel of one channel decides the crop at each end; the rest may be 0.
    cropped[(0, *(each.start for each in inside))] = 1
    cropped[0, :, inside[1].start] = 0
    cropped[(0, inside[0].start, inside[1].start, inside[2].start)] = 9
    if holes:
        z, y, x = (each.start for each in inside)
        cropped[:, z + 2 : z + 5, y + 4 : y + 9, x + 3 : x + 6] = 0  # enclosed
        cropped[:, z + 3, y + 12 : y + 14, x + 5 :] = 0  # open to the border
        cropped[:, z + 5 :, y + 15 :, x + 8 :] = 0
    return cropped
