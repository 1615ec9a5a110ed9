"""Which GPUs there are, asked without loading a library that would take hold of one."""

from __future__ import annotations

import subprocess

from chunkflow_py.core.plain_text import is_digits

_ANSWER_S = 20


def gpu_numbers() -> tuple[str, ...]:
    """Return the numbers of the GPUs that nvidia-smi lists; none where there is no nvidia-smi."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if is_digits(line.strip()))
