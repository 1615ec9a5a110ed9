"""Make the environments of the peers: one virtual environment each, kept while its pins are.

python benchmarks/peers/build.py [chunkflow] [monai] [volumes] [meshes] [queues]
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / ".envs"

# chunkflow 1.2.0 names no upper bounds; these are the last versions that it runs with.
REQUIREMENTS = {
    "chunkflow": (
        "chunkflow==1.2.0",
        "numpy<2",
        "zarr<3",
        "click<8.2",
        "setuptools<81",
        "opencv-python-headless<5",
        "torch==2.13.0",
    ),
    "monai": ("monai==1.6.1", "torch==2.13.0"),
    "volumes": (
        "zarr==3.1.6",
        "zarrs==0.2.3",
        "tensorstore==0.1.86",
        "cloud-volume==12.15.2",
        "tifffile==2026.3.3",
        "imagecodecs==2026.3.6",
        "dask==2026.8.0",
    ),
    "meshes": ("igneous-pipeline==4.37.0",),
    "queues": ("task-queue==2.14.3", "daisy==2.0.0"),
}


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, made or not."""
    return FOLDER / peer / "bin" / "python"


def build(peer: str) -> None:
    """Make the environment of *peer*, unless it is there with these very requirements.

    Raises:
        SystemExit: pip failed.
    """
    wanted = "\n".join(REQUIREMENTS[peer])
    ready = FOLDER / peer / "ready"
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"Making the environment of {peer} (minutes, once)", file=sys.stderr)
    venv.create(FOLDER / peer, clear=True, with_pip=True)
    # torch comes first and alone, so that pip takes the build that suits the machine.
    torch = [name for name in REQUIREMENTS[peer] if name.startswith("torch==")]
    for requirements in filter(None, (torch, REQUIREMENTS[peer])):
        command = [str(python_of(peer)), "-m", "pip", "install", "--quiet", *requirements]
        if subprocess.run(command, check=False).returncode:
            msg = (
                f"Error: pip could not install {' '.join(requirements)} with Python "
                f"{sys.version_info.major}.{sys.version_info.minor} for the environment of {peer}; "
                "the lines above say why (chunkflow 1.2.0 needs NumPy 1, so Python 3.11 or 3.12)"
            )
            raise SystemExit(msg)
    ready.write_text(wanted)


def main() -> None:
    """Make the environments that are named, or all."""
    for peer in sys.argv[1:] or REQUIREMENTS:
        build(peer)


if __name__ == "__main__":
    main()
