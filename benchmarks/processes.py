"""Every measurement is a process of its own: what starts it, and on which machine it ran."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
TIME_LIMIT_S = 1800
_INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
)


def run_json(
    python: Path | str,
    script: str,
    job: dict[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a script of `peers/` in a fresh process.

    Returns:
        What the script reports, and ``process_s``, seconds from the start of the process to its
        end; or ``error``.
    """
    # Nothing but the processors this process may use says how many threads a tool starts with.
    variables = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    variables |= {"PYTHONPATH": str(ROOT), **(environment or {})}
    command = [str(python), str(HERE / "peers" / script), json.dumps(job)]
    start = perf_counter()
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=variables,
            timeout=TIME_LIMIT_S,
        )
    except FileNotFoundError:
        return {"error": f"there is no {python}; make peers"}
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIME_LIMIT_S} s"}
    seconds = perf_counter() - start
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": " ".join(said[-2:])[:300]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "process_s": seconds}


def machine(libraries: Iterable[str]) -> dict[str, Any]:
    """Return what the figures depend on, as far as this process knows without a heavy library.

    Args:
        libraries: names of packages whose versions are told.
    """
    information = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {
        key.strip(): value.strip() for key, _, value in (row.partition(":") for row in information)
    }
    flags = fields.get("flags", "").split()
    versions = {}
    for name in (*libraries, "chunkflow_py"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": fields.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "threads": len(os.sched_getaffinity(0)),
        "instructions": [flag for flag in _INSTRUCTIONS if flag in flags],
        "bfloat16": "avx512_bf16" in flags or "amx_bf16" in flags,
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
    }


def say(text: str) -> None:
    """Print progress, which is no result."""
    print(text, file=sys.stderr, flush=True)
