"""Find the fastest settings for running a network on this machine, by measuring.

    tuning = tune({"framework": "pytorch", "model": "net.py", "weights": "net.pt"},
                  input_patch_size=Zyx(20, 256, 256))
    print(tuning.best)

Each candidate, a combination of settings, is measured in a separate process
(`chunkflow_py.planning.tune_process`). The most important settings are varied first, because the
time limit may end the search at any point:

    given settings -> backends, precisions -> compiled -> larger batches -> other patch sizes
                                     each phase starts from the best candidate found so far
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

PATCH_SIZE = Zyx(32, 128, 128)  # default, if the network accepts any patch size
TOLERANCE = 0.02
MOST_PATCHES = 64  # in a batch
# Candidates with at least this share of the highest speed count as equally fast; of these, the one
# with the smallest error is the best.
SAME_SPEED = 0.95
BACKENDS = {"cpu": ("torch", "openvino", "onnxruntime"), "cuda": ("torch", "onnxruntime")}
# Factors of the patch size to try, zyx. Larger patches overlap less; the smallest increases come
# first. The last factors give a smaller patch, in case memory is short.
FACTORS = ((1, 1.5, 1.5), (2, 1, 1), (1, 2, 2), (1.5, 1.5, 1.5), (2, 2, 2), (1, 0.5, 0.5))


@dataclass(frozen=True)
class Candidate:
    """Settings to run the network with.

    Attributes:
        input_patch_size: size of the input patch of the network, voxels, zyx.
        output_patch_size: size of the central part of the network's output that is used, voxels,
            zyx.
        backend: library that runs the network: ``torch``, ``openvino`` or ``onnxruntime``.
        dtype: precision of the arithmetic, such as ``float32``.
        compile: whether PyTorch compiles the network.
        batch_size: number of patches per forward pass.
        tf32: whether CUDA rounds float32 factors to TF32, which has 10 bits of mantissa.
    """

    input_patch_size: Zyx
    output_patch_size: Zyx
    backend: str = "torch"
    dtype: str = "float32"
    compile: bool = False
    batch_size: int = 1
    tf32: bool = False

    @property
    def input_voxels(self) -> int:
        """Number of input voxels of a forward pass."""
        return self.batch_size * self.input_patch_size.product()

    def __str__(self) -> str:
        """Return backend, precision, batch size and patch size as text."""
        return f"{self.way}, batch {self.batch_size} of {self.input_patch_size}"

    @property
    def way(self) -> str:
        """Backend, compilation and precision as text, such as ``torch compiled tf32``."""
        return f"{self.runner} {self.precision}"

    @property
    def runner(self) -> str:
        """Backend and compilation as text, such as ``torch compiled``."""
        return f"{self.backend} compiled" if self.compile else self.backend

    @property
    def precision(self) -> str:
        """Precision of the arithmetic as text: ``tf32``, or the dtype such as ``float16``."""
        return "tf32" if self.tf32 else self.dtype


@dataclass(frozen=True)
class Measurement:
    """Time, memory and error of one candidate.

    Attributes:
        candidate: settings that were measured.
        overlap: overlap of neighbouring output patches, voxels, zyx.
        seconds: median duration of a forward pass.
        memory_bytes: peak memory of a process that runs only this candidate: GPU memory if the
            device is a GPU, else host memory.
        largest, percentile_999, mean: maximum, 99.9th percentile and mean of the absolute
            difference from PyTorch's float32 output.
        failure: why some of the numbers are missing; ``None`` if all were measured.
    """

    candidate: Candidate
    overlap: Zyx
    seconds: float | None = None
    memory_bytes: int | None = None
    largest: float | None = None
    percentile_999: float | None = None
    mean: float | None = None
    failure: str | None = None

    @property
    def voxels_per_second(self) -> float:
        """Output voxels per second, counting overlapping voxels once; 0 if not measured."""
        if self.seconds is None:
            return 0.0
        stride = self.candidate.output_patch_size - self.overlap
        return stride.product() * self.candidate.batch_size / self.seconds

    def hours(self, volume_size: Zyx) -> float | None:
        """Return the hours of all forward passes for a volume; ``None`` if not measured.

        Each patch is counted once, as in a run whose tasks exchange the patches that they share.

        Args:
            volume_size: size of the volume, voxels, zyx.
        """
        if self.seconds is None:
            return None
        sizes = self.candidate.input_patch_size, self.candidate.output_patch_size
        domain = BoundingBox.from_size((0, 0, 0), volume_size)
        grid = PatchGrid(PatchGeometry(*sizes, self.overlap), domain, "reflect", keep_stride=False)
        forwards = -(-grid.count(domain).product() // self.candidate.batch_size)
        return forwards * self.seconds / 3600


@dataclass
class Tuning:
    """Result of `tune`.

    Attributes:
        device: device that ran the network, such as ``cpu`` or ``cuda:0``.
        device_name: model of the GPU, or instruction set of the CPU.
        framework: kind of the model: ``pytorch``, ``universal`` or ``identity``.
        memory_bytes: memory that the best candidate may use.
        tolerance: largest error (99.9th percentile) that the best candidate may have.
        whole_patch: names of the PyTorch operators of the network that make each output voxel
            depend on the whole patch. If there are any, only one patch size is measured.
        measurements: measurement of each candidate, in the order of the search.
        complete: whether all candidates were measured before the time limit.
    """

    device: str
    device_name: str
    framework: str
    memory_bytes: int
    tolerance: float
    whole_patch: tuple[str, ...]
    measurements: list[Measurement]
    complete: bool = True

    @property
    def best(self) -> Measurement | None:
        """The best measurement that respects the memory limit and the tolerance, or ``None``.

        Of the measurements that respect both limits, those with at least 95 % of the highest speed
        are compared. The one with the smallest error is the best.
        """
        good = [m for m in self.measurements if self._is_acceptable(m)]
        least = SAME_SPEED * max((m.voxels_per_second for m in good), default=0.0)
        near = [m for m in good if m.voxels_per_second >= least]
        return min(near, key=lambda m: (m.percentile_999, m.memory_bytes), default=None)

    @property
    def fastest(self) -> Measurement | None:
        """The fastest measurement, whatever its memory and error; ``None`` if `best` is as fast."""
        ran = [m for m in self.measurements if not m.failure]
        top = max(ran, key=lambda m: m.voxels_per_second, default=None)
        least = self.best.voxels_per_second / SAME_SPEED if self.best else 0.0
        return top if top and top.voxels_per_second > least else None

    def _is_acceptable(self, found: Measurement) -> bool:
        if found.failure or found.memory_bytes is None or found.percentile_999 is None:
            return False
        return found.memory_bytes <= self.memory_bytes and found.percentile_999 <= self.tolerance


def tune(
    network: dict[str, Any],
    *,
    input_patch_size: Zyx | None = None,
    output_patch_size: Zyx | None = None,
    output_patch_overlap: Zyx | None = None,
    memory_bytes: int | None = None,
    tolerance: float = TOLERANCE,
    seconds: float = 600.0,
    image: NDArray[np.float32] | None = None,
    on_measured: Callable[[Measurement], None] = lambda _: None,
) -> Tuning:
    """Measure combinations of settings until all are measured or the time limit is reached.

    Args:
        network: arguments of `create_backend` that describe the network and its device.
        input_patch_size: patch size that the network was trained with, voxels, zyx (default:
            `PATCH_SIZE`). It is required if the network contains a PyTorch operator whose result
            depends on the whole patch.
        output_patch_size: size of the central part of the network's output that is used, voxels,
            zyx (default: the whole output). Other patch sizes are tried with the same margin
            between input and output patch.
        output_patch_overlap: overlap of neighbouring output patches, voxels, zyx (default: the
            default of `PatchGeometry.of`).
        memory_bytes: memory that the best candidate may use (default: all memory of the machine,
            container or GPU).
        tolerance: largest error that the best candidate may have (99.9th percentile, in units of
            the output).
        seconds: time limit of all measurements.
        image: image of shape (c, z, y, x), preprocessed for the network, from which patches are cut
            to measure the error (default: synthetic patches).
        on_measured: function that is called with each measurement.

    Raises:
        OptionError: the sizes contradict each other, or *input_patch_size* is required but missing.
        ModelError: the network cannot be loaded, or fails with all settings.
    """
    size = input_patch_size or PATCH_SIZE
    geometry = PatchGeometry.of(size, output_patch_size, output_patch_overlap)
    with TemporaryDirectory() as folder:
        place = Path(folder)
        if image is not None:
            np.save(place / "image.npy", image)
        search = _Search(network, geometry, place, monotonic() + seconds, on_measured)
        return search.run(memory_bytes, tolerance, size_is_given=input_patch_size is not None)


class _Search:
    """Measures candidates, and chooses the next candidate from the measurements taken so far."""

    found: Tuning

    def __init__(
        self,
        network: dict[str, Any],
        geometry: PatchGeometry,
        folder: Path,
        end: float,
        on_measured: Callable[[Measurement], None],
    ) -> None:
        network = {"device": "auto", "num_input_channels": 1} | network
        self.request: dict[str, Any] = {"network": network, "image": None}
        if (folder / "image.npy").exists():
            self.request["image"] = str(folder / "image.npy")
        self.geometry, self.folder, self.end = geometry, folder, end
        self.on_measured = on_measured
        self.base = Candidate(geometry.input_patch_size, geometry.output_patch_size)
        self.quickest = 0.0  # duration of the quickest process, seconds

    def run(self, memory_bytes: int | None, tolerance: float, *, size_is_given: bool) -> Tuning:
        about = self._ask("inspect", self.base, self.end - monotonic())
        if failure := about.get("failure"):
            kind = about.get("kind")
            text = failure if kind else f"the network cannot be measured: {failure}"
            raise (OptionError if kind == "option" else ModelError)(text)
        if about["whole_patch"] and not size_is_given:
            msg = (
                f"the network uses {', '.join(about['whole_patch'])}, so each output voxel "
                "depends on the patch size; set --input-patch-size to the patch size with which "
                "the network was trained"
            )
            raise OptionError(msg)
        self.about = about
        self.found = Tuning(
            about["device"],
            about["device_name"],
            about["framework"],
            memory_bytes or about["memory_bytes"],
            tolerance,
            tuple(about["whole_patch"]),
            [],
        )
        for candidate in self._candidates():
            left = self.end - monotonic()
            # a slow candidate must not use up the time of the others
            limit = left / 2 if self.found.measurements else left
            if limit <= self.quickest:
                self.found.complete = False
                break
            self._measure(candidate, limit)
        if all(m.seconds is None for m in self.found.measurements):
            first = self.found.measurements[0]
            msg = f"the network fails with all settings; with {first.candidate}: {first.failure}"
            raise ModelError(msg)
        return self.found

    # --- candidates ----------------------------------------------------------------------

    def _candidates(self) -> Iterator[Candidate]:
        yield self.base
        device = self.found.device.partition(":")[0]
        if self.found.framework == "pytorch":
            backends = [b for b in BACKENDS[device] if find_spec(b)]
            for dtype, backend in product(self.about["dtypes"], backends):
                if (candidate := replace(self.base, backend=backend, dtype=dtype)) != self.base:
                    yield candidate
            if device == "cuda":
                yield replace(self.base, tf32=True)
            yield replace(self._best("torch"), compile=True)
        yield from self._larger_batches(self._best())
        if not self.found.whole_patch:
            yield from self._other_sizes(self._best())

    def _best(self, backend: str | None = None) -> Candidate:
        """Return the best candidate so far, or the first candidate if no other is acceptable.

        If *backend* is given, only candidates of this backend are considered.
        """
        chosen = [m for m in self.found.measurements if backend in {None, m.candidate.backend}]
        best = replace(self.found, measurements=chosen).best
        return best.candidate if best else self.base

    def _larger_batches(self, best: Candidate) -> Iterator[Candidate]:
        while best.batch_size < MOST_PATCHES:
            candidate = replace(best, batch_size=2 * best.batch_size)
            if self._is_too_large(candidate):
                return
            yield candidate
            if self._best() != candidate:
                return  # not faster, or not within the limits
            best = candidate

    def _other_sizes(self, best: Candidate) -> Iterator[Candidate]:
        base, margin = self.geometry.input_patch_size, self.geometry.margin * 2
        # sizes must be multiples of the divisor; if it is unknown, use a power of two
        step = Zyx.of(self.about["divisor"] or [min(32, s & -s) for s in base])
        seen = {base}
        for factors in FACTORS:
            parts = zip(factors, base, step, strict=True)
            size = Zyx.of(max(1, round(f * s / d)) * d for f, s, d in parts)
            inner = zip(size - margin, self.geometry.output_patch_overlap, strict=True)
            if size in seen or any(output <= overlap for output, overlap in inner):
                continue
            seen.add(size)
            # keep about the number of voxels per batch that was best
            batch_size = max(1, best.input_voxels // size.product())
            candidate = replace(
                best,
                input_patch_size=size,
                output_patch_size=size - margin,
                batch_size=batch_size,
            )
            if not self._is_too_large(candidate):
                yield candidate

    def _is_too_large(self, candidate: Candidate) -> bool:
        """Return whether a candidate would exceed the memory limit; if so, record a failure.

        The memory of the candidate is extrapolated from measured candidates.
        """
        known = [m for m in self.found.measurements if m.memory_bytes is not None]
        alike = [m for m in known if m.candidate.way == candidate.way]
        if not alike:
            return False
        largest = max(alike, key=lambda m: m.candidate.input_voxels)
        ratio = candidate.input_voxels / largest.candidate.input_voxels
        idle = self.about["idle_bytes"]
        need = idle + ((largest.memory_bytes or 0) - idle) * ratio
        if ratio <= 1 or need <= self.found.memory_bytes:
            return False
        self._add(candidate, failure=f"not measured: would need about {need / 1e9:.1f} GB")
        return True

    # --- measuring -----------------------------------------------------------------------------

    def _measure(self, candidate: Candidate, limit_s: float) -> None:
        begin = monotonic()
        answer = self._ask("measure", candidate, limit_s)
        if "mean" in answer:
            took = monotonic() - begin
            self.quickest = min(self.quickest or took, took)
        names = ("seconds", "memory_bytes", "largest", "percentile_999", "mean", "failure")
        self._add(candidate, **{name: answer.get(name) for name in names})

    def _add(self, candidate: Candidate, **known: Any) -> None:
        measurement = Measurement(candidate, self.geometry.output_patch_overlap, **known)
        self.found.measurements.append(measurement)
        self.on_measured(measurement)

    def _ask(self, task: str, candidate: Candidate, limit_s: float) -> dict[str, Any]:
        name = "-".join(map(str, candidate.input_patch_size))
        request = self.request | {
            "task": task,
            "candidate": asdict(candidate),
            "reference": str(self.folder / f"{name}.npy"),
        }
        command = [sys.executable, "-m", "chunkflow_py.planning.tune_process"]
        text = json.dumps(request).encode()
        failure = None
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, timeout=max(limit_s, 0.1), check=False
            )
            output = done.stdout
            if done.returncode < 0:
                failure = f"killed by {signal.Signals(-done.returncode).name}"
                if done.returncode == -signal.SIGKILL:
                    failure += ", probably for lack of memory"
            elif done.returncode:
                last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                failure = last or f"ended with exit code {done.returncode}"
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            failure = f"the measurement did not finish within {limit_s:.0f} s; raise --seconds"
        answer: dict[str, Any] = {"failure": failure}
        for line in output.splitlines():
            answer |= json.loads(line)
        return answer
