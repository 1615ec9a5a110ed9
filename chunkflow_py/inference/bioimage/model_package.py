"""Read a package of the BioImage Model Zoo: sizes, normalisation, activation, and its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.bioimage.package_description import (
    SPACE,
    DescriptionField,
    TensorDescription,
    tensors,
)
from chunkflow_py.inference.bioimage.package_files import PackageFiles
from chunkflow_py.inference.bioimage.package_network import (
    OutputPlan,
    PackageNetwork,
    Weights,
    choose_weights,
    load_network,
)
from chunkflow_py.inference.bioimage.package_processing import (
    Normalization,
    ProcessingStep,
    after,
    before,
)

if TYPE_CHECKING:
    import torch

    from chunkflow_py.inference.bioimage.package_network import WeightsFormat
    from chunkflow_py.inference.network_output import Activation

# Input patches to suggest if any size is possible, zyx.
_USUAL = {2: Zyx(1, 512, 512), 3: Zyx(32, 256, 256)}


@dataclass(frozen=True)
class ModelPackage:
    """A package of the BioImage Model Zoo.

    ```
    input patch   |mmm|------------------|mmm|      m = margin
    output patch      |------------------|          input patch - 2 · margin
    ```

    Attributes:
        path: path of the package, as the user gave it.
        weights: the weights that are used; a package may also contain weights in other formats.
        spatial_dims: 3, or 2 for a network that takes single sections (z planes).
        num_input_channels: number of channels of the image.
        outputs: names of the outputs, in order; a network with several outputs returns a dict with
            these keys.
        output_channels: number of channels of each of *outputs*.
        minimum_patch_size: smallest input patch, voxels, zyx.
        patch_step: three numbers of voxels, zyx. The input patch may be larger than
            *minimum_patch_size* by a multiple of these numbers. The number is 0 along axes of fixed
            size.
        margin: voxels by which the input patch exceeds the output patch on each side, zyx.
        normalization: normalisation of the image before it enters the network.
        activation: activation at the end of the package's processing. The network that `load`
            returns does not contain this activation, so the caller must apply it.
        max_batch_size: largest number of samples in a batch, or ``None`` if there is no limit.
        voxel_size_nm: voxel size that the network was trained with, nanometres, zyx; ``None`` if
            the package states no voxel size. The number for z is ``None`` if the network takes
            single sections.
    """

    path: str
    weights: Weights
    spatial_dims: Literal[2, 3]
    num_input_channels: int
    outputs: tuple[str, ...]
    output_channels: tuple[int, ...]
    minimum_patch_size: Zyx
    patch_step: Zyx
    margin: Zyx
    normalization: Normalization
    activation: Activation
    max_batch_size: int | None
    voxel_size_nm: tuple[float | None, float, float] | None
    _files: PackageFiles
    _axes: str
    _steps: tuple[ProcessingStep, ...]
    _plans: tuple[OutputPlan, ...]

    @property
    def num_output_channels(self) -> int:
        """Number of channels of all outputs together."""
        return sum(self.output_channels)

    @property
    def checksum(self) -> str:
        """SHA-256 that the description states for the weight file; empty if none is stated."""
        return self.weights.file.sha256 or ""

    @property
    def is_program(self) -> bool:
        """Whether the network is a compiled program, which cannot be changed or converted."""
        return self.weights.format != "pytorch_state_dict"

    @property
    def patch_size(self) -> Zyx:
        """Default size of the input patch, voxels, zyx."""
        return self.nearest_patch_size(_USUAL[self.spatial_dims])

    def nearest_patch_size(self, wanted: Zyx) -> Zyx:
        """Return the valid input patch size (voxels, zyx) that is nearest to *wanted*."""
        found = []
        rows = zip(wanted, self.minimum_patch_size, self.patch_step, strict=True)
        for size, minimum, step in rows:
            steps = max(0, round((size - minimum) / step)) if step else 0
            found.append(minimum + steps * step)
        # A network of sections takes any number of them.
        return Zyx.of([wanted.z, *found[1:]] if self.spatial_dims == 2 else found)

    def check_sizes(self, input_patch_size: Zyx, output_patch_size: Zyx, batch_size: int) -> None:
        """Check that the network accepts the sizes of patches and batches.

        Args:
            input_patch_size: size of the input patch, voxels, zyx.
            output_patch_size: size of the output patch, voxels, zyx.
            batch_size: number of patches in one forward pass.

        Raises:
            OptionError: the network does not accept one of the sizes. The message names an accepted
                size, unless the input patch is too small for the margin.
        """
        nearest = self.nearest_patch_size(input_patch_size)
        if nearest != input_patch_size:
            msg = (
                f"--input-patch-size is {input_patch_size}, but model package {self.path} takes "
                f"{self.minimum_patch_size} plus multiples of {self.patch_step} (zyx, voxels); "
                f"use the nearest size, --input-patch-size {nearest.as_option}"
            )
            raise OptionError(msg)
        largest = input_patch_size - self.margin * 2
        if min(largest) < 1:
            msg = (
                f"--input-patch-size {input_patch_size} is too small: model package {self.path} "
                f"removes a margin of {self.margin} on each side (zyx, voxels), so that no output "
                "remains; make --input-patch-size larger than twice the margin"
            )
            raise OptionError(msg)
        if any(a > b for a, b in zip(output_patch_size, largest, strict=True)):
            msg = (
                f"--output-patch-size is {output_patch_size}, but model package {self.path} "
                f"computes at most {largest} from an input patch of {input_patch_size} (zyx, "
                f"voxels); use --output-patch-size {largest.as_option}"
            )
            raise OptionError(msg)
        number = batch_size * (input_patch_size.z if self.spatial_dims == 2 else 1)
        if self.max_batch_size is not None and number > self.max_batch_size:
            sections = " and --input-patch-size 1 Y X" if self.spatial_dims == 2 else ""
            msg = (
                f"model package {self.path} takes at most {self.max_batch_size} samples in a "
                f"batch, but a batch has {number}; use --batch-size {self.max_batch_size}{sections}"
            )
            raise OptionError(msg)

    def load(self, *, trust_weights: bool = False) -> torch.nn.Module:
        """Return the network, on the CPU, in evaluation mode.

        The network takes a normalised batch, (n, c, z, y, x) float32, or (n, c, y, x) if
        ``spatial_dims`` is 2. The size of the returned array along z, y and x is either the input
        or the output patch size. The network does not apply the function that the attribute
        `activation` names.

        If the weights have the format ``pytorch_state_dict``, Python code of the package is
        executed.

        Args:
            trust_weights: unpickle all objects in the weight file, even those that can run code.

        Raises:
            ModelError: a file does not match the description, or cannot be loaded.
        """
        network = load_network(self.weights, self._files, trust_weights=trust_weights)
        wrapped = PackageNetwork(network, self.spatial_dims, self._axes, self._steps, self._plans)
        return network if wrapped.changes_nothing else wrapped.eval()


def read_package(path: str, weights_format: WeightsFormat | None = None) -> ModelPackage:
    """Read the description of a package; `ModelPackage.load` then reads the weights.

    Args:
        path: path of ``rdf.yaml``, or of a folder or ``.zip`` file that contains ``rdf.yaml``.
        weights_format: format of the weights to use. The default is TorchScript if the package has
            such weights, else ONNX, else a state dict. A state dict comes last, because it needs
            Python code of the package.

    Raises:
        MissingExtraError: PyYAML is not installed.
        ModelError: *path* is not a package, or the package needs an unsupported feature. In the
            second case, the message names the field of the description.
    """
    files = PackageFiles(path)
    root = DescriptionField(files.read_description(), "", path)
    source, outputs = tensors(root)
    spatial_dims: Literal[2, 3] = 3 if "z" in source.axes else 2
    normalization, steps = before(source, path)
    ends = [after(output) for output in outputs]
    same = len({activation for activation, _ in ends}) == 1
    cut = [_cut(source, output, root["outputs"][i]) for i, output in enumerate(outputs)]
    margins = [
        own + [output.halo.get(axis, 0) for axis in SPACE]
        for own, output in zip(cut, outputs, strict=True)
    ]
    margin = Zyx.of(max(each) for each in zip(*margins, strict=True))
    plans = []
    for output, own, (activation, after_it) in zip(outputs, cut, ends, strict=True):
        # The engine crops whole patches; the rest of a network's own crop is done here.
        crop = (margin - own if any(map(any, cut)) else Zyx(0, 0, 0))[-spatial_dims:]
        finish = after_it if same or activation == "none" else (ProcessingStep(activation),)
        plans.append(OutputPlan(output.name, output.axes, tuple(crop), finish))
    return ModelPackage(
        path=path,
        weights=choose_weights(root, files, weights_format),
        spatial_dims=spatial_dims,
        num_input_channels=source.channels,
        outputs=tuple(output.name for output in outputs),
        output_channels=tuple(output.channels for output in outputs),
        minimum_patch_size=Zyx.of(source.minimum.get(axis, 1) for axis in SPACE),
        patch_step=Zyx.of(source.step.get(axis, 1) for axis in SPACE),
        margin=margin,
        normalization=normalization,
        activation=ends[0][0] if same else "none",
        max_batch_size=source.batch,
        voxel_size_nm=_voxel_size_nm(source, spatial_dims),
        _files=files,
        _axes=source.axes,
        _steps=steps,
        _plans=tuple(plans),
    )


def _space(source: TensorDescription) -> list[str]:
    return [axis for axis in SPACE if axis in source.axes]


def _cut(source: TensorDescription, output: TensorDescription, here: DescriptionField) -> Zyx:
    cut = dict.fromkeys(SPACE, 0)
    for axis in _space(source):
        if axis in output.growth:
            growth = output.growth[axis]
        elif source.step[axis]:
            here.refuse(
                f"along {axis} the size of the output is fixed, but that of the input is not; "
                "either both sizes or neither must be fixed"
            )
        else:
            growth = output.minimum[axis] - source.minimum[axis]
        if growth > 0 or growth % 2:
            here.refuse(
                f"along {axis} the output size minus the input size is {growth} voxels; the "
                "difference must be 0, or negative and even"
            )
        cut[axis] = -growth // 2
    return Zyx.of(cut[axis] for axis in SPACE)


def _voxel_size_nm(
    source: TensorDescription, spatial_dims: Literal[2, 3]
) -> tuple[float | None, float, float] | None:
    size = source.voxel_size_nm
    if any(axis not in size for axis in _space(source)):
        return None
    return (size["z"] if spatial_dims == 3 else None, size["y"], size["x"])
