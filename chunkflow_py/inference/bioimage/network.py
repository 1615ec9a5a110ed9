"""The network of a package between its own order of axes and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from chunkflow_py.inference.bioimage.processing import Step

_CHANNELS_FIRST = {2: "bcyx", 3: "bczyx"}


@dataclass(frozen=True)
class OutputPlan:
    """What is done with one output of the network.

    Attributes:
        name: of the output.
        axes: letters in the order of the network.
        crop: voxels to take off each side, along the spatial axes.
        steps: to do in the end.
    """

    name: str
    axes: str
    crop: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether the output is used as it is."""
        return not any(self.crop) and not self.steps and self.axes in _CHANNELS_FIRST.values()


class PackageNetwork(torch.nn.Module):
    """A network that is given (n, c, z, y, x) or (n, c, y, x), whatever the order of its axes.

    ```
    (n, c, z, y, x) -> steps -> its axes -> network -> ours -> halo off -> steps
    ```
    """

    def __init__(
        self,
        network: torch.nn.Module,
        spatial_dims: int,
        axes: str,
        steps: tuple[Step, ...],
        outputs: tuple[OutputPlan, ...],
    ) -> None:
        """Take a network, what comes before it, and what comes after each of its outputs."""
        super().__init__()
        self.network = network
        self._ours = _CHANNELS_FIRST[spatial_dims]
        self._axes, self._steps, self._outputs = axes, steps, outputs

    @property
    def changes_nothing(self) -> bool:
        """Whether the network alone would give the same."""
        plain = self._axes == self._ours and not self._steps
        return plain and len(self._outputs) == 1 and self._outputs[0].changes_nothing

    def forward(self, batch: torch.Tensor) -> Any:
        """Return (n, c, z, y, x) or (n, c, y, x), or a dict of such with several outputs."""
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
                f"the network returned {len(listed)} tensors, but its package describes "
                f"{len(names)} outputs: {', '.join(names)}; mend the description"
            )
            raise ModelError(msg)
        return dict(zip(names, listed, strict=True))

    def _finished(self, values: torch.Tensor, plan: OutputPlan) -> torch.Tensor:
        if values.ndim != len(plan.axes):
            msg = (
                f"the network returned shape {tuple(values.shape)} as {plan.name}, but its "
                f"package describes axes {plan.axes}; mend the description"
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
    """Return *values* of axes *here* with axes *there*: those of extent 1 come and go."""
    for axis in reversed(range(len(here))):
        if here[axis] not in there:
            values = values.squeeze(axis)
    kept = [letter for letter in here if letter in there]
    values = values.permute([kept.index(letter) for letter in there if letter in kept])
    for axis, letter in enumerate(there):
        if letter not in kept:
            values = values.unsqueeze(axis)
    return values
