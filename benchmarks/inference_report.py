"""What the recorded runs of `inference.py` mean: lines of measured value, target and verdict.

Pure functions of the recorded JSON, so that a table in the documentation cannot differ from it.

A *record* is one process: ``case``, ``contestant``, ``round``, and either what it measured or
``error``. Contestants are ``chunkflow``, ``monai``, and this package as ``ours BACKEND DTYPE``.
"""

from __future__ import annotations

from statistics import median

import records
from records import Report, spread
from table import Line, at_least, at_most, not_measured, within

PEERS = ("chunkflow", "monai")
TITLES = {"chunkflow": "chunkflow 1.2.0", "monai": "MONAI 1.6"}
TARGETS = {"float32": 2.8, "bfloat16": 4.5}
OUTSIDE_LIMIT = 0.03
FORECAST_LIMIT = 0.15
WORKSPACE_LIMIT = 0.05
FLOAT32_ERROR_LIMIT = 1e-5
MEAN_LIMIT = 0.01
IDENTITY_TARGETS = {"chunkflow": 10.0, "monai": 3.0}
GPU_OUTSIDE_LIMIT, GPU_BUSY_TARGET = 0.05, 0.95

# --- records -------------------------------------------------------------------------------------


class Case(records.Case):
    """The records of one case by contestant: peers, or this package with a backend and dtype."""

    @property
    def ours(self) -> list[str]:
        """Contestants that are this package."""
        return [name for name in self.records if name.startswith("ours ")]

    def peers(self) -> list[str]:
        """Return the peers that ran."""
        return [name for name in PEERS if name in self.records]


# --- lines ---------------------------------------------------------------------------------------


def lines(report: Report) -> list[Line]:
    """Return every line of the table."""
    result = arithmetic_lines(report)
    for name, settings in report["cases"].items():
        case = Case(name, report)
        if settings["kind"] == "network":
            result += network_lines(case, report)
        elif settings["kind"] == "identity":
            result += identity_lines(case)
        result += forecast_lines(case)
    result += workspace_lines(report)
    result += error_lines(report)
    return result + gpu_lines(report)


def arithmetic_lines(report: Report) -> list[Line]:
    """Return what the machine can multiply, the bound of every network on it."""
    rates = report["arithmetic"].get("operations_per_s", {})
    return [
        Line("this machine", f"product of large matrices, {dtype}", f"{rate / 1e9:.0f} GFLOP/s")
        for dtype, rate in rates.items()
    ]


def network_lines(case: Case, report: Report) -> list[Line]:
    """Return the lines of a network: seconds, share outside of the forward, ratios to the peers."""
    result = []
    for name in (*case.peers(), *case.ours):
        text = spread(case.values(name, "wall_s"), "s")
        if name in case.ours:
            for peer in case.peers():
                ratio = case.median(peer, "wall_s") / case.median(name, "wall_s")
                text += f", {ratio:.2f} x {peer}"
            bare = case.median(name, "bare_forward_s") * case.median(name, "patches")
            text += f", bare forward passes {bare:.3g} s"
        result.append(Line(case.name, f"wall time, {TITLES.get(name, name)}", text))
    for name, error in case.errors.items():
        result.append(not_measured(case.name, f"wall time, {TITLES.get(name, name)}", "", error))
    what = "time outside the network's forward pass, share of the wall time"
    if case.ours:
        shares = {
            name: median(
                1 - record["forward_s"] / record["wall_s"] for record in case.records[name]
            )
            for name in case.ours
        }
        worst = max(shares, key=lambda name: shares[name])
        note = f" (most: {worst.removeprefix('ours ')})"
        result.append(at_most(case.name, what, shares[worst], OUTSIDE_LIMIT, "%", note))
    else:
        result.append(not_measured(case.name, what, f"at most {OUTSIDE_LIMIT:.1%}", "no run"))
    for dtype, target in TARGETS.items():
        result.append(_speed_line(case, report, dtype, target))
        result += _bound_lines(case, report, dtype)
    return [*result, *mean_lines(case)]


def _speed_line(case: Case, report: Report, dtype: str, target: float) -> Line:
    what = f"speed in {dtype} relative to the faster peer"
    words = f"at least {target:.2f} x"
    names = [name for name in case.ours if name.endswith(f" {dtype}")]
    if dtype == "bfloat16" and not report["machine"]["bfloat16"]:
        reason = "the processor has neither avx512_bf16 nor AMX"
        return not_measured(case.name, what, words, reason)
    reason = case.missing(PEERS)
    if reason or not names:
        return not_measured(case.name, what, words, reason or f"no run in {dtype}")
    peer, own = case.fastest(case.peers()), case.fastest(names)
    ratio = case.median(peer, "wall_s") / case.median(own, "wall_s")
    note = f" ({own.removeprefix('ours ')} compared with {peer})"
    return at_least(case.name, what, ratio, target, "x", note)


def _bound_lines(case: Case, report: Report, dtype: str) -> list[Line]:
    """Return how near the network comes to the machine's own speed of multiplication."""
    names = [name for name in case.ours if name.endswith(f" {dtype}")]
    rate = report["arithmetic"].get("operations_per_s", {}).get(dtype)
    count = report["arithmetic"].get("operations", {}).get(case.settings["model"])
    if not names or not rate or not count:
        return []
    own = case.fastest(names)
    patches = case.median(own, "patches")
    reached = count * patches / case.median(own, "forward_s")
    result = [
        Line(
            case.name,
            f"speed of the forward pass, {dtype}",
            f"{reached / 1e9:.0f} GFLOP/s, {reached / rate:.0%} of the speed of large "
            f"matrix products ({own.removeprefix('ours ')})",
        )
    ]
    if case.peers():
        peer = case.fastest(case.peers())
        most = case.median(peer, "wall_s") / (count * patches / rate)
        result.append(
            Line(
                case.name,
                f"speed if the forward pass ran at the speed of large matrix products, {dtype}",
                f"{most:.2f} x {peer}",
            )
        )
    return result


def mean_lines(case: Case) -> list[Line]:
    """Return whether every contestant did the same job: the means of their outputs."""
    means = {name: records[0]["mean"] for name, records in case.records.items()}
    counts = {records[0]["patches"] for records in case.records.values()}
    if len(means) < 2:
        return []
    middle = median(means.values())
    furthest = max(means, key=lambda name: abs(means[name] - middle))
    difference = abs(means[furthest] / middle - 1)
    numbers = " or ".join(str(count) for count in sorted(counts))
    note = f" ({furthest}; {numbers} patches each)"
    what = "difference between the outputs' means"
    return [at_most(case.name, what, difference, MEAN_LIMIT, "%", note)]


def identity_lines(case: Case) -> list[Line]:
    """Return the lines of blending alone: voxels a second, and peak memory."""
    voxels = 1.0
    for size in case.settings["size"]:
        voxels *= size
    result = [
        Line(
            case.name,
            f"speed, {TITLES.get(name, name)}",
            spread([voxels / wall / 1e6 for wall in case.values(name, "wall_s")], "Mvoxel/s"),
        )
        for name in (*case.peers(), *case.ours)
    ]
    for peer, target in IDENTITY_TARGETS.items():
        what, words = f"speed relative to {TITLES[peer]}", f"at least {target:.2f} x"
        if not case.ours or peer not in case.records:
            reason = case.missing((peer, "ours torch float32"))
            result.append(not_measured(case.name, what, words, reason))
            continue
        own = case.ours[0]
        ratio = case.median(peer, "wall_s") / case.median(own, "wall_s")
        result.append(at_least(case.name, what, ratio, target, "x"))
    for peer in PEERS:
        what = f"peak memory compared with {TITLES[peer]}"
        if not case.ours or peer not in case.records:
            reason = case.missing((peer, "ours torch float32"))
            result.append(not_measured(case.name, what, "at most the peer's", reason))
            continue
        peak = max(case.values(case.ours[0], "peak_bytes"))
        limit = min(case.values(peer, "peak_bytes"))
        result.append(at_most(case.name, what, peak, limit, "GB"))
    return [*result, *mean_lines(case)]


def forecast_lines(case: Case) -> list[Line]:
    """Return how far the forecast of peak memory was from what was measured, at worst."""
    what = "estimated peak memory compared with the measured peak"
    ratios = {
        name: max((r["forecast_bytes"] / r["peak_bytes"] for r in records), key=_distance)
        for name, records in case.records.items()
        if all("forecast_bytes" in record for record in records)
    }
    if not ratios:
        if not case.ours:
            return []
        words = f"within {FORECAST_LIMIT:.0%}"
        return [not_measured(case.name, what, words, "there is no estimate")]
    name = max(ratios, key=lambda n: _distance(ratios[n]))
    peak = max(case.values(name, "peak_bytes"))
    note = f" of {peak / 1e9:.2f} GB ({name.removeprefix('ours ')})"
    return [within(case.name, what, ratios[name], FORECAST_LIMIT, note)]


def _distance(ratio: float) -> float:
    return abs(ratio - 1)


def workspace_lines(report: Report) -> list[Line]:
    """Return whether a deeper chunk needs more memory beyond its input and output."""
    names = [name for name, case in report["cases"].items() if case["kind"] == "workspace"]
    if len(names) != 2:
        return []
    what = "workspace of the deeper chunk compared with that of the other one"
    words = f"within {WORKSPACE_LIMIT:.0%}"
    section = "workspace"
    needs = {}
    for name in names:
        case = Case(name, report)
        if not case.ours:
            return [not_measured(section, what, words, case.missing(("ours torch float32",)))]
        records = case.records[case.ours[0]]
        # What was resident before the call is the program and the input.
        needs[name] = median(
            r["peak_bytes"] - r["before_bytes"] - r["output_bytes"] for r in records
        )
    shallow, deep = names
    result = [Line(section, name, f"{need / 1e9:.3f} GB") for name, need in needs.items()]
    return [*result, within(section, what, needs[deep] / needs[shallow], WORKSPACE_LIMIT)]


def error_lines(report: Report) -> list[Line]:
    """Return the error of each precision and backend against torch in float32."""
    result = []
    for model, errors in report["errors"].items():
        section = f"error of {model}"
        if "error" in errors:
            result.append(not_measured(section, "all", "", errors["error"]))
            continue
        for variant, error in errors.items():
            exact = variant.endswith("float32")
            limit = f"at most {FLOAT32_ERROR_LIMIT:.3g}" if exact else ""
            if "error" in error:
                result.append(not_measured(section, variant, limit, error["error"]))
                continue
            largest = error["largest"]
            note = (
                f" (largest), {error['percentile_999']:.1e} (99.9th percentile), "
                f"{error['mean']:.1e} (mean)"
            )
            if exact:
                line = at_most(section, variant, largest, FLOAT32_ERROR_LIMIT, "", note)
            else:
                line = Line(section, variant, f"{largest:.3g}{note}")
            result.append(line)
    return result


def gpu_lines(report: Report) -> list[Line]:
    """Return the lines of the GPU, or that there was none."""
    gpu = report["gpu"]
    outside, busy = (
        "time outside the forward pass, ten chunks",
        "time in which the GPU is busy, ten chunks",
    )
    if not gpu:
        return []
    if not gpu.get("runs"):
        reason = gpu.get("note", "not run")
        return [
            not_measured("GPU", outside, f"at most {GPU_OUTSIDE_LIMIT:.1%}", reason),
            not_measured("GPU", busy, f"at least {GPU_BUSY_TARGET:.1%}", reason),
        ]
    section = f"GPU: {gpu['device']}"
    best = min(gpu["runs"], key=lambda run: run["wall_s"])
    result = [
        Line(section, f"ten chunks, {run['name']}", f"{run['wall_s']:.3g} s") for run in gpu["runs"]
    ]
    note = f" ({best['name']})"
    result.append(at_most(section, outside, best["outside_share"], GPU_OUTSIDE_LIMIT, "%", note))
    result.append(at_least(section, busy, best["busy_share"], GPU_BUSY_TARGET, "%", note))
    for run in gpu["runs"]:
        if "monai_wall_s" in run:
            ratio = run["monai_wall_s"] / run["wall_s"]
            result.append(
                Line(section, f"speed relative to MONAI, {run['name']}", f"{ratio:.2f} x")
            )
    return result
