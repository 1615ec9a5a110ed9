"""Write the bundles of `rigs.monai_cases`, and what MONAI itself computes with them.

python tests/rigs/monai_oracle.py FOLDER CASE [--weights]

FOLDER gets CASE.zip with the network as TorchScript, and CASE.npz with the result, whose axes are
c, z, y, x; with --weights also CASE-weights.zip, with a state dict. The Python must have MONAI.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from rigs.monai_bundles import (
    metadata,
    monai_network,
    voxels,
    write_bundle,
    write_nifti,
    zipped,
)
from rigs.monai_cases import CASES


def run(folder, image):
    """Return the result of the config of a bundle on a NIfTI file, as MONAI computes it."""
    from monai.bundle import ConfigParser
    from monai.data import decollate_batch, list_data_collate

    torch.use_deterministic_algorithms(mode=True)
    folder = Path(folder)
    parser = ConfigParser()
    parser.read_config(str(folder / "configs/inference.json"))
    parser.read_meta(str(folder / "configs/metadata.json"))
    parts = parser.config["postprocessing"]["transforms"]
    # The result is taken from memory.
    parser.config["postprocessing"]["transforms"] = [
        each for each in parts if each["_target_"] != "SaveImaged"
    ]
    script = folder / "models/model.ts"
    if script.is_file():
        network = torch.jit.load(script)
    else:
        network = parser.get_parsed_content("network_def")
        network.load_state_dict(torch.load(folder / "models/model.pt", weights_only=True))
    network.eval()
    batch = list_data_collate([parser.get_parsed_content("preprocessing")({"image": str(image)})])
    with torch.no_grad():
        inferer = parser.get_parsed_content("inferer")
        batch["pred"] = inferer(inputs=batch["image"], network=network)
    found = parser.get_parsed_content("postprocessing")(decollate_batch(batch)[0])["pred"]
    return np.ascontiguousarray(np.asarray(found).transpose(0, 3, 2, 1))


def write(name, folder, *, weights):
    """Write bundles and result of a case into *folder*."""
    case, folder = CASES[name], Path(folder)
    network = monai_network(dict(case.inference["network_def"], out_channels=case.outputs))
    meta = metadata(1, case.outputs)
    with tempfile.TemporaryDirectory() as temporary:
        image = write_nifti(
            Path(temporary) / "image.nii", voxels(case.size), case.spacing, case.code
        )
        parts = {name: "model.ts", f"{name}-weights": "model.pt"}
        for each, kind in parts.items():
            written = write_bundle(
                Path(temporary) / each, case.inference, network, weights=(kind,), meta=meta
            )
            if weights or kind == "model.ts":
                shutil.move(zipped(written), folder / f"{each}.zip")
        result = run(Path(temporary) / f"{name}-weights", image)
    if (result == result.astype(np.uint8)).all():
        result = result.astype(np.uint8)
    np.savez_compressed(folder / f"{name}.npz", result=result)


if __name__ == "__main__":
    write(sys.argv[2], sys.argv[1], weights="--weights" in sys.argv)
