"""Run MONAI's ``sliding_window_inference`` with a gaussian window on one chunk."""

from importlib import import_module
from typing import Any

import torch
from measure import job, random_image, report, timed
from monai.inferers import sliding_window_inference
from numpy.typing import NDArray


def main() -> None:
    """Measure the call on a chunk that is in memory; the network is loaded before."""
    asked = job()
    channels = asked["channels"]
    image = random_image(asked["size"])
    if asked["model"] == "identity":

        def network(batch: torch.Tensor) -> torch.Tensor:
            # A copy, as of any network: MONAI multiplies what is returned in place.
            return batch.repeat(1, channels, 1, 1, 1)

    else:
        network = import_module(asked["model"]).InstantiatedModel
    calls = 0

    def counted(batch: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += len(batch)
        return network(batch)

    def call() -> NDArray[Any]:
        with torch.no_grad():
            inputs = torch.from_numpy(image)[None, None].float() / 255
            share = [o / p for o, p in zip(asked["overlap"], asked["patch"], strict=True)]
            output = sliding_window_inference(
                inputs, tuple(asked["patch"]), 1, counted, overlap=share, mode="gaussian"
            )
        return output[0].numpy()

    _, result = timed(call)
    report({**result, "patches": calls})


if __name__ == "__main__":
    main()
