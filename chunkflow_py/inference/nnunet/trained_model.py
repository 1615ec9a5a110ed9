"""Read models of nnU-Net v2, or import a model: write an archive that contains no code."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.nnunet.checkpoints import read_checkpoint, read_state
from chunkflow_py.inference.nnunet.ensemble import EnsembleNetwork, create_network
from chunkflow_py.inference.nnunet.nnunet_files import DATASET, PLANS, ModelFiles
from chunkflow_py.inference.nnunet.plans import NnunetNormalization, NnunetPlan, read_plan
from chunkflow_py.store.local_files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = "chunkflow nnunet 1"
_ABOUT = "nnunet.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal models have equal bytes
CheckpointName = Literal["final", "best", "latest"]


@dataclass(frozen=True)
class TrainedModel:
    """A model that nnU-Net v2 has trained.

    Attributes:
        path: path of the model, as the user gave it.
        plan: sizes, axes, normalisation, labels and architecture.
        folds: names of the folds whose networks are averaged, such as ``0`` or ``all``.
        mirror_axes: axes of the network along which patches were mirrored in training.
        trainer: name of the trainer's class.
        is_imported: whether `write_model` wrote the model. Such a model contains no code.
    """

    path: str
    plan: NnunetPlan
    folds: tuple[str, ...]
    mirror_axes: tuple[int, ...]
    trainer: str
    is_imported: bool
    _files: ModelFiles
    _weights: dict[str, str]
    _trusted: bool

    @property
    def normalization(self) -> NnunetNormalization:
        """Normalisation of the image."""
        return self.plan.normalization

    def weights(self, fold: str) -> dict[str, torch.Tensor]:
        """Return the state dict of a fold, on the CPU.

        Raises:
            ModelError: the file of the fold is damaged, or contains objects other than weights.
        """
        name = self._weights[fold]
        with self._files.open_weights(name) as stream:
            shown = f"{name} of model {self.path}"
            if self.is_imported:
                return read_state(stream, shown)
            return read_checkpoint(stream, shown, trust_weights=self._trusted).weights

    def load(self, *, mirror: bool = True) -> EnsembleNetwork:
        """Return the network, which maps a normalised batch to logits, both (n, c, z, y, x).

        Args:
            mirror: whether to average the logits over mirror images along `mirror_axes`.

        Raises:
            MissingExtraError: dynamic-network-architectures is not installed.
            ModelError: weights cannot be read, or do not match the network of the plan.
        """
        networks = [
            create_network(self.plan, self.weights(fold), self.path, self.trainer)
            for fold in self.folds
        ]
        network = EnsembleNetwork(
            networks,
            self.plan.axes,
            divisor=self.plan.divisor,
            mirror_axes=self.mirror_axes if mirror else (),
            by_slice=self.plan.spatial_dims == 2,
        )
        return network.eval()


def read_model(
    path: str,
    folds: Sequence[str] | None = None,
    *,
    checkpoint: CheckpointName = "final",
    trust_weights: bool = False,
) -> TrainedModel:
    """Read plans, labels and settings of a model; `TrainedModel.load` then reads the weights.

    Args:
        path: a folder that nnU-Net has trained, a zip archive of such a folder, or an archive that
            `write_model` has written (an imported model).
        folds: names of the folds to average (default: all numbered folds in the model, or ``all``
            if there are none).
        checkpoint: which checkpoint of each fold to use: ``final``, ``best`` or ``latest``; ignored
            for an imported model.
        trust_weights: unpickle all objects in the checkpoints, even those that can run code.

    Raises:
        ModelError: the model cannot be read, or needs an unsupported feature.
        OptionError: the model lacks one of *folds*, or a fold is listed twice.
    """
    files = ModelFiles(path)
    imported = _ABOUT in files.names
    pattern = r"weights/fold_(\w+)\.pt" if imported else rf"fold_(\w+)/checkpoint_{checkpoint}\.pth"
    matches = (re.fullmatch(pattern, name) for name in sorted(files.names))
    weights = {match[1]: match[0] for match in matches if match}
    chosen = _chosen(path, folds, weights, checkpoint)
    if imported:
        about = files.json(_ABOUT)
        if about.get("format") != FORMAT:
            msg = (
                f"model {path} has the format {about.get('format')!r}, but this version reads "
                f"{FORMAT!r}; import the model again, or update chunkflow_py"
            )
            raise ModelError(msg)
        configuration, trainer = str(about.get("configuration")), str(about.get("trainer"))
        listed = about.get("mirror_axes")
        mirror = tuple(listed) if isinstance(listed, list) else (None,)
    else:
        name = weights[chosen[0]]
        with files.open_weights(name) as stream:
            first = read_checkpoint(stream, f"{name} of model {path}", trust_weights=trust_weights)
        configuration, trainer, mirror = first.configuration, first.trainer, first.mirror_axes
    plan = read_plan(path, files.json(PLANS), files.json(DATASET), configuration)
    allowed = range(plan.spatial_dims)
    if [*mirror] != [axis for axis in allowed if axis in mirror]:
        msg = (
            f"model {path} mirrors along the axes {mirror}; mirroring axes must be numbers "
            f"from 0 to {plan.spatial_dims - 1}, each at most once, in ascending order"
        )
        raise ModelError(msg)
    return TrainedModel(
        path, plan, chosen, mirror, trainer, imported, files, weights, trust_weights
    )


def _chosen(
    path: str, folds: Sequence[str] | None, weights: dict[str, str], checkpoint: str
) -> tuple[str, ...]:
    if not weights:
        msg = (
            f"model {path} has no fold with checkpoint_{checkpoint}.pth; finish the training, or "
            "choose another checkpoint with chunkflow import-model --checkpoint"
        )
        raise ModelError(msg)
    # nnU-Net averages the folds 0 to 4; a network trained on all cases is used only by request.
    chosen = tuple(folds or [fold for fold in weights if fold != "all"] or ["all"])
    missing = [fold for fold in chosen if fold not in weights]
    if missing:
        msg = (
            f"--folds {','.join(chosen)}: model {path} has no fold {', '.join(missing)}; choose "
            f"from the folds {', '.join(weights)}"
        )
        raise OptionError(msg)
    if len(set(chosen)) < len(chosen):
        msg = (
            f"--folds {','.join(chosen)} lists a fold twice; use "
            f"--folds {','.join(dict.fromkeys(chosen))}"
        )
        raise OptionError(msg)
    return chosen


def is_imported(path: str) -> bool:
    """Return whether *path* is a file that `write_model` wrote."""
    if not Path(path).is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _ABOUT in archive.namelist()


def write_model(model: TrainedModel, output: str) -> None:
    """Write a model to a zip archive that can be read without running code.

    Args:
        model: the model. The checkpoints of the folds are read one after the other.
        output: path of the archive. An existing file is replaced when the archive is complete.

    Raises:
        MissingExtraError: dynamic-network-architectures is not installed.
        ModelError: weights cannot be read, or do not match the network of the plan.
    """
    about = {
        "format": FORMAT,
        "configuration": model.plan.configuration,
        "trainer": model.trainer,
        "mirror_axes": list(model.mirror_axes),
    }
    content = io.BytesIO()
    # Stored, not compressed: weights do not become smaller.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:

        def put(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)

        put(_ABOUT, _json(about))
        for name in (PLANS, DATASET):
            put(name, _json(model._files.json(name)))
        for fold in model.folds:
            weights = model.weights(fold)
            create_network(model.plan, weights, model.path, model.trainer)
            stream = io.BytesIO()
            torch.save(weights, stream)
            put(f"weights/fold_{fold}.pt", stream.getvalue())
    write_whole(Path(output), content.getvalue())


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
