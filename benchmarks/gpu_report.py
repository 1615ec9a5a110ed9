"""Write the tables of docs/benchmarks-gpu.md from the results of the two benchmarks on a GPU.

    python benchmarks/gpu_report.py

Every kind of GPU has two files of results, one of `gpu_check.py` and one of `gpu_kernels.py`; their
names end with its model and the date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from page import write_between
from processes import RESULTS, ROOT, say
from recorded import NOTHING_RECORDED, read_json
from table import Line, as_markdown, at_least, at_most

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "benchmarks-gpu.md"
OVER_BARE_LIMIT, BUSY_TARGET, ERROR_LIMIT, AS_FAST_AS_MONAI = 1.05, 0.95, 1e-4, 1.0


def speed_lines(report: dict[str, Any]) -> list[Line]:
    """Return the lines of a report of `gpu_check.py`."""
    name = report["devices"][0]["name"]
    tests = report["tests"]
    text = f"{tests['passed']} passed, {len(tests['failed'])} failed"
    result = [
        Line(f"{name}: tests and errors", "tests", f"{text}, {len(tests['skipped'])} skipped"),
        at_most(
            f"{name}: tests and errors", "engine in float32, largest difference from the CPU",
            max(report["engine_errors"]), ERROR_LIMIT, "",
        ),
    ]  # fmt: skip
    for precision, error in report["errors"].items():
        text = f"largest {error['largest']:.1e}, mean {error['mean']:.1e}"
        what = f"network in {precision}, difference from float32 on the CPU"
        result.append(Line(f"{name}: tests and errors", what, text))
    for precision, run in report["speed"]["runs"].items():
        section = f"{name}: speed, {precision}"
        hours = 1e6 / run["mvoxel_per_s"] / 3600
        result += [
            Line(section, "speed", f"{run['mvoxel_per_s']:.1f} Mvoxel/s"),
            Line(section, "time for a teravoxel", f"{hours:.1f} GPU hours"),
            at_most(
                section, "wall time relative to bare forward passes", run["wall_over_bare_forward"],
                OVER_BARE_LIMIT, "x",
            ),
            Line(
                section, "time outside of the forward pass, share of the wall time",
                f"{run['outside_share']:.1%}",
            ),
            at_least(
                section, "share of the time in which the GPU is busy", run["busy_share"],
                BUSY_TARGET, "%",
            ),
        ]  # fmt: skip
        if "device_bytes" in run:
            result.append(Line(section, "memory of the GPU", f"{run['device_bytes'] / 1e9:.1f} GB"))
        if isinstance(run.get("monai_wall_s"), float):
            faster = run["monai_wall_s"] / run["wall_s"]
            result.append(
                at_least(section, "speed relative to MONAI", faster, AS_FAST_AS_MONAI, "x")
            )
    return result


def kernel_table(report: dict[str, Any]) -> str:
    """Return a table of a report of `gpu_kernels.py`: milliseconds of a patch, from a graph."""
    rules = {rule: each for rule, each in report["kernels"].items() if "failed" not in each}
    first = next(iter(rules.values()))
    text = []
    for network in first:
        patch = "×".join(map(str, first[network]["patch"]))
        text += [
            "",
            f"**{report['device']}: {network}, one patch of {patch} voxels, "
            f"{first[network]['flops'] / 1e12:.2f} TFLOP; milliseconds in a CUDA graph**",
            "",
            "| precision | layout | " + " | ".join(rules) + " | without a graph | largest error |",
            "|---" * (4 + len(rules)) + "|",
        ]
        for number, row in enumerate(first[network]["rows"]):
            times = [f"{each[network]['rows'][number]['graph_ms']:.2f}" for each in rules.values()]
            cells = [row["dtype"], row["layout"], *times, f"{row['ms']:.2f}", f"{row['error']:.1e}"]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)[1:] + "\n"


def described(path: Path, report: dict[str, Any]) -> str:
    """Return machine and versions."""
    about = report["machine"]
    return (
        f"\n{report['date']}: {about['processor']}, {about['threads']} threads; Python "
        f"{about['python']}, PyTorch {about['torch']}, cuDNN {about['cudnn']}. Recorded in "
        f"`benchmarks/results/{path.name}`.\n\n"
    )


def exchange_lines(report: dict[str, Any]) -> list[Line]:
    """Return what an exchange of patches costs and saves."""
    section = f"{report['device']}: two neighbouring tasks, float16"
    result = []
    for shared, title in ((False, "without an exchange"), (True, "with an exchange")):
        runs = [run for run in report["exchange"] if run.get("shared") is shared]
        walls = ", ".join(f"{run['wall_s']:.2f}" for run in runs)
        outside = ", ".join(f"{run['outside_share']:.1%}" for run in runs)
        counts = (
            f"{runs[0]['patches_run']} patches computed, "
            f"{runs[0]['patches_found']} taken from the exchange"
        )
        result.append(
            Line(
                section,
                title,
                f"wall times {walls} s; {outside} of them outside of the forward pass; {counts}",
            )
        )
    return result


def documented() -> str:
    """Return all tables, of the newest files last."""
    text = ""
    for path in sorted(RESULTS.glob("gpu-*.json")):
        report = read_json(path)
        text += described(path, report)
        if "kernels" in report:
            text += kernel_table(report) + "\n" + as_markdown(exchange_lines(report))
        else:
            text += as_markdown(speed_lines(report))
    return text + "\n" if text else NOTHING_RECORDED


if __name__ == "__main__":
    write_between(PAGE, documented())
    say(f"wrote {PAGE}")
