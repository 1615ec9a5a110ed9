"""Build the image of the Dockerfile without a container engine, on a base made on this machine."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
BASE, IMAGE = "localhost/base:1", "localhost/chunkflow:1"
READ_ONLY = [
    'mount --rbind "$1" "$1"',
    'mount --bind "$1/data" "$1/data"',
    'mount -t tmpfs -o mode=1777 cache "$1/cache"',
    'mount -t tmpfs -o mode=1777 temporary "$1/tmp"',
    'mount -o remount,ro,bind "$1"',
]


def missing():
    """Return why images cannot be built here, or ``None``."""
    absent = [name for name in ("buildah", "debootstrap", "unshare") if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} not installed; apt-get install buildah debootstrap"
    if os.geteuid() != 0:
        return "only root can make a base image from a folder"
    if _debian() is None:
        return "the base is made from the packages of a Debian, and this is none"
    return None


def _debian():
    """Return the code name of this Debian, or ``None`` elsewhere."""
    lines = Path("/etc/os-release").read_text().splitlines()
    said = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    return said.get("VERSION_CODENAME") if said.get("ID") == "debian" else None


def run(*command, **options):
    """Run a command; a failure tells the end of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        msg = f"{command[0]} {command[1]} ended with {done.returncode}:\n"
        raise AssertionError(msg + (done.stdout + done.stderr)[-4000:])
    return done.stdout


class Images:
    """A store of images in a folder, for root, without a service."""

    def __init__(self, folder):
        self.folder = folder
        self._program = (
            "buildah", "--root", folder / "store", "--runroot", folder / "run",
            "--storage-driver", "vfs",
        )  # fmt: skip

    def __call__(self, *arguments):
        return run(*self._program, *arguments).strip()

    def make_base(self):
        """Make an image of this Debian that has neither Python nor an init."""
        rootfs = self.folder / "rootfs"
        run("debootstrap", "--variant=minbase", _debian(), rootfs)
        container = self("from", "scratch")
        self("add", "--quiet", container, rootfs, "/")
        self("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(rootfs)

    def build(self, extras):
        """Build the Dockerfile; pip inside is told what pip is told here."""
        pip = _pip_configuration(self.folder)
        volumes = [f"--volume={source}:{target}:ro" for source, target in pip.items()]
        self(
            "build", "--isolation", "chroot", "--pull-never", "--network", "host",
            "--format", "docker", *volumes, "--build-arg", f"BASE={BASE}",
            "--build-arg", f"EXTRAS={extras}", "--tag", IMAGE, ROOT,
        )  # fmt: skip

    def configuration(self):
        """Return what the image says of itself: Entrypoint, User, Volumes, ..."""
        return json.loads(self("inspect", "--type", "image", IMAGE))["Docker"]["config"]

    def size(self):
        """Return the size of the image with its base, for people."""
        return self("images", "--format", "{{.Size}}", IMAGE)

    @contextmanager
    def container(self):
        """Yield a `Container` of the image, removed afterwards."""
        name = self("from", "--pull-never", IMAGE)
        try:
            yield Container(Path(self("mount", name)), self.configuration())
        finally:
            self("rm", name)


class Container:
    """The files of an image, and how to start a process among them as an engine would."""

    def __init__(self, root, configuration):
        self.root = root
        self.configuration = configuration

    def start(self, *arguments, user=None, entrypoint=None, read_only=False, **options):
        """Start the image's program as the first process of its own process numbers.

        Args:
            arguments: of the program.
            user: number to run as instead of the image's.
            entrypoint: to start instead of the image's.
            read_only: whether only /data, and an empty /cache and /tmp, can be written to.
            options: of `subprocess.Popen`.
        """
        user = user or self.configuration["User"]
        # Each step becomes the next, so that the program keeps the number 1.
        steps = [
            'mount -t proc proc "$1/proc" && mount -t tmpfs -o mode=1777 shm "$1/dev/shm"',
            *(READ_ONLY if read_only else []),
            'exec chroot --userspec="$2" "$1" "${@:3}"',
        ]
        return subprocess.Popen(
            [
                "unshare", "--pid", "--fork", "--kill-child", "--mount",
                "bash", "-c", " && ".join(steps), "bash", self.root, f"{user}:{user}", "env", "-i",
                f"--chdir={self.configuration['WorkingDir']}", *self.configuration["Env"],
                *(entrypoint or self.configuration["Entrypoint"]), *arguments,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def output(self, *arguments, **options):
        """Return what a process prints that ends well; arguments are those of `start`."""
        with self.start(*arguments, **options) as process:
            printed = process.communicate(timeout=120)[0]
        assert process.returncode == 0, printed
        return printed


def _pip_configuration(folder):
    """Write down for a build what pip is told here; return files and folders to show it.

    The file is /etc/pip.conf there. Files and folders of this machine that it names are shown under
    their own paths, but for the certificates: installing packages makes their file anew.
    """
    said = run(sys.executable, "-m", "pip", "config", "list")
    told = configparser.ConfigParser(interpolation=None)
    told["global"] = {}
    shown = {}
    for line in said.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        words = value.strip("'\"").replace("\\n", "\n").split()
        if section not in ("global", "install", ":env:") or not name:
            continue
        if name == "cert":
            shown[words[0]] = "/etc/pip-certificates.crt"
            words = ["/etc/pip-certificates.crt"]
        for word in words:
            path = urlsplit(word).path if word.startswith("file:") else word
            if path.startswith("/") and Path(path).exists():
                # an index has its files beside its pages
                path = str(Path(path).parent) if Path(path).name == "simple" else path
                shown[path] = path
        told["global"][name] = " ".join(words)
    file = Path(tempfile.mkdtemp(dir=folder)) / "pip.conf"
    with file.open("w") as stream:
        told.write(stream)
    return {**shown, str(file): "/etc/pip.conf"}
