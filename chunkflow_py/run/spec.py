"""The spec of a run: all that its workers do, and two hashes of it.

| hash          | covers                                         | is for                        |
|---------------|------------------------------------------------|-------------------------------|
| `Stage.hash`  | what determines the bytes of a stage's output  | records, messages, ``--fork`` |
| `Spec.digest` | every byte of the spec                         | ``RUN#sha256=…`` of workers   |

A stage's hash covers the options of its commands (defaults included, names of timings and numbers
of threads not), its plan, the content of its files, `ANSWER`, and the hash of the stage before it,
whose output it may read. It does not cover the version of the package, the queue, or how the line
was spelled: a hotfix elsewhere does not stop a run.
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
OLDER = "chunkflow run 1"  # of version 0.1.0 before outputs were kept; it can be looked at only
# Raised when the same options, files and input give other bytes than before.
ANSWER = 2
# Options that change no byte of a result: where it is computed is told by the numerical profile.
NEUTRAL = {"label", "parallel", "device", "lower_batch", "upload_log", "trust_weights"}
FILE_MARK = "chunkflow-file:"


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of *content*, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file that a stage needs, kept with the run.

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
        """What stands for its path in the words of a line."""
        return f"{FILE_MARK}{self.sha256}/{self.name}"


@dataclass(frozen=True)
class StageOutput:
    """What an operator of a stage stores of every task.

    Attributes:
        operator: its name.
        output: where.
        moves: how the box of a task becomes the box that reaches the operator, in order:
            ``("move", low, high)`` adds to its faces, ``("turn", order)`` reorders its axes, three
            numbers each.
        scale: voxels of the line's input that make one of the operator's chunk, zyx.
        domain: bounds of what the chunk is made of, which it does not reach beyond, if known.
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
class Stage:
    """One line of a run.

    Attributes:
        name: of the stage.
        words: of the line's operators; a file is named by `File.word`.
        source: words of the command that made the plan, for people.
        mip: the global option.
        options: of the operators, by their names: what the hash covers.
        plan: description of the tasks, see `chunkflow_py.tasks.plan`.
        plan_sha256: of the file that belongs to the plan.
        tasks: how many there are.
        files: that the operators need.
        code: what of the line is not built in, in words.
        device_class: ``same``: all workers compute with one numerical profile; ``any``: mixed.
        previous: hash of the stage before this one.
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
    outputs: tuple[StageOutput, ...] = ()
    answer: int = ANSWER

    @cached_property
    def hash(self) -> str:
        """Of what determines the bytes of the output: 32 hexadecimal digits."""
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
    """All that workers need to know.

    Attributes:
        stages: in the order in which they are worked off.
        queue: URL of the queue.
        folder: in which the line was typed; relative paths in it begin there.
        version: of the package.
        reused: name of a stage -> URL of the run whose output is taken for it (``--fork``).
    """

    stages: tuple[Stage, ...]
    queue: str
    folder: str
    version: str
    reused: dict[str, str]
    format: str = FORMAT

    @cached_property
    def content(self) -> bytes:
        """The spec as it is stored: canonical JSON, the same for the same line."""
        said = asdict(self)
        for stage in said["stages"]:
            del stage["answer"]
            if self.is_older:
                del stage["outputs"]
        return _canonical(said) + b"\n"

    @property
    def is_older(self) -> bool:
        """Whether a version of the package made it that kept less: it can be looked at only."""
        return self.format == OLDER

    def check_current(self) -> None:
        """Refuse to go on with a run of an older version.

        Raises:
            OptionError: names both versions, and what to do.
        """
        if self.is_older:
            msg = (
                f"the run was made by chunkflow_py {self.version} ({OLDER!r}), and this version "
                f"goes on with {FORMAT!r} only, whose records and bytes differ: use chunkflow_py "
                f"{self.version} for this run, or submit the line again with another --run; "
                "status and verify can look at it"
            )
            raise OptionError(msg)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, which pins it."""
        return sha256_of(self.content)

    @property
    def hash(self) -> str:
        """Hash of the last stage, which covers all before it: what messages belong to."""
        return self.stages[-1].hash

    @property
    def first(self) -> str | None:
        """The first stage that is not taken over from another run."""
        return next((each.name for each in self.stages if each.name not in self.reused), None)

    def stage(self, name: str) -> Stage:
        """Return the stage called *name*.

        Raises:
            OptionError: there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        msg = f"the run has no stage {name!r}; it has {names}"
        raise OptionError(msg)

    @classmethod
    def parse(cls, content: bytes) -> Spec:
        """Return the spec that *content* holds.

        Raises:
            OptionError: it is no spec, one of another format, or not as `content` is written.
        """
        try:
            said = strict_json.loads(content)
            found = said["format"]
            if found in (FORMAT, OLDER):
                stages = tuple(_stage(each, found) for each in said.pop("stages"))
                return cls(stages=stages, **said)._checked(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"this is no spec of a run ({type(error).__name__}: {error})"
            raise OptionError(msg) from error
        msg = f"the run has the format {found!r}, and this version reads {FORMAT!r}; update it"
        raise OptionError(msg)

    def _checked(self, content: bytes) -> Spec:
        """Return the spec if *content* is how it is written, byte for byte.

        Spaces and the like, which change no meaning, would help to find another spec whose digest
        begins with the same digits.
        """
        if self.content != content:
            msg = "it is not canonical JSON, as submit writes it"
            raise ValueError(msg)
        return self


def options_of(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return what the hash covers of one command's options."""
    kept = {key: value for key, value in options.items() if key not in NEUTRAL}
    return name, json.loads(_canonical(kept))


def differences(old: Stage, new: Stage) -> list[str]:
    """Return in words why two stages have different hashes."""
    found = []
    if [name for name, _ in old.options] != [name for name, _ in new.options]:
        lines = [" ".join(name for name, _ in each.options) for each in (old, new)]
        found.append(f"the line is {lines[1]}, not {lines[0]}")
    else:
        for (name, was), (_, now) in zip(old.options, new.options, strict=True):
            found += [
                f"{name} --{key.replace('_', '-')} is {now.get(key)}, not {was.get(key)}"
                for key in sorted(was.keys() | now.keys())
                if was.get(key) != now.get(key)
            ]
    others: list[tuple[str, Any, Any]] = [
        ("--mip", old.mip, new.mip),
        ("the plan of tasks", (old.plan, old.plan_sha256), (new.plan, new.plan_sha256)),
        ("the content of a file", sorted(f.sha256 for f in old.files),
         sorted(f.sha256 for f in new.files)),
        ("--device-class", old.device_class, new.device_class),
        ("the stage before", old.previous, new.previous),
    ]  # fmt: skip
    return found + [f"{what} is another" for what, one, other in others if one != other]


def _stage(said: dict[str, Any], format: str) -> Stage:
    said["answer"] = 1 if format == OLDER else ANSWER
    said["outputs"] = tuple(_output(each) for each in said.get("outputs", ()))
    said["files"] = tuple(File(**file) for file in said["files"])
    for name in ("words", "source", "code"):
        said[name] = tuple(said[name])
    said["options"] = tuple((name, options) for name, options in said["options"])
    return Stage(**said)


def _output(said: dict[str, Any]) -> StageOutput:
    said["output"]["shrink"] = tuple(said["output"]["shrink"])
    said["output"] = Output(**said["output"])
    said["moves"] = tuple(
        (kind, *(tuple(each) for each in numbers)) for kind, *numbers in said["moves"]
    )
    said["scale"] = tuple(said["scale"])
    said["documents"] = tuple((key, digest) for key, digest in said["documents"])
    return StageOutput(**said)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
