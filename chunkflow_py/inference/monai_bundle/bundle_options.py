"""Complete the options of the command `inference` from a MONAI bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.monai_bundle.bundle import read_bundle
from chunkflow_py.inference.monai_bundle.bundle_files import is_bundle
from chunkflow_py.inference.monai_bundle.bundle_orientation import network_axes
from chunkflow_py.inference.monai_bundle.bundle_spacing import BundleSpacing, image_method

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from chunkflow_py.inference.monai_bundle.bundle import Bundle, BundleProcessing
    from chunkflow_py.inference.monai_bundle.bundle_orientation import NetworkAxes

_NM_PER_MM = 1e6
_FOR_BUNDLES = ("image_orientation", "skip_transforms")


def with_bundle(options: Mapping[str, Any], chosen: Collection[str]) -> Mapping[str, Any]:
    """Return *options*, completed from the MONAI bundle in ``convnet_model``.

    The bundle sets the numbers of channels. Options for patch size, overlap, batch size, window,
    padding, normalisation, activation, output dtype and voxel size are set only if the user did not
    set them. If ``convnet_model`` is not a bundle, *options* are returned as they are.

    Args:
        options: value of each option, keyed by its Python name.
        chosen: names of the options that the user gave.

    Raises:
        ModelError: the bundle cannot be read, or needs an unsupported feature.
        OptionError: an option that is only for bundles is given with another network, or an option
            that the bundle needs is missing.
    """
    model = options["convnet_model"]
    if model is None or not is_bundle(model):
        for name in _FOR_BUNDLES:
            if options.get(name):
                option = f"--{name.replace('_', '-')}"
                msg = (
                    f"{option} is only for MONAI bundles, but --convnet-model {model} is not a "
                    f"MONAI bundle; leave {option} out"
                )
                raise OptionError(msg)
        return options
    bundle = read_bundle(model)
    if options["convnet_weight_path"] is not None:
        msg = (
            f"MONAI bundle {model} contains its weights; leave --convnet-weight-path "
            f"{options['convnet_weight_path']} out"
        )
        raise OptionError(msg)
    found = bundle.processing(options["skip_transforms"] or ())
    axes = _axes(bundle, found, options["image_orientation"])
    completed = dict(
        options,
        package=found.before,
        num_input_channels=bundle.num_input_channels,
        num_output_channels=bundle.num_output_channels,
        spatial_dims="3",
        orientations=_orientations(found, options["image_orientation"]),
    )
    if options["model_voxel_size_nm"] is None:
        size_nm = _voxel_size_nm(found, axes)
        completed["model_voxel_size_nm"] = size_nm
        if options.get("resample") == "linear" and size_nm is not None:
            completed |= _resampling(found, axes, size_nm, chosen)
    size = options["input_patch_size"] if "input_patch_size" in chosen else None
    proposals = _proposals(found, axes, size)
    completed |= {name: value for name, value in proposals.items() if name not in chosen}
    if "activation" not in chosen and found.after.activation != "none":
        completed |= {"activation": found.after.activation, "activate": "after"}
    return completed


def _axes(bundle: Bundle, found: BundleProcessing, image: str | None) -> NetworkAxes:
    wanted = found.before.orientation
    if wanted is not None and image is None:
        msg = (
            f"MONAI bundle {bundle.path} reorders images to {wanted}, but the orientation of the "
            "image is unknown; state the directions of the x, y and z axes of the image, for "
            f"example --image-orientation {wanted} (for NIfTI, the directions are "
            "nibabel.aff2axcodes(image.affine))"
        )
        raise OptionError(msg)
    if wanted is None and image is not None:
        msg = (
            f"--image-orientation is {image}, but MONAI bundle {bundle.path} has no transform "
            "Orientation; leave --image-orientation out"
        )
        raise OptionError(msg)
    return network_axes(wanted, image)


def _orientations(found: BundleProcessing, image: str | None) -> tuple[str, str] | None:
    wanted = found.before.orientation
    return None if wanted is None or image is None else (wanted, image)


def _proposals(found: BundleProcessing, axes: NetworkAxes, size: Zyx | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if found.window is not None:
        size = size or Zyx.of(int(n) for n in axes.zyx(found.window.size))
        shares = axes.zyx(found.window.shares)
        # The stride of MONAI, in the arithmetic of MONAI.
        strides = [max(int(n * (1 - share)), 1) for n, share in zip(size, shares, strict=True)]
        values |= {
            "input_patch_size": size,
            "output_patch_overlap": size - Zyx.of(strides),
            "batch_size": found.window.batch_size,
            "bump": found.window.bump,
            "pad": found.window.pad,
        }
    if found.after.argmax:
        values["output_dtype"] = "argmax"
    return values


def _resampling(
    found: BundleProcessing,
    axes: NetworkAxes,
    size_nm: tuple[float | None, float | None, float | None],
    chosen: Collection[str],
) -> dict[str, Any]:
    # MONAI's own rule of resampling, and MONAI's order of the steps.
    before, after = found.before, found.after
    flipped = (False, False, False)
    if before.spacing is None:
        return {}
    if before.spacing_is_oriented:
        z, y, x = axes.zyx(axes.flipped)
        flipped = (bool(z), bool(y), bool(x))
    rule = BundleSpacing(size_nm, flipped, image_method(before.spacing), after.method())
    return {
        "resampling": rule,
        "normalizes_last": "normalize" not in chosen and before.normalizes_last(),
        "activates_first": "activation" not in chosen and after.activates_first,
    }


def _voxel_size_nm(
    found: BundleProcessing, axes: NetworkAxes
) -> tuple[float | None, float | None, float | None] | None:
    spacing = found.before.spacing_mm
    if spacing is None:
        return None
    sizes = (
        axes.zyx(spacing)
        if found.before.spacing_is_oriented
        else (spacing[2], spacing[1], spacing[0])
    )
    # MONAI keeps the voxel size of the image along axes where the spacing is not positive.
    z, y, x = (float(f"{size * _NM_PER_MM:.12g}") if size > 0 else None for size in sizes)
    return z, y, x
