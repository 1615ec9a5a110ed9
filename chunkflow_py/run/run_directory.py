"""The run directory: a folder, or a prefix in a bucket, that contains everything about one run.

```
<run>/spec.json                       the spec; never changes
<run>/spec.sha256                     SHA-256 of the spec as submitted
<run>/submitted.json                  who submitted the run, when, and with which version
<run>/plan/<step>                     the part of the plan that is not in the spec
<run>/files/<sha256>/<name>           networks, weights, plugins
<run>/documents/<sha256>              metadata of the outputs at submission
<run>/stages/<step>/profile.json      compute profile of the step; set by its first worker
<run>/stages/<step>/sent, closed      markers: all tasks were sent; all tasks have ended
<run>/stages/<step>/stale             tasks that read wrong input and must run again
<run>/stages/<step>/order.json        sending order of tasks: `chunkflow_py.run.sending_order`
<run>/ledger/<step>/…                 how each task ended: `chunkflow_py.run.ledger.ledger`
<run>/budget.json, spending/…         budget, and cost so far: `chunkflow_py.run.spending`
<run>/workers/<id>/…                  start and end of workers: `chunkflow_py.run.worker_records`
<run>/exchange.json                   settings of the patch exchange
<run>/exchange/<step>-<hash>/…        patch exchange: `chunkflow_py.run.exchange_store`
```

In these names, ``stages`` means steps. In the patch exchange, tasks share the network's output for
patches that cross task boundaries. The store must support put-if-absent, a write that does
nothing if the object exists; `check_store` tests this.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import ChunkflowError, OptionError, VolumeError
from chunkflow_py.run import spending
from chunkflow_py.run.coverage import Coverage
from chunkflow_py.run.exchange_store import ExchangeAddress, ExchangeSettings, remove_parts
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.run_spec import Spec, differences, sha256_of
from chunkflow_py.run.submission_record import LONGEST_RECORD, SubmissionRecord
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

logger = logging.getLogger(__name__)

SPEC = "spec.json"
_SUBMITTED = "spec.sha256"
_SUBMISSION = "submitted.json"
_EXCHANGE = "exchange.json"
_LONGEST_EXCHANGE = 65_536  # bytes
_ALL = "all"
_DIGEST = re.compile(r"(.+?)/*#sha256=([0-9a-f]{64})")


class ProfileError(OptionError):
    """The compute profile differs from that of the first worker of the step.

    The compute profile (such as backend, device, threads and precision) can change the output.
    """


@dataclass
class RunDirectory:
    """The stored state of one run.

    Attributes:
        url: address of the run, without the ``#sha256=`` part.
        digest: SHA-256 that the spec must have, 64 hexadecimal digits; empty if any spec is
            accepted.
        store: store of the run directory.
    """

    url: str
    digest: str = ""
    store: Store = field(init=False, repr=False)
    _spec: Spec | None = field(default=None, init=False, repr=False)
    _ledgers: dict[str, Ledger] = field(default_factory=dict, init=False, repr=False)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.store = open_store(self.url)
        if self.store.is_local:
            # Make the URL absolute, so that it does not depend on the working directory.
            self.url = self.store.url

    @classmethod
    def parse(cls, text: str) -> RunDirectory:
        """Return the run at the address *text*, such as ``s3://bucket/em.run#sha256=…``.

        Raises:
            OptionError: the part after ``#`` is not ``sha256=`` and 64 hexadecimal digits.
        """
        if "#" not in text:
            return cls(text.rstrip("/"))
        match = _DIGEST.fullmatch(text)
        if match is None:
            msg = (
                f"the part after # in the run address {public(text)} must be sha256= and 64 digits "
                "(0-9, a-f); copy the address that submit printed"
            )
            raise OptionError(msg)
        return cls(match[1], match[2])

    # --- the spec --------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The spec, cached after the first access.

        Raises:
            OptionError: the run does not exist, or its spec is not the spec that was submitted.
        """
        if self._spec is None:
            content = self.store.get(SPEC)
            if content is None:
                msg = (
                    f"there is no run at {self.url}; correct the URL, or create the run with "
                    "chunkflow submit"
                )
                raise OptionError(msg)
            digest, expected = sha256_of(content), self.digest or self._submitted()
            if expected not in ("", digest) and not removed("pinned-spec"):
                remedy = "use the address that submit printed, or " if self.digest else ""
                msg = (
                    f"{self.url}/{SPEC} has the SHA-256 {digest}, not {expected}, so it is not the "
                    f"spec that was submitted; {remedy}find out who changed the file, and restore "
                    "it from a copy"
                )
                raise OptionError(msg)
            try:
                self._spec = Spec.parse(content)
            except OptionError as error:
                msg = f"{self.url}/{SPEC}: {error}"
                raise OptionError(msg) from error
        return self._spec

    @property
    def submission(self) -> SubmissionRecord | None:
        """Who submitted the run, and when; ``None`` if the record is missing or damaged."""
        content = self.store.get_range(_SUBMISSION, 0, LONGEST_RECORD + 1)
        try:
            return None if content is None else SubmissionRecord.from_json(content)
        except ValueError as error:
            logger.warning("%s/%s is damaged: %s", self.shown, _SUBMISSION, error)
            return None

    def _submitted(self) -> str:
        """Return the SHA-256 of the spec that submit stored; empty if the file is missing.

        This SHA-256 detects accidental edits of the spec. Unlike the SHA-256 in an address, it does
        not protect against attackers who can write to the run directory.
        """
        digest = (self.store.get(_SUBMITTED) or b"").decode(errors="replace").strip()
        return digest if re.fullmatch("[0-9a-f]{64}", digest) else ""

    @property
    def shown(self) -> str:
        """The URL of the run without user name and password, for messages."""
        return without_secrets(self.url)

    @property
    def address(self) -> str:
        """The address for workers: the URL of the run with the SHA-256 of its spec."""
        return f"{self.shown}#sha256={self.spec.digest}"

    def exists(self) -> bool:
        """Return whether the spec of the run is stored."""
        return self.store.size(SPEC) is not None

    def check_not_deleted(self) -> None:
        """Check that the run has not been deleted since it was opened.

        Raises:
            OptionError: the run was deleted.
        """
        if self.exists():
            return
        msg = (
            f"{self.url} was deleted while workers used it: {SPEC} is missing, and records may be "
            "missing too; restore the run from a copy, or delete its remaining files and submit "
            "the pipeline again"
        )
        raise OptionError(msg)

    @contextmanager
    def folder_removed_on_failure(self) -> Iterator[None]:
        """Remove a new local run folder if the ``with`` block fails before the spec is stored.

        A signal that interrupts the block counts as a failure. A folder that existed before the
        block is kept.
        """
        folder = Path(self.store.url.removeprefix("file://")) if self.store.is_local else None
        is_ours = folder is not None and not folder.exists()
        try:
            yield
        except BaseException:
            if is_ours and folder is not None and not self.exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def check_no_old_records(self) -> None:
        """Check that no records of a deleted run remain at the address of a new run.

        Raises:
            OptionError: records of tasks or costs of a deleted run exist at the address.
        """
        effects = {
            "ledger": "make tasks of a new run count as done",
            spending.FOLDER: "count towards the budget of a new run",
        }
        for folder, effect in effects.items():
            if any(True for _ in self.store.list(f"{folder}/")):
                msg = (
                    f"{self.url} contains records of a deleted run, which would {effect}; delete "
                    f"{self.url}/{folder}, or choose another --run"
                )
                raise OptionError(msg)

    def check_store(self) -> None:
        """Check that the store supports put-if-absent: the first of two writes must win.

        Raises:
            VolumeError: the second write replaced the first, so records could be overwritten.
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
                f"{self.url} cannot store a run: a conditional write (put-if-absent) replaced an "
                "existing object; choose a bucket or folder that supports If-None-Match"
            )
            raise VolumeError(msg)

    def create(
        self,
        spec: Spec,
        plans: Mapping[str, bytes],
        files: Mapping[File, Path],
        documents: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Store the run if it does not exist; return whether the run is new.

        The spec is stored last: if a run has a spec, all its other files have been stored.

        Args:
            spec: spec of the run.
            plans: content of the plan file of each step, with the name of the step as key.
            files: local path of each file that the steps need.
            documents: metadata documents of the outputs, with their SHA-256 as key.

        Raises:
            OptionError: another run exists at this address. The message names the differences.
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
        self.store.put_if_absent(_SUBMISSION, SubmissionRecord.here().to_json())
        return new

    def check_same(self, spec: Spec, steps: int) -> None:
        """Check that the existing run has the same steps and queue as a new submission.

        A submission checks the run after it has prepared each step, so *spec* may contain only the
        first steps.

        Args:
            spec: spec of the new submission, with the steps that have been prepared so far.
            steps: number of all steps of the new submission.

        Raises:
            OptionError: the runs differ. The message names the differences.
        """
        existing = self.spec
        existing.check_current()
        phrases = [
            f"step {old.name}: {phrase}"
            for old, new in zip(existing.steps, spec.steps, strict=False)
            for phrase in differences(old, new)
        ]
        if len(existing.steps) != steps:
            phrases.append(f"the new run has {steps} steps, not {len(existing.steps)}")
        if not phrases and existing.queue != spec.queue:
            phrases.append(f"the queue is {spec.queue}, not {existing.queue}")
        if not phrases:
            return  # only the version of the package or the working directory may differ
        msg = (
            f"{self.url} already contains a different run ({'; '.join(phrases[:4])}); choose "
            f"another --run, and add --fork {self.url} to reuse the steps that are the same"
        )
        raise OptionError(msg)

    # --- steps ----------------------------------------------------------------------------------

    def plan(self, step: str) -> Plan:
        """Return the plan of a step.

        Raises:
            OptionError: the stored plan differs from the plan that was submitted.
        """
        if step not in self._plans:
            stored = self.spec.step(step)
            content = self.store.get(f"plan/{step}") or b""
            if sha256_of(content) != stored.plan_sha256:
                msg = (
                    f"{self.url}/plan/{step} is not the plan that was submitted: its SHA-256 is "
                    f"{sha256_of(content)}, not {stored.plan_sha256}; submit the same pipeline "
                    "again to restore the plan"
                )
                raise OptionError(msg)
            self._plans[step] = plan_from_json(stored.plan, content)
        return self._plans[step]

    def ledger(self, step: str) -> Ledger:
        """Return the ledger of a step: the records of how its tasks ended.

        The ledger of a reused step (``--fork``) is in another run.
        """
        if step not in self._ledgers:
            owner = self.spec.reused.get(step)
            store = self.store if owner is None else open_store(owner)
            span, older = self.plan(step).span, self.spec.is_older
            self._ledgers[step] = Ledger(store, step, span, older=older)
        return self._ledgers[step]

    def document(self, digest: str) -> bytes | None:
        """Return the run's copy of output metadata that has the SHA-256 *digest*.

        Return ``None`` if the copy is lost or damaged.
        """
        content = self.store.get(f"documents/{digest}")
        return content if content is not None and sha256_of(content) == digest else None

    def coverage(self, step: str) -> Coverage:
        """Return the list of objects that the tasks of a step must record."""
        stored = self.spec.step(step)
        copies = f"{self.store.url.rstrip('/')}/documents"
        return Coverage(stored.outputs, self.document, copies, [name for name, _ in stored.options])

    def is_sent(self, step: str) -> bool:
        """Return whether all tasks of a step have been sent to the queue."""
        return self.store.size(f"stages/{step}/sent") is not None

    def set_sent(self, step: str, count: int) -> None:
        """Record that all *count* tasks of a step have been sent."""
        self.store.put_if_absent(f"stages/{step}/sent", json.dumps({"tasks": count}).encode())

    def is_closed(self, step: str) -> bool:
        """Return whether all tasks of a step have ended."""
        return step in self.spec.reused or self.store.size(f"stages/{step}/closed") is not None

    def close(self, step: str) -> None:
        """Record that all tasks of a step have ended, so that the next step can begin."""
        if not self.is_closed(step):
            counts = json.dumps(asdict(self.ledger(step).counts())).encode()
            self.store.put_if_absent(f"stages/{step}/closed", counts)

    @property
    def exchange(self) -> ExchangeSettings | None:
        """Whether and where tasks exchange patches; ``None`` if no settings were stored.

        If the file cannot be read, a warning is logged, and tasks exchange no patches. No error is
        raised, because the exchange only saves time.
        """
        try:
            content = self.store.get(_EXCHANGE, _LONGEST_EXCHANGE)
            return None if content is None else ExchangeSettings.from_json(content)
        except (ChunkflowError, ValueError) as error:
            log = logger.debug if self._has_warned else logger.warning
            self._has_warned = True
            log(
                "tasks exchange no patches, because %s/%s cannot be read: %s; submit the run again "
                "with --exchange to replace the file",
                self.shown,
                _EXCHANGE,
                error,
            )
            return ExchangeSettings("off")

    def set_exchange(self, settings: ExchangeSettings) -> None:
        """Store how tasks exchange patches.

        If the new mode is ``off``, or if the URL changes, the patches at the old URL are removed.
        """
        old = self.exchange
        self.store.put(_EXCHANGE, settings.to_json())
        if old is not None and (settings.mode == "off" or old.url != settings.url):
            for step in self.spec.steps:
                remove_parts(ExchangeAddress(self.url, old, step.name, step.hash))

    def exchange_of(self, step: str) -> ExchangeAddress | None:
        """Return where the tasks of a step exchange patches; ``None`` if they do not."""
        settings, stored = self.exchange, self.spec.step(step)
        if settings is None or settings.mode == "off" or stored.device_class == "any":
            return None
        return ExchangeAddress(self.url, settings, step, stored.hash)

    def counts(self, step: str) -> LedgerCounts:
        """Return the totals of a step, such as the number of tasks in each state."""
        return self.ledger(step).counts()

    def reopen(self, step: str) -> None:
        """Undo `close`, because tasks of the step will be repeated."""
        self.store.delete(f"stages/{step}/closed")

    def unsend(self, step: str) -> None:
        """Remove the mark that all tasks of a step were sent.

        When the step begins, a worker then sends the tasks that have no record.
        """
        self.store.delete(f"stages/{step}/sent")
        self.store.delete(f"stages/{step}/sending")

    def stale(self, step: str) -> Plan | set[int]:
        """Return the numbers of the tasks that have read wrong output of an earlier step.

        ``chunkflow repair`` records these tasks with `add_stale`. Workers repeat the tasks when the
        earlier steps are complete. If all tasks of the step are stale, the plan of the step is
        returned.
        """
        numbers = json.loads(self.store.get(f"stages/{step}/stale") or b"[]")
        return self.plan(step) if numbers == _ALL else set(numbers)

    def add_stale(self, step: str, numbers: Plan | set[int]) -> None:
        """Record tasks of a step that have read wrong output of an earlier step; see `stale`.

        Args:
            step: name of the step.
            numbers: numbers of the tasks. For all tasks, pass the plan of the step.
        """

        def added(content: bytes | None) -> bytes:
            known = json.loads(content or b"[]")
            if known == _ALL or numbers is self.plan(step):
                return json.dumps(_ALL).encode()
            return json.dumps(sorted({*known, *numbers}), separators=(",", ":")).encode()

        self.store.update(f"stages/{step}/stale", added)

    def renew(self, step: str) -> None:
        """Reopen the stale tasks of a step (see `stale`) after their input was repaired.

        A worker may have read wrong input before ``chunkflow repair`` reopened its task, and may
        have recorded the task afterwards. Therefore, the tasks are reopened again.
        """
        numbers = self.stale(step)
        if numbers:
            self.ledger(step).reopen(numbers)
            self.store.delete(f"stages/{step}/stale")

    def current_step(self) -> str | None:
        """Return the name of the step on which workers work; ``None`` if the run is complete.

        This is the first step that is not closed (see `is_closed`).
        """
        return next((s.name for s in self.spec.steps if not self.is_closed(s.name)), None)

    # --- checks and files for workers -------------------------------------------------------------

    def check_profile(self, step: str, profile: dict[str, str] | None) -> None:
        """Check that this machine has the same compute profile as the first worker of the step.

        `ProfileError` explains compute profiles. With ``--device-class any``, nothing is checked.

        Raises:
            ProfileError: the profiles differ. The message names the differences.
        """
        if not profile or self.spec.step(step).device_class == "any":
            return
        key = f"stages/{step}/profile.json"
        self.store.put_if_absent(key, json.dumps(profile, sort_keys=True).encode())
        first: dict[str, Any] = json.loads(self.store.get(key) or b"{}")
        if first == profile:
            return
        names = sorted(first.keys() | profile.keys())
        phrases = [
            f"{name} is {profile.get(name, 'unknown')}, not {first.get(name, 'unknown')}"
            for name in names
            if first.get(name) != profile.get(name)
        ]
        msg = (
            "the output of this machine could differ from the output of the step's first worker: "
            f"{'; '.join(phrases)}; use the same type of machine; if only threads differ, set "
            "OMP_NUM_THREADS; to allow small differences between workers, submit the pipeline "
            "again with --device-class any and another --run"
        )
        raise ProfileError(msg)

    def fetch(self, file: File) -> Path:
        """Return the path of a local copy of a file of the run; download the file if necessary.

        Raises:
            OptionError: the file is missing, or its SHA-256 is not that of the submitted file.
        """
        path = cache_folder() / file.sha256 / Path(file.name).name
        if path.is_file() and sha256_of(path.read_bytes()) == file.sha256:
            return path
        content = self.store.get(file.key)
        if content is None or (sha256_of(content) != file.sha256 and not removed("pinned-spec")):
            problem = "is missing" if content is None else "is not the file that was submitted"
            msg = f"{self.url}/{file.key} {problem}; submit the pipeline again with another --run"
            raise OptionError(msg)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        return path


def cache_folder() -> Path:
    """Return the local folder in which workers cache the files of runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chunkflow" / "files"
