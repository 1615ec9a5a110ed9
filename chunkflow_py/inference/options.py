"""Settings of the engine and arguments of a backend from the options of the command line."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.bioimage import is_package, read_package
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.network_output import OUTPUT_KINDS, NetworkOutput
from chunkflow_py.inference.normalization import Normalizer, create_normalizer
from chunkflow_py.inference.patch_grid import PatchGeometry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.inference.network_output import OutputKind

_SETTINGS = (
    "num_input_channels", "batch_size", "bump", "pad", "output_dtype", "activation", "activate",
    "augment", "mask_myelin_threshold", "lower_batch",
)  # fmt: skip
_NETWORK = (
    "framework", "backend", "device", "dtype", "compile", "tf32", "cuda_graphs", "trust_weights",
)  # fmt: skip


def with_package(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* with what a package of the BioImage Model Zoo says of its network.

    Options that say the same of a network are taken from the package; margin, normalisation,
    activation and voxel size only where the user said nothing.

    Raises:
        ModelError: the package cannot be read, or asks for what cannot be done.
        OptionError: the network does not take the sizes.
    """
    model = options["convnet_model"]
    if model is None or not is_package(model):
        return options
    package = read_package(model)
    said = dict(options, package=package)
    size = options["input_patch_size"]
    said["output_patch_size"] = options["output_patch_size"] or size - package.margin * 2
    said["num_input_channels"] = package.num_input_channels
    said["num_output_channels"] = package.num_output_channels
    said["spatial_dims"] = str(package.spatial_dims)
    said["model_voxel_size_nm"] = options["model_voxel_size_nm"] or package.voxel_size_nm
    if options["activation"] == "none":
        said["activation"] = package.activation
    if len(package.outputs) > 1:
        said["output_names"] = options["output_names"] or package.outputs
        said["output_channels"] = options["output_channels"] or package.output_channels
    package.check_sizes(size, said["output_patch_size"], options["batch_size"])
    return said


def _normalizer(options: Mapping[str, Any]) -> Normalizer:
    package, statistics = options.get("package"), options["normalize_statistics"]
    channels = options["num_input_channels"]
    if package is not None and options["normalize"] is None:
        made: Normalizer = package.normalization.normalizer(channels, statistics)
        return made
    return create_normalizer(
        options["normalize"] or "dtype",
        num_channels=channels,
        statistics=statistics,
        percentiles=options["normalize_percentiles"],
    )


def settings_from(options: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of the engine.

    Args:
        options: of the command ``inference``, by their Python names.

    Raises:
        OptionError: options contradict each other.
    """
    sizes = ("input_patch_size", "output_patch_size", "output_patch_overlap")
    geometry = PatchGeometry.of(*(options[name] for name in sizes))
    if options["activate"] == "after" and options["activation"] == "none":
        msg = "--activate after says when, but not what; add --activation sigmoid or softmax"
        raise OptionError(msg)
    kinds = _kinds(options["output_kind"])
    outputs = _outputs(options["output_names"], options["output_channels"], kinds)
    return EngineSettings(
        geometry,
        num_output_channels=sum(output.channels for output in outputs)
        or options["num_output_channels"],
        outputs=outputs,
        normalizer=_normalizer(options),
        output_kind=None if outputs or not kinds else kinds[0],
        keep_stride=options["grid"] == "padded",
        skip_empty=options["skip_empty_patches"],
        **{key: options[key] for key in _SETTINGS},
    )


def network_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `chunkflow_py.inference.backend_factory.create_backend`."""
    return {
        "model": options["convnet_model"],
        "weights": options["convnet_weight_path"],
        "spatial_dims": int(options["spatial_dims"]),
        **{key: options[key] for key in _NETWORK},
    }


def _kinds(words: tuple[str, ...] | None) -> tuple[OutputKind, ...]:
    kinds: list[OutputKind] = []
    for word in words or ():
        known = [kind for kind in OUTPUT_KINDS if kind == word]
        if not known:
            msg = f"--output-kind {word!r} is not one of {', '.join(OUTPUT_KINDS)}"
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
            msg = f"{option} lists several outputs; name them with --output-names"
            raise OptionError(msg)
        return ()
    if len(names) != len(channels or ()) or (kinds and len(kinds) != len(names)):
        msg = (
            f"--output-names has {len(names)} names, --output-channels {len(channels or ())} "
            f"numbers and --output-kind {len(kinds)} words; give one of each for every output"
        )
        raise OptionError(msg)
    rows = zip_longest(names, channels or (), kinds)
    return tuple(
        NetworkOutput(name, count, kind or ("affinity" if count == 3 else "probability"))
        for name, count, kind in rows
    )
