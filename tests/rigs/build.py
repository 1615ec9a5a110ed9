"""Make the environment of the servers that tests call: `.rigs/servers`.

They have an environment of their own, because they pin other versions of the libraries that the
package uses itself. Run again, it does nothing; after a change of a pin, it is made anew.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

SERVERS = Path(__file__).parents[2] / ".rigs" / "servers"
PINS = [
    "ministack==1.5.33",  # S3 and more
]


def server(name, variable=None):
    """Return the path of a server's program, or ``None`` if it is not installed.

    Args:
        name: of the program.
        variable: name of an environment variable that may hold another path.
    """
    said = os.environ.get(variable or "")
    program = Path(said) if said else SERVERS / "bin" / name
    return program if program.is_file() else None


def build():
    """Make the environment unless it is there."""
    ready = SERVERS / ".ready"
    wanted = "\n".join([sys.version, *PINS])
    if ready.is_file() and ready.read_text() == wanted:
        return
    print(f"Making {SERVERS} with {', '.join(PINS)}", flush=True)  # noqa: T201 the only sign of life
    venv.create(SERVERS, clear=True, with_pip=True)
    (SERVERS.parent / ".gitignore").write_text("*\n")
    pip = [SERVERS / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *PINS], check=True)
    ready.write_text(wanted)


if __name__ == "__main__":
    build()
