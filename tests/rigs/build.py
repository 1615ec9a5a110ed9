"""Make the environments that the tests call upon: servers of clouds, and readers of OME-Zarr.

They are apart, because they pin other versions of the libraries that the package uses itself. Run
again, it does nothing; after a change of a pin, an environment is made anew.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

RIGS = Path(__file__).parents[2] / ".rigs"
SERVERS = RIGS / "servers"
# Each list is one call of pip. napari's window is not needed, only what its readers import.
PINS = {
    "servers": [["ministack==1.5.33"]],
    "readers": [
        [
            "ome-zarr==0.16.0", "app-model", "psygnal", "pint", "vispy", "lazy_loader", "cachey",
            "pydantic", "pydantic-settings", "platformdirs", "psutil", "tqdm", "pyyaml", "appdirs",
            "superqt", "lxml", "in-n-out",
        ],
        ["--no-deps", "napari==0.9.2", "napari-ome-zarr==0.10.0"],
    ],
}  # fmt: skip


def server(name, variable=None):
    """Return the path of a server's program, or ``None`` if it is not installed.

    Args:
        name: of the program.
        variable: name of an environment variable that may hold another path.
    """
    said = os.environ.get(variable or "")
    program = Path(said) if said else SERVERS / "bin" / name
    return program if program.is_file() else None


def build(name):
    """Make one environment unless it is there with these very pins."""
    folder, calls = RIGS / name, PINS[name]
    ready = folder / ".ready"
    wanted = "\n".join([sys.version, *(" ".join(call) for call in calls)])
    if ready.is_file() and ready.read_text() == wanted:
        return
    print(f"Making {folder} (a minute, once)", flush=True)  # noqa: T201 the only sign of life
    venv.create(folder, clear=True, with_pip=True)
    for call in calls:
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *call], check=True)
    ready.write_text(wanted)


if __name__ == "__main__":
    for each in PINS:
        build(each)
