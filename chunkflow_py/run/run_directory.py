"""The run directory: a folder or prefix that holds everything about one run.

```
<run>/spec.json                       what workers do; never changes
<run>/spec.sha256                     SHA-256 of the spec as submitted
<run>/plan/<step>                     list of the tasks, where the spec alone does not define them
<run>/files/<sha256>/<name>           networks, weights, plugins
<run>/documents/<sha256>              metadata of the outputs as it was created
<run>/stages/<step>/profile.json      compute profile of the step; set by its first worker
<run>/stages/<step>/sent, closed      that all its tasks were sent; that all of them have ended
<run>/stages/<step>/stale             tasks that have read what a repair of another step replaces
<run>/ledger/<step>/…                 how each task ended: `chunkflow_py.run.ledger.ledger`
```

``stages`` is the stored name of steps. Any store will do on which put-if-absent works, which is
tried before it is relied upon.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.run.coverage import Coverage
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.run_spec import Spec, differences, sha256_of
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import replacing
from chunkflow_py.store.store_address import public, without_secrets
from chunkflow_py.tasks.task_plan import plan_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.run.ledger.ledger_record import LedgerCounts
    from chunkflow_py.run.run_spec import File
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.tasks.task_plan import Plan

SPEC = "spec.json"
_SUBMITTED = "spec.sha256"
_ALL = "all"
_DIGEST = re.compile(r"(.+?)/*#sha256=([0-9a-f]{64})")


class ProfileError(OptionError):
    """This machine has another compute profile than the run's first worker."""


@dataclass
class RunDirectory:
    """One run, by its address.

    Attributes:
        url: of the run, without a digest.
        digest: SHA-256 that the spec must have, all 64 digits; nothing: it is not pinned.
    """

    url: str
    digest: str = ""
    store: Store = field(init=False, repr=False)
    _spec: Spec | None = field(default=None, init=False, repr=False)
    _ledgers: dict[str, Ledger] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Open the store."""
        self.store = open_store(self.url)
        if self.store.is_local:
            self.url = self.store.url  # absolute, so that it is the same in every working directory

    @classmethod
    def parse(cls, text: str) -> RunDirectory:
        """Return the run at *text*, such as ``s3://bucket/em.run#sha256=…``.

        Raises:
            OptionError: the part after ``#`` is not a digest.
        """
        if "#" not in text:
            return cls(text.rstrip("/"))
        match = _DIGEST.fullmatch(text)
        if match is None:
            msg = (
                f"run {public(text)} must end in #sha256= and 64 digits (0-9, a-f), as submit "
                "prints it"
            )
            raise OptionError(msg)
        return cls(match[1], match[2])

    # --- the spec --------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The spec, read once.

        Raises:
            OptionError: there is none, or it is not the one that the digest pins.
        """
        if self._spec is None:
            content = self.store.get(SPEC)
            if content is None:
                msg = (
                    f"there is no run at {self.url}; chunkflow submit makes one, or correct the URL"
                )
                raise OptionError(msg)
            found, wanted = sha256_of(content), self.digest or self._submitted()
            if wanted not in ("", found) and not removed("pinned-spec"):
                remedy = "take the address that submit printed, or " if self.digest else ""
                msg = (
                    f"{self.url}/{SPEC} has the SHA-256 {found}, not {wanted}: it is not what was "
                    f"submitted; {remedy}find out who changed it, and restore it from a copy"
                )
                raise OptionError(msg)
            try:
                self._spec = Spec.parse(content)
            except OptionError as error:
                msg = f"{self.url}/{SPEC}: {error}"
                raise OptionError(msg) from error
        return self._spec

    def _submitted(self) -> str:
        """Return the SHA-256 of the submitted spec, as noted in the run; empty if it is missing.

        Unlike a pinned address, it does not protect against those who can write to the run: it
        finds a spec that was edited while some of its tasks were done already.
        """
        noted = (self.store.get(_SUBMITTED) or b"").decode(errors="replace").strip()
        return noted if re.fullmatch("[0-9a-f]{64}", noted) else ""

    @property
    def shown(self) -> str:
        """The URL for messages, without name and password."""
        return without_secrets(self.url)

    @property
    def address(self) -> str:
        """The address for workers, which pins the spec."""
        return f"{self.shown}#sha256={self.spec.digest}"

    def exists(self) -> bool:
        """Return whether there is a run."""
        return self.store.size(SPEC) is not None

    def check_there(self) -> None:
        """Refuse to continue with a run that was deleted meanwhile.

        Raises:
            OptionError: it is gone.
        """
        if self.exists():
            return
        msg = (
            f"{self.url} was deleted while it was worked on: {SPEC} is gone, and with it what has "
            "been recorded; restore it from a copy, or delete what is left there and submit again"
        )
        raise OptionError(msg)

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Remove a folder that this call made, if the block fails before there is a run.

        A signal counts as a failure.
        """
        folder = Path(self.store.url.removeprefix("file://")) if self.store.is_local else None
        is_ours = folder is not None and not folder.exists()
        try:
            yield
        except BaseException:
            if is_ours and folder is not None and not self.exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def check_free(self) -> None:
        """Refuse a place that holds records of a deleted run.

        Raises:
            OptionError: there are records of a run that was deleted.
        """
        if any(True for _ in self.store.list("ledger/")):
            msg = (
                f"{self.url} holds records of a run that was deleted, by which tasks would count "
                "as done; delete them as well, or give another --run"
            )
            raise OptionError(msg)

    def check_store(self) -> None:
        """Check that the first of two conditional writes wins.

        Raises:
            VolumeError: it does not, so that records could be overwritten.
        """
        key = f"probe-{secrets.token_hex(8)}"
        first = self.store.put_if_absent(key, b"first")
        try:
            second = self.store.put_if_absent(key, b"second")
            kept = self.store.get(key)
        finally:
            self.store.delete(key)
        if not first or second or kept != b"first":
            msg = (
                f"{self.url} cannot hold a run: a conditional write (put-if-absent) replaced what "
                "was there; choose a bucket or folder that honours If-None-Match"
            )
            raise VolumeError(msg)

    def create(
        self,
        spec: Spec,
        plans: Mapping[str, bytes],
        files: Mapping[File, Path],
        documents: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Write a new run, its spec last; return whether it is new.

        Args:
            spec: of the run.
            plans: files of the plans, by step.
            files: that steps need, and their paths.
            documents: metadata of the outputs, by SHA-256.

        Raises:
            OptionError: another run is there; the message says how it differs.
        """
        for name, content in plans.items():
            if content:
                self.store.put(f"plan/{name}", content)
        for file, path in files.items():
            if self.store.size(file.key) is None:
                self.store.put(file.key, path.read_bytes())
        for digest, content in (documents or {}).items():
            if self.store.size(f"documents/{digest}") is None:
                self.store.put(f"documents/{digest}", content)
        new = self.store.put_if_absent(SPEC, spec.content)
        self.check_same(spec, len(spec.steps))
        self.store.put_if_absent(_SUBMITTED, f"{self.spec.digest}\n".encode())
        return new

    def check_same(self, spec: Spec, steps: int) -> None:
        """Compare the existing run with a new one.

        Args:
            spec: of the new one, or of its first steps.
            steps: how many the new one will have.

        Raises:
            OptionError: they differ; the message says how.
        """
        there = self.spec
        there.check_current()
        found = [
            f"stage {old.name}: {words}"
            for old, new in zip(there.steps, spec.steps, strict=False)
            for words in differences(old, new)
        ]
        if len(there.steps) != steps:
            found.append(f"{steps} stages, not {len(there.steps)}")
        if not found and there.queue != spec.queue:
            found.append(f"the queue is {spec.queue}, not {there.queue}")
        if not found:
            return  # the same but for the version of the package, or the folder
        msg = (
            f"{self.url} holds another run ({'; '.join(found[:4])}); give the new one another "
            f"--run, and --fork {self.url} to take over the stages that stay the same"
        )
        raise OptionError(msg)

    # --- steps ----------------------------------------------------------------------------------

    def plan(self, step: str) -> Plan:
        """Return the tasks of a step.

        Raises:
            OptionError: the file of the plan is not the one that the spec names.
        """
        if step not in self._plans:
            said = self.spec.step(step)
            content = self.store.get(f"plan/{step}") or b""
            if sha256_of(content) != said.plan_sha256:
                msg = f"{self.url}/plan/{step} is not the plan that was submitted; submit again"
                raise OptionError(msg)
            self._plans[step] = plan_from_json(said.plan, content)
        return self._plans[step]

    def ledger(self, step: str) -> Ledger:
        """Return the ledger of a step, which may be that of another run (``--fork``)."""
        if step not in self._ledgers:
            taken = self.spec.reused.get(step)
            store = self.store if taken is None else open_store(taken)
            span, older = self.plan(step).span, self.spec.is_older
            self._ledgers[step] = Ledger(store, step, span, older=older)
        return self._ledgers[step]

    def document(self, digest: str) -> bytes | None:
        """Return metadata of an output as it was created; ``None`` if the copy is lost."""
        content = self.store.get(f"documents/{digest}")
        return content if content is not None and sha256_of(content) == digest else None

    def coverage(self, step: str) -> Coverage:
        """Return what the records of a step have to name."""
        said = self.spec.step(step)
        copies = f"{self.store.url.rstrip('/')}/documents"
        return Coverage(said.outputs, self.document, copies, [name for name, _ in said.options])

    def is_sent(self, step: str) -> bool:
        """Return whether all tasks of a step were sent once."""
        return self.store.size(f"stages/{step}/sent") is not None

    def set_sent(self, step: str, count: int) -> None:
        """Note that all tasks of a step were sent."""
        self.store.put_if_absent(f"stages/{step}/sent", json.dumps({"tasks": count}).encode())

    def is_closed(self, step: str) -> bool:
        """Return whether all tasks of a step have ended."""
        return step in self.spec.reused or self.store.size(f"stages/{step}/closed") is not None

    def close(self, step: str) -> None:
        """Note that all tasks of a step have ended, with their totals; the next step opens."""
        if not self.is_closed(step):
            counts = json.dumps(asdict(self.ledger(step).counts())).encode()
            self.store.put_if_absent(f"stages/{step}/closed", counts)

    def counts(self, step: str) -> LedgerCounts:
        """Return the totals over all tasks of a step."""
        return self.ledger(step).counts()

    def reopen(self, step: str) -> None:
        """Undo `close`, for tasks that are done again."""
        self.store.delete(f"stages/{step}/closed")

    def unsend(self, step: str) -> None:
        """Undo `set_sent`: the worker that opens the step sends all tasks without a record."""
        self.store.delete(f"stages/{step}/sent")
        self.store.delete(f"stages/{step}/sending")

    def stale(self, step: str) -> Plan | set[int]:
        """Return the tasks of a step that have read wrong output of an earlier step.

        A repair has found them; they are done again once the earlier steps are repaired.
        """
        said = json.loads(self.store.get(f"stages/{step}/stale") or b"[]")
        return self.plan(step) if said == _ALL else set(said)

    def add_stale(self, step: str, numbers: Plan | set[int]) -> None:
        """Add tasks that have read wrong output; the plan itself stands for all tasks."""

        def added(content: bytes | None) -> bytes:
            said = json.loads(content or b"[]")
            if said == _ALL or numbers is self.plan(step):
                return json.dumps(_ALL).encode()
            return json.dumps(sorted({*said, *numbers}), separators=(",", ":")).encode()

        self.store.update(f"stages/{step}/stale", added)

    def renew(self, step: str) -> None:
        """Reopen the tasks that have read wrong output, now that it is repaired.

        The repair has done so already, but a worker that was busy with one of them then may have
        recorded it since.
        """
        numbers = self.stale(step)
        if numbers:
            self.ledger(step).reopen(numbers)
            self.store.delete(f"stages/{step}/stale")

    def current_step(self) -> str | None:
        """Return the name of the first step that is not closed, or ``None``."""
        return next((s.name for s in self.spec.steps if not self.is_closed(s.name)), None)

    # --- what a worker needs ---------------------------------------------------------------------

    def check_profile(self, step: str, profile: dict[str, str] | None) -> None:
        """Refuse a machine whose compute profile differs from that of the step's first worker.

        Raises:
            ProfileError: the message names the differences.
        """
        if not profile or self.spec.step(step).device_class == "any":
            return
        key = f"stages/{step}/profile.json"
        self.store.put_if_absent(key, json.dumps(profile, sort_keys=True).encode())
        fixed: dict[str, Any] = json.loads(self.store.get(key) or b"{}")
        if fixed == profile:
            return
        names = sorted(fixed.keys() | profile.keys())
        found = [
            f"{name} is {profile.get(name, 'unknown')}, not {fixed.get(name, 'unknown')}"
            for name in names
            if fixed.get(name) != profile.get(name)
        ]
        msg = (
            f"this machine would compute other bytes than the run's first worker: "
            f"{'; '.join(found)}; use a machine like it, set OMP_NUM_THREADS where only threads "
            "differ, or submit with --device-class any, which promises a tolerance only"
        )
        raise ProfileError(msg)

    def fetch(self, file: File) -> Path:
        """Fetch a file of the run to this machine, check its content, and return its path.

        Raises:
            OptionError: it is missing, or not what the spec names.
        """
        path = cache_folder() / file.sha256 / Path(file.name).name
        if path.is_file() and sha256_of(path.read_bytes()) == file.sha256:
            return path
        content = self.store.get(file.key)
        if content is None or (sha256_of(content) != file.sha256 and not removed("pinned-spec")):
            what = "is missing" if content is None else "is not what was submitted"
            msg = f"{self.url}/{file.key} {what}; submit the run again, under another --run"
            raise OptionError(msg)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        return path


def cache_folder() -> Path:
    """Return the folder in which workers keep files of runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chunkflow" / "files"
