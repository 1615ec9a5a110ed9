"""The spec of a run: a complete description of its steps, with two hashes.

| hash           | covers                                          | used in                       |
|----------------|-------------------------------------------------|-------------------------------|
| `RunStep.hash` | everything that determines the output of a step | records, messages, ``--fork`` |
| `Spec.digest`  | every byte of the spec                          | ``RUN#sha256=…`` of workers   |

The hash of a step covers:

* the options of its operators, including defaults, except for `NEUTRAL` options, which do not
  change the output, and except for `NEWER` options at their default;
* ``--mip`` and the device class of the step;
* the plan of the step, and the content of the files that the step needs;
* `OUTPUT_VERSION`, a number that increases when a new version of the package yields other bytes for
  the same options and input;
* the hash of the previous step, whose output the step may read.

The hash does not cover the version of the package, the queue, or the spelling of the command line.
A new version of the package that yields the same bytes can therefore continue a run.

The stored spec calls steps ``stages``, and the arguments of their operators ``words``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from chunkflow_py.core import strict_json
from chunkflow_py.core.task import Output
from chunkflow_py.errors import OptionError

FORMAT = "chunkflow run 2"
OLDER = "chunkflow run 1"  # format of version 0.1.0, which did not store outputs; read-only
# Increased when the same options, files and input yield other bytes than before.
OUTPUT_VERSION = 2
# Options that do not change a byte of the result; the compute profile covers the device.
NEUTRAL = {"label", "parallel", "device", "lower_batch", "upload_log", "trust_weights"}
# Options that are newer than `OUTPUT_VERSION`, by operator and name, each with its default. The
# default yields the bytes of earlier versions. The hash does not cover such an option at its
# default, so that the hashes of older specs do not change.
NEWER = {
    ("inference", "normalize_mean"): None,
    ("inference", "normalize_std"): None,
    ("inference", "normalize_mask"): None,
    ("inference", "patch_precision"): "float32",
    ("inference", "resample"): None,
    ("inference", "affinity_order"): "xyz",
    ("inference", "affinity_at"): "target",
    ("inference", "folds"): None,
    ("inference", "mirror"): True,
    ("inference", "image_orientation"): None,
    ("inference", "skip_transforms"): None,
    ("link-labels", "edges_path"): None,
    ("agglomerate", "method"): "waterz",
    ("agglomerate", "affinity_offsets"): None,
    ("agglomerate", "affinity_order"): None,
    ("agglomerate", "affinity_at"): "target",
    ("preview", "overlay"): None,
    ("save-points", "format_"): None,
    ("neuroglancer", "volume_path"): None,
    ("mesh-manifest", "shards"): None,
    ("aggregate-skeleton-fragments", "shards"): None,
}
FILE_MARK = "chunkflow-file:"


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of *content* as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file that a step needs, stored in the run directory.

    Attributes:
        name: name of the file, without its folder.
        sha256: SHA-256 of the content, 64 hexadecimal digits; workers reject any other content.
        role: ``code`` if a worker executes the file, else ``data``.
        origin: address from which `submit` fetched the file, without credentials; empty for a file
            of the submitter's machine. Workers never use this address; it is for information only.
    """

    name: str
    sha256: str
    role: str
    origin: str = ""

    @property
    def key(self) -> str:
        """Key of the file in the run directory."""
        return f"files/{self.sha256}/{self.name}"

    @property
    def placeholder(self) -> str:
        """Text that stands for the path of the file in the stored arguments of operators."""
        return f"{FILE_MARK}{self.sha256}/{self.name}"


@dataclass(frozen=True)
class StepOutput:
    """An output of one operator, and how to compute the box that a task writes to it.

    Attributes:
        operator: name of the operator.
        output: address of the output, and whether it is a volume, a file or a set of objects.
        moves: the changes that earlier operators make to the box of a task, in order.
            ``("move", low, high)`` adds *low* to the start and *high* to the stop of the box.
            ``("turn", order)`` reorders the axes of the box. Each of low, high and order has three
            numbers, zyx.
        scale: size of a voxel of the operator's input, in voxels of the pipeline's input, zyx. A
            fraction is stored as text, such as ``"3/2"``.
        domain: bounds of the volume that the operator's input comes from, as text; ``None`` if they
            are unknown. A task writes no voxels outside of these bounds.
        is_known: whether the written box can be computed from the box of the task.
        documents: key and SHA-256 of each metadata document of the volume at submission.
    """

    operator: str
    output: Output
    moves: tuple[tuple[Any, ...], ...] = ()
    scale: tuple[int | str, ...] = (1, 1, 1)
    domain: str | None = None
    is_known: bool = True
    documents: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RunStep:
    """One step of a run: a pipeline and the plan of its tasks.

    Attributes:
        name: name of the step.
        arguments: command-line arguments of the operators, with `File.placeholder` for the path of
            a file; stored as ``words``.
        source: command-line arguments of the operator that generated the tasks, for information
            only.
        mip: value of the global option ``--mip``.
        options: for each operator, its name and the options that the hash covers.
        plan: JSON description of the tasks; see `chunkflow_py.tasks.task_plan`.
        plan_sha256: SHA-256 of the binary file with the rest of the plan. The file is empty if
            *plan* alone describes the tasks.
        tasks: number of tasks.
        files: files that the operators need.
        code: descriptions of code that the step runs and that is not part of the package.
        device_class: ``same`` if all workers must have the same compute profile (backend, device,
            threads and precision); ``any`` if their profiles may differ.
        previous: hash of the previous step; empty for the first step.
        outputs: outputs of the operators.
        output_version: `OUTPUT_VERSION` of the package version that made the run; not stored.
    """

    name: str
    arguments: tuple[str, ...]
    source: tuple[str, ...]
    mip: int
    options: tuple[tuple[str, dict[str, Any]], ...]
    plan: dict[str, Any]
    plan_sha256: str
    tasks: int
    files: tuple[File, ...] = ()
    code: tuple[str, ...] = ()
    device_class: str = "same"
    previous: str = ""
    outputs: tuple[StepOutput, ...] = ()
    output_version: int = OUTPUT_VERSION

    @cached_property
    def hash(self) -> str:
        """Hash of everything that determines the bytes of the output, 32 hexadecimal digits."""
        covered = [
            self.output_version,
            self.mip,
            self.options,
            self.plan,
            self.plan_sha256,
            sorted((file.name, file.sha256) for file in self.files),
            self.device_class,
            self.previous,
        ]
        return sha256_of(_canonical(covered))[:32]


@dataclass(frozen=True)
class Spec:
    """Complete description of a run for its workers.

    Attributes:
        steps: steps in the order of their execution.
        queue: URL of the queue; empty for a run on Dask.
        folder: working directory of the submission, to which relative paths refer.
        version: version of the package that made the run.
        reused: names of the steps that are reused from other runs (``--fork``), each with the URL
            of the run that provides its output.
        format: format of the stored spec: `FORMAT`, or `OLDER` if version 0.1.0 made the run.
    """

    steps: tuple[RunStep, ...]
    queue: str
    folder: str
    version: str
    reused: dict[str, str]
    format: str = FORMAT

    @cached_property
    def content(self) -> bytes:
        """The stored form of the spec: canonical JSON, in which equal specs have equal bytes."""
        values = asdict(self)
        values["stages"] = values.pop("steps")
        for step in values["stages"]:
            del step["output_version"]
            step["words"] = step.pop("arguments")
            for file in step["files"]:
                if not file["origin"]:  # as in specs of versions that fetched no files
                    del file["origin"]
            if self.is_older:
                del step["outputs"]
        return _canonical(values) + b"\n"

    @property
    def is_older(self) -> bool:
        """Whether version 0.1.0 of the package made the run; such a run can only be read."""
        return self.format == OLDER

    def check_current(self) -> None:
        """Check that this version of the package can continue the run.

        Raises:
            OptionError: an older version made the run; the message names both formats.
        """
        if self.is_older:
            msg = (
                f"the run was made by chunkflow_py {self.version} in the format {OLDER!r}, but "
                f"this version can only continue runs in the format {FORMAT!r}; use chunkflow_py "
                f"{self.version} for this run, or submit the pipeline again with another --run; "
                "status and verify can read the old run"
            )
            raise OptionError(msg)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `content`, 64 hexadecimal digits."""
        return sha256_of(self.content)

    @property
    def hash(self) -> str:
        """Hash of the last step; the hash of each step covers the hash of the previous step."""
        return self.steps[-1].hash

    @property
    def first(self) -> str | None:
        """Name of the first step that is not reused; ``None`` if all steps are reused."""
        return next((each.name for each in self.steps if each.name not in self.reused), None)

    def step(self, name: str) -> RunStep:
        """Return the step called *name*.

        Raises:
            OptionError: the run does not have this step.
        """
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(step.name for step in self.steps)
        msg = f"the run has no step {name!r}; its steps are {names}"
        raise OptionError(msg)

    @classmethod
    def parse(cls, content: bytes) -> Spec:
        """Return the spec stored as *content*.

        Raises:
            OptionError: *content* is not a spec, is not canonical JSON, or has an unknown format.
        """
        try:
            values = strict_json.loads(content)
            format_ = values["format"]
            if format_ in (FORMAT, OLDER):
                steps = tuple(_step(each, format_) for each in values.pop("stages"))
                return cls(steps=steps, **values)._checked(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = (
                f"the file is not the spec of a run ({type(error).__name__}: {error}); restore the "
                "file from a copy, or correct the URL of the run"
            )
            raise OptionError(msg) from error
        msg = (
            f"the run has the format {format_!r}, but this version of chunkflow_py reads "
            f"{FORMAT!r}; update chunkflow_py"
        )
        raise OptionError(msg)

    def _checked(self, content: bytes) -> Spec:
        # Equal specs must have equal bytes, and so the same SHA-256. Additional spaces would also
        # make it easier to forge a spec whose SHA-256 begins with given digits.
        if self.content != content:
            msg = "the content is not the canonical JSON that submit writes"
            raise ValueError(msg)
        return self


def options_of(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return *name*, and those options of the operator that the hash of a step covers."""
    kept = {
        key: value
        for key, value in options.items()
        if key not in NEUTRAL and ((name, key) not in NEWER or value != NEWER[name, key])
    }
    return name, json.loads(_canonical(kept))


def differences(old: RunStep, new: RunStep) -> list[str]:
    """Return one phrase for each reason why two steps have different hashes."""
    phrases = []
    if [name for name, _ in old.options] != [name for name, _ in new.options]:
        old_names, new_names = (" ".join(name for name, _ in each.options) for each in (old, new))
        phrases.append(f"the pipeline is {new_names}, not {old_names}")
    else:
        for (name, was), (_, now) in zip(old.options, new.options, strict=True):
            for key in sorted(was.keys() | now.keys()):
                old_value, new_value = (o.get(key, NEWER.get((name, key))) for o in (was, now))
                if old_value != new_value:
                    option = key.replace("_", "-")
                    phrases.append(f"{name} --{option} is {new_value}, not {old_value}")
    old_files, new_files = (sorted(file.sha256 for file in each.files) for each in (old, new))
    others: list[tuple[str, Any, Any]] = [
        ("--mip", old.mip, new.mip),
        ("the plan of tasks", (old.plan, old.plan_sha256), (new.plan, new.plan_sha256)),
        ("the content of a file", old_files, new_files),
        ("--device-class", old.device_class, new.device_class),
        ("the previous step", old.previous, new.previous),
    ]
    return phrases + [f"{name} differs" for name, one, other in others if one != other]


def _step(values: dict[str, Any], format: str) -> RunStep:
    values["output_version"] = 1 if format == OLDER else OUTPUT_VERSION
    values["arguments"] = values.pop("words")
    values["outputs"] = tuple(_output(each) for each in values.get("outputs", ()))
    values["files"] = tuple(File(**file) for file in values["files"])
    for name in ("arguments", "source", "code"):
        values[name] = tuple(values[name])
    values["options"] = tuple((name, options) for name, options in values["options"])
    return RunStep(**values)


def _output(values: dict[str, Any]) -> StepOutput:
    values["output"]["shrink"] = tuple(values["output"]["shrink"])
    values["output"] = Output(**values["output"])
    values["moves"] = tuple(
        (kind, *(tuple(each) for each in numbers)) for kind, *numbers in values["moves"]
    )
    values["scale"] = tuple(values["scale"])
    values["documents"] = tuple((key, digest) for key, digest in values["documents"])
    return StepOutput(**values)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
