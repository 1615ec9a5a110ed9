"""deploy/hashes.py: each pinned package has a hash, and pip installs nothing else."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "tiny_package-1.2-py3-none-any.whl"


@pytest.fixture
def hashes(tmp_path, monkeypatch):
    """The script as a module, which reads and writes files of the test."""
    spec = importlib.util.spec_from_file_location("hashes", ROOT / "deploy" / "hashes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(module, "HASHES", tmp_path / "hashes.txt")
    module.CONSTRAINTS.write_text("# a comment\nTiny_Package==1.2\n")
    return module


def test_each_pinned_package_has_hashes(hashes):
    """Those of its version, in constraints.txt and deploy/hashes.txt alike."""
    text = (ROOT / "deploy" / "hashes.txt").read_text()
    pins, blocks = hashes.pins((ROOT / "constraints.txt").read_text()), hashes.blocks(text)
    assert list(blocks) == list(pins)
    for name, version in pins.items():
        head, *lines = [line.removesuffix(" \\") for line in blocks[name].splitlines()]
        assert head == f"{name}=={version}"
        assert lines
        assert all(re.fullmatch("    --hash=sha256:[0-9a-f]{64}", line) for line in lines), name
    assert "://" not in text


def test_the_image_installs_what_is_hashed():
    """The Dockerfile lets pip install only what is hashed, and the build has the files for it."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "pip install --require-hashes --no-deps -r /tmp/hashed.txt" in dockerfile
    installs = [line for line in dockerfile.splitlines() if re.search(r"(?<!-)pip install", line)]
    options = ("torch==", "--dry-run", "--require-hashes", "--no-deps .")
    for line in installs:
        assert any(each in line for each in options), line
    sent = (ROOT / ".dockerignore").read_text()
    assert "!deploy/hashes.py" in sent
    assert "!deploy/hashes.txt" in sent


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp39-abi3-manylinux2014_aarch64.whl", True),
        ("a-1.tar.gz", True),
        ("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp312-cp312-win_amd64.whl", False),
        ("a-1-cp313-cp313t-macosx_11_0_arm64.whl", False),
        ("a-1-py2-none-any.whl", False),
        ("a-1.win32.exe", False),
    ],
)
def test_files_that_an_image_cannot_install_are_left_out(hashes, name, expected):
    """Wheels of other systems and other versions of Python."""
    assert hashes.fits(name) is expected


class _Index(BaseHTTPRequestHandler):
    """A package index with the files of one package."""

    def __init__(self, files, kind, *args):
        self._files, self._kind = files, kind
        super().__init__(*args)

    def do_GET(self):
        files = [{"filename": name, "hashes": {"sha256": h}} for name, h in self._files.items()]
        body = json.dumps({"files": files if self.path == "/tiny-package/" else []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", self._kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def index(hashes, monkeypatch):
    """Starts an index that has such files; pip uses it."""
    servers = []

    def start(files, kind=hashes.FORMAT):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, files, kind))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def make_wheel(folder):
    """Make a wheel; return its SHA-256."""
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        info = "tiny_package-1.2.dist-info"
        wheel.writestr("tiny_package.py", "")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()


def pip_install(tmp_path, requirements):
    """Let pip install from a file of requirements and a folder with the wheel."""
    return subprocess.run(
        [
            sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--find-links",
            tmp_path, "--target", tmp_path / "target", "--require-hashes", "--no-deps", "-r",
            requirements,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def report(tmp_path, version="1.2"):
    """Write what pip says that it would install."""
    names = {"tiny.package": version, "chunkflow_py": "0.2.0"}
    items = [{"metadata": {"name": name, "version": v}} for name, v in names.items()]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"install": items}))
    return path


def test_pip_installs_only_files_with_a_hash_of_the_index(hashes, index, tmp_path, capsys):
    """A file that was changed after `renew` is refused."""
    index({WHEEL: make_wheel(tmp_path), "tiny-package-1.2.tar.gz": "ab" * 32,
           "tiny_package-1.3-py3-none-any.whl": "cd" * 32})  # fmt: skip
    hashes.renew()
    hashes.select(report(tmp_path))
    selected = capsys.readouterr().out
    assert selected.startswith("tiny-package==1.2 \\\n    --hash=sha256:")
    assert selected.count("--hash") == 2
    assert "cd" * 32 not in selected
    requirements = tmp_path / "hashed.txt"
    requirements.write_text(selected)
    done = pip_install(tmp_path, requirements)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / WHEEL, "a") as wheel:
        wheel.writestr("more.py", "")
    done = pip_install(tmp_path, requirements)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_what_has_no_hash_is_refused(hashes, index, tmp_path):
    """In one sentence: another version, a release without files, an index of another format."""
    hashes.HASHES.write_text("")
    for version in ("1.2", "1.3"):
        with pytest.raises(SystemExit, match=r"tiny-package==1\.[23] has no hash; add it to"):
            hashes.select(report(tmp_path, version))
    index({"tiny_package-1.2-cp312-cp312-win_amd64.whl": "ab" * 32})
    with pytest.raises(SystemExit, match="the index has no file of tiny-package==1.2"):
        hashes.renew()
    index({}, "text/html")
    with pytest.raises(SystemExit, match="the index answers with text/html"):
        hashes.renew()
