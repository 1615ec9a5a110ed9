"""The spec of a run: everything that its workers do, and two hashes of it.

| hash           | covers                                        | is for                        |
|----------------|-----------------------------------------------|-------------------------------|
| `RunStep.hash` | what determines the bytes of a step's output  | records, messages, ``--fork`` |
| `Spec.digest`  | every byte of the spec                        | ``RUN#sha256=…`` of workers   |

A step's hash covers the options of its operators (defaults included; names of timings and numbers
of threads not), its plan, the content of its files, `ANSWER`, and the hash of the step before it,
whose output it may read. It does not cover the version of the package, the queue, or the spelling
of the command line: a hotfix elsewhere does not stop a run.

The stored spec calls steps ``stages``, and the arguments of their operators ``words``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from chunkflow_py.core import strict_json
from chunkflow_py.core.outputs import Output
from chunkflow_py.errors import OptionError

FORMAT = "chunkflow run 2"
OLDER = "chunkflow run 1"  # of version 0.1.0, which kept no outputs; it can only be read
# Increased when the same options, files and input give other bytes than before.
ANSWER = 2
# Options that change no byte of a result; the compute profile covers where it is computed.
NEUTRAL = {"label", "parallel", "device", "lower_batch", "upload_log", "trust_weights"}
FILE_MARK = "chunkflow-file:"


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of *content*, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file that a step needs, kept with the run.

    Attributes:
        name: of the file, without its folder.
        sha256: of its content, which is all that workers accept.
        role: ``code``, which is run, or ``data``.
    """

    name: str
    sha256: str
    role: str

    @property
    def key(self) -> str:
        """Where the run keeps it."""
        return f"files/{self.sha256}/{self.name}"

    @property
    def word(self) -> str:
        """Stands for the path of the file in the arguments of operators."""
        return f"{FILE_MARK}{self.sha256}/{self.name}"


@dataclass(frozen=True)
class StepOutput:
    """What an operator of a step stores of every task.

    Attributes:
        operator: its name.
        output: where.
        moves: how the box of a task becomes the box that reaches the operator, in order:
            ``("move", low, high)`` adds to its corners, ``("turn", order)`` reorders its axes;
            three numbers each.
        scale: voxels of the pipeline's input per voxel of the operator's chunk, zyx.
        domain: bounds beyond which the chunk does not reach, if known.
        is_known: whether the box that is saved follows from the task's.
        documents: metadata of the volume as it was when the run was made: key -> SHA-256.
    """

    operator: str
    output: Output
    moves: tuple[tuple[Any, ...], ...] = ()
    scale: tuple[int, int, int] = (1, 1, 1)
    domain: str | None = None
    is_known: bool = True
    documents: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RunStep:
    """One step of a run: a pipeline, and the plan of its tasks.

    Attributes:
        name: of the step.
        words: arguments of the operators; a file is named by `File.word`.
        source: arguments of the command that made the plan, for people.
        mip: the global option.
        options: of the operators, by their names, as the hash covers them.
        plan: description of the tasks, see `chunkflow_py.tasks.task_plan`.
        plan_sha256: of the file that belongs to the plan.
        tasks: how many there are.
        files: that the operators need.
        code: descriptions of the code that is not part of the package.
        device_class: ``same``: all workers have one compute profile; ``any``: mixed.
        previous: hash of the step before this one.
        outputs: what its operators store.
        answer: `ANSWER` of the version that made the run.
    """

    name: str
    words: tuple[str, ...]
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
    answer: int = ANSWER

    @cached_property
    def hash(self) -> str:
        """Hash of what determines the bytes of the output: 32 hexadecimal digits."""
        covered = [
            self.answer,
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
    """Everything that workers need to know.

    Attributes:
        steps: in the order of their execution.
        queue: URL of the queue.
        folder: working directory of the submission; relative paths begin there.
        version: of the package.
        reused: name of a step -> URL of the run whose output replaces it (``--fork``).
    """

    steps: tuple[RunStep, ...]
    queue: str
    folder: str
    version: str
    reused: dict[str, str]
    format: str = FORMAT

    @cached_property
    def content(self) -> bytes:
        """The spec as it is stored: canonical JSON, the same for the same pipelines."""
        values = asdict(self)
        values["stages"] = values.pop("steps")
        for step in values["stages"]:
            del step["answer"]
            if self.is_older:
                del step["outputs"]
        return _canonical(values) + b"\n"

    @property
    def is_older(self) -> bool:
        """Whether version 0.1.0 of the package made it, so that it can only be read."""
        return self.format == OLDER

    def check_current(self) -> None:
        """Refuse to continue a run of an older version.

        Raises:
            OptionError: names both versions, and what to do.
        """
        if self.is_older:
            msg = (
                f"the run was made by chunkflow_py {self.version} ({OLDER!r}), and this version "
                f"goes on with {FORMAT!r} only, whose records and bytes differ: use chunkflow_py "
                f"{self.version} for this run, or submit the pipeline again with another --run; "
                "status and verify can read it"
            )
            raise OptionError(msg)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, which pins it."""
        return sha256_of(self.content)

    @property
    def hash(self) -> str:
        """Hash of the last step, which covers all before it; queue messages carry it."""
        return self.steps[-1].hash

    @property
    def first(self) -> str | None:
        """Name of the first step that is not taken over from another run."""
        return next((each.name for each in self.steps if each.name not in self.reused), None)

    def step(self, name: str) -> RunStep:
        """Return the step called *name*.

        Raises:
            OptionError: there is none.
        """
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(step.name for step in self.steps)
        msg = f"the run has no stage {name!r}; it has {names}"
        raise OptionError(msg)

    @classmethod
    def parse(cls, content: bytes) -> Spec:
        """Return the spec that *content* holds.

        Raises:
            OptionError: it is not a spec, has another format, or is not canonical.
        """
        try:
            values = strict_json.loads(content)
            found = values["format"]
            if found in (FORMAT, OLDER):
                steps = tuple(_step(each, found) for each in values.pop("stages"))
                return cls(steps=steps, **values)._checked(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"this is not the spec of a run ({type(error).__name__}: {error})"
            raise OptionError(msg) from error
        msg = f"the run has the format {found!r}, and this version reads {FORMAT!r}; update it"
        raise OptionError(msg)

    def _checked(self, content: bytes) -> Spec:
        """Return the spec if *content* is canonical, byte for byte.

        Spaces and the like would help to find another spec whose digest begins with the same
        digits.
        """
        if self.content != content:
            msg = "it is not canonical JSON, as submit writes it"
            raise ValueError(msg)
        return self


def options_of(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the options of one operator that the hash covers."""
    kept = {key: value for key, value in options.items() if key not in NEUTRAL}
    return name, json.loads(_canonical(kept))


def differences(old: RunStep, new: RunStep) -> list[str]:
    """Return why two steps have different hashes, one phrase per difference."""
    found = []
    if [name for name, _ in old.options] != [name for name, _ in new.options]:
        old_names, new_names = (" ".join(name for name, _ in each.options) for each in (old, new))
        found.append(f"the pipeline is {new_names}, not {old_names}")
    else:
        for (name, was), (_, now) in zip(old.options, new.options, strict=True):
            found += [
                f"{name} --{key.replace('_', '-')} is {now.get(key)}, not {was.get(key)}"
                for key in sorted(was.keys() | now.keys())
                if was.get(key) != now.get(key)
            ]
    old_files, new_files = (sorted(file.sha256 for file in each.files) for each in (old, new))
    others: list[tuple[str, Any, Any]] = [
        ("--mip", old.mip, new.mip),
        ("the plan of tasks", (old.plan, old.plan_sha256), (new.plan, new.plan_sha256)),
        ("the content of a file", old_files, new_files),
        ("--device-class", old.device_class, new.device_class),
        ("the step before", old.previous, new.previous),
    ]
    return found + [f"{name} differs" for name, one, other in others if one != other]


def _step(values: dict[str, Any], format: str) -> RunStep:
    values["answer"] = 1 if format == OLDER else ANSWER
    values["outputs"] = tuple(_output(each) for each in values.get("outputs", ()))
    values["files"] = tuple(File(**file) for file in values["files"])
    for name in ("words", "source", "code"):
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
