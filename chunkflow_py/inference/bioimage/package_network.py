"""Choose the weights of a package, load its network, and reorder the axes of its arrays."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import torch

from chunkflow_py.errors import ModelError
from chunkflow_py.inference.backends.model_files import (
    load_torchscript,
    load_weights,
    read_weights,
    run_model_file,
)
from chunkflow_py.inference.bioimage.package_files import is_inside

if TYPE_CHECKING:
    from chunkflow_py.inference.backends.onnx_core import OnnxCore
    from chunkflow_py.inference.bioimage.package_description import DescriptionField
    from chunkflow_py.inference.bioimage.package_files import PackageFiles
    from chunkflow_py.inference.bioimage.package_processing import ProcessingStep

_CHANNELS_FIRST = {2: "bcyx", 3: "bczyx"}


@dataclass(frozen=True)
class OutputPlan:
    """Processing of one output of the network.

    Attributes:
        name: name of the output.
        axes: letters of the axes of the output, in the order that the network uses.
        crop: voxels to crop from each side along each spatial axis.
        steps: postprocessing steps to apply to the output.
    """

    name: str
    axes: str
    crop: tuple[int, ...]
    steps: tuple[ProcessingStep, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether the output is neither cropped nor processed."""
        return not any(self.crop) and not self.steps and self.axes in _CHANNELS_FIRST.values()


class PackageNetwork(torch.nn.Module):
    """Wraps a network with any order of axes; takes and returns (n, c, z, y, x) or (n, c, y, x).

    ```
    (n, c, z, y, x) -> preprocessing -> axes of the network -> network
                    -> (n, c, z, y, x) -> crop -> postprocessing
    ```
    """

    def __init__(
        self,
        network: torch.nn.Module,
        spatial_dims: int,
        axes: str,
        steps: tuple[ProcessingStep, ...],
        outputs: tuple[OutputPlan, ...],
    ) -> None:
        """Wrap a network with its preprocessing *steps* and the postprocessing of *outputs*."""
        super().__init__()
        self.network = network
        self._ours = _CHANNELS_FIRST[spatial_dims]
        self._axes, self._steps, self._outputs = axes, steps, outputs

    @property
    def changes_nothing(self) -> bool:
        """Whether the wrapper is unnecessary: the network alone returns the same result."""
        plain = self._axes == self._ours and not self._steps
        return plain and len(self._outputs) == 1 and self._outputs[0].changes_nothing

    def forward(self, batch: torch.Tensor) -> Any:
        """Return (n, c, z, y, x) or (n, c, y, x), or for several outputs a dict of such tensors."""
        for step in self._steps:
            batch = step(batch)
        found = self.network(_moved(batch, self._ours, self._axes))
        tensors = self._named(found)
        done = {plan.name: self._finished(tensors[plan.name], plan) for plan in self._outputs}
        return done if len(done) > 1 else next(iter(done.values()))

    def _named(self, found: Any) -> dict[str, torch.Tensor]:
        names = [plan.name for plan in self._outputs]
        if isinstance(found, dict):
            if all(name in found for name in names):
                return found
            found = list(found.values())
        listed = list(found) if isinstance(found, list | tuple) else [found]
        if len(listed) != len(names):
            msg = (
                f"the network returned {len(listed)} tensors, but the package describes "
                f"{len(names)} outputs ({', '.join(names)}); correct the description"
            )
            raise ModelError(msg)
        return dict(zip(names, listed, strict=True))

    def _finished(self, values: torch.Tensor, plan: OutputPlan) -> torch.Tensor:
        if values.ndim != len(plan.axes):
            msg = (
                f"the network returned output {plan.name} with shape {tuple(values.shape)}, but "
                f"the package describes the axes {plan.axes}; correct the description"
            )
            raise ModelError(msg)
        values = _moved(values, plan.axes, self._ours)
        for axis, crop in enumerate(plan.crop, start=-len(plan.crop)):
            if crop:
                values = values.narrow(axis, crop, values.shape[axis] - 2 * crop)
        for step in plan.steps:
            values = step(values)
        return values


def _moved(values: torch.Tensor, here: str, there: str) -> torch.Tensor:
    # Axes that only *here* or only *there* has are of length 1.
    for axis in reversed(range(len(here))):
        if here[axis] not in there:
            values = values.squeeze(axis)
    kept = [letter for letter in here if letter in there]
    values = values.permute([kept.index(letter) for letter in there if letter in kept])
    for axis, letter in enumerate(there):
        if letter not in kept:
            values = values.unsqueeze(axis)
    return values


logger = logging.getLogger(__name__)

WeightsFormat = Literal["torchscript", "onnx", "pytorch_state_dict"]
# The first available format is used; formats that need no code of the package come first.
FORMATS: tuple[WeightsFormat, ...] = ("torchscript", "onnx", "pytorch_state_dict")


@dataclass(frozen=True)
class PackageFile:
    """A file of a package.

    Attributes:
        name: name of the file, relative to the description.
        sha256: expected checksum, or ``None`` if the description has none.
    """

    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class Weights:
    """Weights of a package in one format.

    Attributes:
        format: ``torchscript``, ``onnx`` or ``pytorch_state_dict``.
        file: file that contains the weights.
        architecture: Python file of the network, for ``pytorch_state_dict``.
        callable: name of the class or function in *architecture* that creates the network.
        kwargs: keyword arguments for *callable*.
    """

    format: WeightsFormat
    file: PackageFile
    architecture: PackageFile | None = None
    callable: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)


def choose_weights(
    root: DescriptionField, files: PackageFiles, wanted: str | None = None
) -> Weights:
    """Return the weights of a package in the wanted format, or in the first supported format.

    Args:
        root: the whole description.
        files: files of the package.
        wanted: format to use (default: the first of `FORMATS` whose files exist).

    Raises:
        ModelError: the package has no weights in a supported format, or a weight file is missing.
            In the second case, the message names the file.
    """
    there = [each for each in FORMATS if root["weights"][each]]
    if wanted is not None:
        there = [each for each in there if each == wanted]
    if not there:
        have = ", ".join(root["weights"].mapping())
        what = wanted or f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        msg = f"model package {files.path} has no weights in the format {what}" + (
            f", but only in {have}" if have else ""
        )
        raise ModelError(msg)
    first: ModelError | None = None
    for each in there:
        try:
            return _weights(root["weights"][each], each, files)
        except ModelError as error:
            first = first or error
    raise first or ModelError()


def _weights(here: DescriptionField, kind: WeightsFormat, files: PackageFiles) -> Weights:
    file = _file(here["source"], here["sha256"], files)
    if kind != "pytorch_state_dict":
        return Weights(kind, file)
    code = here["architecture"]
    if isinstance(code.value, str):  # 0.4: file.py:Name
        name, _, called = code.value.rpartition(":")
        source, sha256, kwargs = code, here["architecture_sha256"], here["kwargs"]
        if not name:
            code.refuse("the code must be a .py file of the package")
        code = type(code)(name, code.path, code.package)
        architecture = _file(code, sha256, files)
    else:
        if not code["source"]:
            code.refuse("the code must be a .py file of the package")
        called, kwargs, source = code["callable"].text(), code["kwargs"], code["source"]
        architecture = _file(source, code["sha256"], files)
    if not architecture.name.endswith(".py"):
        source.refuse("the code must be a .py file of the package")
    return Weights(kind, file, architecture, called, dict(kwargs.mapping()))


def _file(source: DescriptionField, sha256: DescriptionField, files: PackageFiles) -> PackageFile:
    """Return a file of the package, after checking that it exists."""
    name = source.text()
    remote = urlsplit(name).scheme in {"http", "https"}
    if remote:
        name = unquote(PurePosixPath(urlsplit(name).path).name)
    elif not is_inside(name):
        source.refuse("the file must be inside the package")
    if not files.has(name):
        where = f"download it and save it beside {files.description}" if remote else "add it"
        source.refuse(f"the package has no file {name}; {where}")
    return PackageFile(name, sha256.text() if sha256 else None)


def load_network(weights: Weights, files: PackageFiles, *, trust_weights: bool) -> torch.nn.Module:
    """Return the network, on the CPU, in evaluation mode.

    If the weights have the format ``pytorch_state_dict``, Python code of the package is executed.
    If the description states the SHA-256 of the code, the SHA-256 is checked first.

    Args:
        weights: the weights to load.
        files: files of the package.
        trust_weights: unpickle all objects in the weight file, even those that can run code.

    Raises:
        ModelError: a file does not match the description, or cannot be loaded.
    """
    file = weights.file
    path = str(files.local(file.name, file.sha256))
    if weights.format == "torchscript":
        network: torch.nn.Module = load_torchscript(path)
        return network.eval()
    if weights.format == "onnx":
        return OnnxNetwork(path)
    code = weights.architecture
    if code is None:  # pragma: no cover  (there is always one)
        raise ModelError(path)
    script = str(files.local(code.name, code.sha256))
    logger.warning("model package %s: executing its code in %s", files.path, code.name)
    made = getattr(run_model_file(script), weights.callable, None)
    if made is None:
        msg = (
            f"the description of model package {files.path} names {weights.callable}, but "
            f"{code.name} defines no {weights.callable}; correct the description"
        )
        raise ModelError(msg)
    try:
        network = made(**weights.kwargs)
    except Exception as error:  # a user's class may raise anything
        msg = (
            f"{weights.callable} in {code.name} of model package {files.path} failed with the "
            f"arguments {weights.kwargs}: {type(error).__name__}: {error}"
        )
        raise ModelError(msg) from error
    if not isinstance(network, torch.nn.Module):
        msg = (
            f"{weights.callable} in {code.name} of model package {files.path} returned a "
            f"{type(network).__name__}, not a torch.nn.Module; correct the description"
        )
        raise ModelError(msg)
    state, _ = read_weights(path, trust_weights=trust_weights)
    load_weights(network, state, path=path, model=script)
    return network.eval()


class OnnxNetwork(torch.nn.Module):
    """A module that runs an ``.onnx`` file with ONNX Runtime, on the device of the batch."""

    def __init__(self, path: str) -> None:
        """Store the path of the file; the first batch opens the file."""
        super().__init__()
        self._path = path
        self._core: OnnxCore | None = None
        self._made_for: tuple[Any, ...] = ()

    def forward(self, batch: torch.Tensor) -> Any:
        """Run the network on a batch (n, c, ...) of float32; return a tensor or a dict of tensors.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            ModelError: the network does not accept the shape of the batch.
        """
        from chunkflow_py.inference.backends.onnx_core import OnnxCore

        shape = tuple(batch.shape)
        if (shape, batch.device) != self._made_for:
            self._core = OnnxCore.from_file(self._path, shape, device=batch.device)
            self._made_for = (shape, batch.device)
        return None if self._core is None else self._core(batch.contiguous())
