"""Convert the options of the command `inference` to engine settings and backend arguments."""

from __future__ import annotations

import inspect
from dataclasses import fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.affinity_layout import AffinityLayout
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.affinity_output import check_layout
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.bioimage import is_package, read_package
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.network_output import OUTPUT_KINDS, NetworkOutput
from chunkflow_py.inference.normalization import (
    Normalizer,
    create_normalizer,
    read_foreground,
)
from chunkflow_py.inference.patch_grid import PatchGeometry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.inference.network_output import OutputKind
    from chunkflow_py.inference.normalization import Method

# Part of the engine settings; `Inferencer` passes these on to `create_backend` itself.
_FROM_SETTINGS = {
    "input_patch_size",
    "output_patch_size",
    "num_input_channels",
    "num_output_channels",
    "batch_size",
    "output_channels",
    "affinity_channels",
}


def with_package(
    options: Mapping[str, Any], given: frozenset[str] = frozenset()
) -> Mapping[str, Any]:
    """Return *options*, completed from the package or trained nnU-Net model in ``convnet_model``.

    The package sets the options for the numbers of channels and of dimensions. Options for the
    margin, the normalisation, the activation and the voxel size are set only if the user did not
    set them. If ``convnet_model`` is neither a package nor a trained nnU-Net model, *options* are
    returned unchanged.

    Args:
        options: value of each option, keyed by its Python name.
        given: names of the options that the user gave.

    Raises:
        ModelError: the package cannot be read, or needs an unsupported feature.
        OptionError: the network does not accept the patch or batch size.
    """
    model = options["convnet_model"]
    if options["framework"] == "nnunet" and model is not None:
        return _with_trained_model(options, given)
    if options.get("normalize_mask") is not None:
        msg = (
            f"--normalize-mask is {options['normalize_mask']}, but only models of --framework "
            "nnunet normalise inside a mask; leave --normalize-mask out"
        )
        raise OptionError(msg)
    if "package" in options or model is None or not is_package(model):
        return options
    package = read_package(model)
    completed = dict(options, package=package)
    size = options["input_patch_size"]
    completed["output_patch_size"] = options["output_patch_size"] or size - package.margin * 2
    completed["num_input_channels"] = package.num_input_channels
    completed["num_output_channels"] = package.num_output_channels
    completed["spatial_dims"] = str(package.spatial_dims)
    completed["model_voxel_size_nm"] = options["model_voxel_size_nm"] or package.voxel_size_nm
    if options["activation"] == "none":
        completed["activation"] = package.activation
    if len(package.outputs) > 1:
        completed["output_names"] = options["output_names"] or package.outputs
        completed["output_channels"] = options["output_channels"] or package.output_channels
    package.check_sizes(size, completed["output_patch_size"], options["batch_size"])
    return completed


def _with_trained_model(options: Mapping[str, Any], given: frozenset[str]) -> Mapping[str, Any]:
    from chunkflow_py.inference.nnunet import read_model

    model = read_model(
        options["convnet_model"], options["folds"], trust_weights=options["trust_weights"]
    )
    plan = model.plan
    for name, number in (
        ("num_input_channels", len(plan.channels)),
        ("num_output_channels", plan.output_channels),
    ):
        if name in given and options[name] != number:
            option = name.replace("_", "-")
            kind = option.removeprefix("num-").replace("-", " ")
            msg = (
                f"--{option} is {options[name]}, but the number of {kind} of model {model.path} "
                f"is {number}; leave --{option} out"
            )
            raise OptionError(msg)
    as_labels = options["output_dtype"] == "argmax"
    # The largest logit is the largest probability, but regions are compared with 0.5.
    logits = (as_labels and not plan.region_labels) or options["output_kind"] == ("logit",)
    size = options["input_patch_size"] or plan.patch_size
    defaults = {
        "input_patch_size": size,
        "output_patch_size": size,
        "output_patch_overlap": size // 2,
        "grid": "spread",
        "bump": "nnunet",
        "pad": "zero",
        "activation": "none" if logits else "sigmoid" if plan.region_labels else "softmax",
        "activate": "before" if logits else "after",
        "output_kind": ("logit",) if logits else ("probability",),
        "model_voxel_size_nm": plan.voxel_size_nm,
        "num_input_channels": len(plan.channels),
        "num_output_channels": plan.output_channels,
        "region_labels": plan.region_labels,
        "spatial_dims": "3",  # the network takes slices of 3D patches itself
        "package": model,
    }
    completed = dict(options) | {key: value for key, value in defaults.items() if key not in given}
    if not given & {"resample", "model_voxel_size_nm"}:
        completed["resampling"] = plan.resampling
    completed["masked"] = _masked(model.path, plan.normalization.masked, options)
    if options["normalize_statistics"] is not None:
        completed["foreground"] = read_foreground(options["normalize_statistics"])
    return completed


def _masked(path: str, masked: tuple[bool, ...], options: Mapping[str, Any]) -> tuple[bool, ...]:
    name = options["normalize_mask"]
    is_needed = any(masked) and options["normalize"] is None
    if is_needed and name is None:
        msg = (
            f"model {path} normalises only the voxels inside a mask (use_mask_for_norm); make the "
            "mask with nonzero-mask, load it with load-zarr --output-name mask, and give "
            "inference --normalize-mask mask"
        )
        raise OptionError(msg)
    if name is not None and not is_needed:
        msg = (
            f"--normalize-mask is {name}, but model {path} normalises all voxels; leave "
            "--normalize-mask out"
        )
        raise OptionError(msg)
    return masked if is_needed else ()


def engine_settings(options: Mapping[str, Any]) -> EngineSettings:
    """Return the engine settings that the options of the command ``inference`` specify.

    Args:
        options: value of each option, keyed by its Python name. A setting with the name of an
            option gets the value of this option. Other settings are derived from several options.

    Raises:
        OptionError: options contradict each other.
    """
    if options["activate"] == "after" and options["activation"] == "none":
        msg = (
            "--activate after needs an activation; add --activation sigmoid or --activation softmax"
        )
        raise OptionError(msg)
    kinds = _kinds(options["output_kind"])
    outputs = _outputs(options["output_names"], options["output_channels"], kinds)
    same_name = {f.name: options[f.name] for f in fields(EngineSettings) if f.name in options}
    sizes = ("input_patch_size", "output_patch_size", "output_patch_overlap")
    derived = {
        "geometry": PatchGeometry.of(*(options[name] for name in sizes)),
        "num_output_channels": sum(output.channels for output in outputs)
        or options["num_output_channels"],
        "outputs": outputs,
        "normalizer": _normalizer(options),
        "output_kind": None if outputs or not kinds else kinds[0],
        "keep_stride": options["grid"] == "padded",
        "spread": options["grid"] == "spread",
        "skip_empty": options["skip_empty_patches"],
    }
    settings = EngineSettings(**same_name | derived)
    layout = AffinityLayout(options["affinity_order"], options["affinity_at"])
    patch = settings.geometry
    check_layout(
        layout, settings.affinity_channels, patch.input_patch_size, patch.output_patch_size
    )
    return settings


def backend_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for `create_backend` from the options of ``inference``.

    Args:
        options: value of each option, keyed by its Python name. An argument of `create_backend`
            with the name of an option gets the value of this option.
    """
    names = inspect.signature(create_backend).parameters.keys() - _FROM_SETTINGS
    return {name: options[name] for name in sorted(names) if name in options} | {
        "model": options["convnet_model"],
        "weights": options["convnet_weight_path"],
        "spatial_dims": int(options["spatial_dims"]),
    }


def _normalizer(options: Mapping[str, Any]) -> Normalizer:
    package, channels = options.get("package"), options["num_input_channels"]
    statistics = options["normalize_statistics"]
    mean, std = options["normalize_mean"], options["normalize_std"]
    if package is not None and options["normalize"] is None:
        normalizer: Normalizer = package.normalization.normalizer(channels, statistics, mean, std)
        return normalizer
    implied: Method = "dtype" if mean is None and std is None else "zscore"
    return create_normalizer(
        options["normalize"] or implied,
        num_channels=channels,
        statistics=statistics,
        mean=mean,
        std=std,
        percentiles=options["normalize_percentiles"],
    )


def _kinds(names: tuple[str, ...] | None) -> tuple[OutputKind, ...]:
    kinds: list[OutputKind] = []
    for name in names or ():
        known = [kind for kind in OUTPUT_KINDS if kind == name]
        if not known:
            msg = f"--output-kind {name!r} is not one of {', '.join(OUTPUT_KINDS)}"
            raise OptionError(msg)
        kinds += known
    return tuple(kinds)


def _outputs(
    names: tuple[str, ...] | None,
    channels: tuple[int, ...] | None,
    kinds: tuple[OutputKind, ...],
) -> tuple[NetworkOutput, ...]:
    if not names:
        if channels or len(kinds) > 1:
            option = "--output-channels" if channels else "--output-kind"
            msg = f"{option} needs the names of the outputs; add --output-names"
            raise OptionError(msg)
        return ()
    if len(names) != len(channels or ()) or (kinds and len(kinds) != len(names)):
        msg = (
            f"--output-names lists {len(names)} outputs, --output-channels lists "
            f"{len(channels or ())} numbers, and --output-kind lists {len(kinds)} kinds; list a "
            "name and a number of channels for every output, and either a kind for every output "
            "or no kinds"
        )
        raise OptionError(msg)
    rows = zip_longest(names, channels or (), kinds)
    return tuple(
        NetworkOutput(name, count, kind or ("affinity" if count == 3 else "probability"))
        for name, count, kind in rows
    )
