"""Run a line of commands by chunkflow 1.2.0; ``line`` of the job: the words of the command line."""

from time import perf_counter
from typing import Any

from chunkflow.flow.divid_conquer.patch.pytorch import PyTorch
from chunkflow.flow.flow import main as run_line
from chunkflow.flow.load_precomputed import LoadPrecomputedOperator
from measure import job, memory_bytes, report


def main() -> None:
    """Measure from the first cutout to the end."""
    begun: list[float] = []
    read = LoadPrecomputedOperator.__call__

    def timed(operator: Any, *arguments: Any) -> Any:
        begun.append(perf_counter())
        return read(operator, *arguments)

    LoadPrecomputedOperator.__call__ = timed
    PyTorch.compute_device = "cpu"  # chunkflow asks for the name of a GPU, which fails without one
    run_line(job()["line"], standalone_mode=False)
    wall = perf_counter() - begun[0]
    report({"wall_s": wall, "tasks": len(begun), "peak_bytes": memory_bytes("VmHWM")})


if __name__ == "__main__":
    main()
