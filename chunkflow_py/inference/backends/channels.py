"""One output channel where several were asked for: stored in each of them, as by chunkflow 1.x."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass
class ChannelSpreader:
    """Repeats a single channel, with one warning.

    Attributes:
        model: name or file of the network, for the warning.
        channels: number of channels that were asked for.
    """

    model: str
    channels: int
    _warned: bool = field(default=False, init=False)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return (n, channels, z, y, x) of (n, 1, z, y, x), as a view; another shape as it is."""
        if output.ndim != 5 or output.shape[1] != 1 or self.channels == 1:
            return output
        if not self._warned:
            self._warned = True
            logger.warning(
                "model %s returned 1 channel, which is stored %d times; give "
                "--num-output-channels 1 to store it once",
                self.model,
                self.channels,
            )
        return output.expand(-1, self.channels, -1, -1, -1)
