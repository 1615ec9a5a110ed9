"""Run nnU-Net itself on the models of tests/inference/nnunet_models.py, and store its outputs.

`.rigs/nnunet/bin/python tests/rigs/nnunet_oracle.py FOLDER` writes FOLDER/CASE.npz for each case:

* `logits`: (c, z, y, x) float32, from nnU-Net's own code with sums in float32 instead of float16;
* `labels`: the labels that nnU-Net computes, unchanged, with sums in float16;
* `versions`: of nnunetv2, dynamic-network-architectures, torch and numpy.

and FOLDER/checkpoint_final.pth, which nnU-Net's trainer writes, with the log of a training.

The only changes of the code are the dtypes of the sums and of the window, replaced in its source.
"""

import inspect
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

HOME = tempfile.TemporaryDirectory()
for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
    os.environ[name] = HOME.name
sys.path[:0] = [str(Path(__file__).parents[1] / "inference"), str(Path(__file__).parents[2])]

from nnunet_models import (  # noqa: E402
    CASES,
    CROPPED,
    MASKED,
    RESAMPLED,
    dataset_of,
    image_of,
    plans_of,
    write_folder,
)
from nnunetv2.inference import predict_from_raw_data as module  # noqa: E402
from nnunetv2.inference.data_iterators import PreprocessAdapterFromNpy  # noqa: E402
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer  # noqa: E402

PACKAGES = ("nnunetv2", "dynamic_network_architectures", "torch", "numpy")


def float32_predictor():
    """Return the class of nnU-Net's predictor with sums and window in float32."""
    source = inspect.getsource(module.nnUNetPredictor)
    for old, new, number in (
        ("dtype=torch.half", "dtype=torch.float32", 2),
        ("value_scaling_factor=10,", "value_scaling_factor=10, dtype=torch.float32,", 1),
    ):
        assert source.count(old) == number, f"the code of nnU-Net has changed: {old}"
        source = source.replace(old, new)
    names = dict(vars(module))
    exec(compile(source, module.__file__, "exec"), names)
    return names["nnUNetPredictor"]


def predictor(kind, folder, folds, mirror):
    """Return a predictor for the CPU with the default settings."""
    made = kind(
        tile_step_size=0.5, use_gaussian=True, use_mirroring=mirror,
        perform_everything_on_device=False, device=torch.device("cpu"), allow_tqdm=False,
    )  # fmt: skip
    made.initialize_from_trained_model_folder(str(folder), folds)
    return made


def outputs(folder, folds, image, *, mirror=True, spacing=(1.0, 1.0, 1.0)):
    """Return logits in float32 and labels in float16 for an image (c, z, y, x)."""
    properties = {"spacing": list(spacing)}
    exact = predictor(float32_predictor(), folder, folds, mirror)
    prepared = next(
        PreprocessAdapterFromNpy(
            [image], [None], [properties.copy()], [None], exact.plans_manager, exact.dataset_json,
            exact.configuration_manager, num_threads_in_multithreaded=1,
        )
    )  # fmt: skip
    logits = exact.predict_logits_from_preprocessed_data(prepared["data"])
    forward = exact.plans_manager.plans["transpose_forward"]
    size = [spacing[axis] for axis in forward]
    configuration = exact.configuration_manager
    own = [*size[: 3 - len(configuration.spacing)], *configuration.spacing]
    known = prepared["data_properties"]
    shape = known["shape_after_cropping_and_before_resampling"]
    inside = configuration.resampling_fn_probabilities(logits, shape, own, size)
    logits = np.zeros((len(inside), *(image.shape[1 + axis] for axis in forward)), np.float32)
    box = tuple(slice(*ends) for ends in known["bbox_used_for_cropping"])
    logits[(slice(None), *box)] = np.asarray(inside)
    back = [0, *(axis + 1 for axis in exact.plans_manager.plans["transpose_backward"])]
    plain = predictor(module.nnUNetPredictor, folder, folds, mirror)
    labels = plain.predict_single_npy_array(image, properties.copy())
    return np.asarray(logits).transpose(back), np.asarray(labels).astype(np.uint8)


def write_checkpoint(path):
    """Let nnU-Net's trainer write the checkpoint of a network that it has not trained."""
    folder = Path(HOME.name) / "Dataset001_Random" / "nnUNetPlans_x"
    folder.mkdir(parents=True)
    (folder / "case.npz").touch()
    plans = plans_of("plain") | {"continue_training": False}
    device = torch.device("cpu")
    trainer = nnUNetTrainer(plans, "3d_fullres", 0, dataset_of("plain"), device=device)
    trainer.initialize()
    trainer._best_ema = np.float64(0.5)
    for key, value in (("train_losses", np.float32(1)), ("mean_fg_dice", np.mean([0.1, 0.2])),
                       ("dice_per_class_or_region", [np.float64(0.1)])):  # fmt: skip
        trainer.logger.log(key, value, 0)
    trainer.save_checkpoint(str(path))


def main():
    """Write the outputs of all cases."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write_checkpoint(target / "checkpoint_final.pth")
    cases = {case: (case, (1.0, 1.0, 1.0), None) for case in CASES}
    cases |= {name: (*described, None) for name, described in RESAMPLED.items()}
    cases |= CROPPED | MASKED
    for name, (case, spacing, border) in cases.items():
        described = CASES[case]
        with tempfile.TemporaryDirectory() as temporary:
            folder = write_folder(Path(temporary) / "model", case, masked=name in MASKED)
            folds = tuple(int(fold) for fold in described["folds"])
            image = image_of(case, border, holes=name in MASKED).astype(np.float32)
            logits, labels = outputs(folder, folds, image, spacing=spacing)
        versions = np.array([f"{package} {version(package)}" for package in PACKAGES])
        np.savez_compressed(target / f"{name}.npz", logits=logits, labels=labels, versions=versions)


if __name__ == "__main__":
    main()
