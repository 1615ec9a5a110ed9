"""The home of a run: a folder or prefix that holds all that is known of it.

```
<run>/spec.json                       what workers do; never changes
<run>/spec.sha256                     SHA-256 of what was submitted
<run>/plan/<stage>                    which tasks there are, where that takes more than a few words
<run>/files/<sha256>/<name>           networks, weights, plugins
<run>/documents/<sha256>              metadata of the outputs, as it was made
<run>/stages/<stage>/profile.json     what the stage is computed with; set by its first worker
<run>/stages/<stage>/sent, closed     that all its tasks were sent; that all of them have ended
<run>/stages/<stage>/stale            tasks that have read what a repair of another stage mends
<run>/ledger/<stage>/…                how each task ended: `chunkflow_py.run.ledger.ledger`
```

Any store will do on which put-if-absent works, which is tried before it is relied upon.
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
from chunkflow_py.run.spec import Spec, differences, sha256_of
from chunkflow_py.store import open_store
from chunkflow_py.store.address import public, without_secrets
from chunkflow_py.store.local import replacing
from chunkflow_py.tasks.plan import plan_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.run.ledger.ledger_record import LedgerCounts
    from chunkflow_py.run.spec import File
    from chunkflow_py.store.protocol import Store
    from chunkflow_py.tasks.plan import Plan

SPEC = "spec.json"
_SUBMITTED = "spec.sha256"
_ALL = "all"
_DIGEST = re.compile(r"(.+?)/*#sha256=([0-9a-f]{64})")


class ProfileError(OptionError):
    """This machine does not compute the bytes that the run's other workers compute."""


@dataclass
class RunHome:
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
            self.url = self.store.url  # the same from whatever folder it is read

    @classmethod
    def parse(cls, text: str) -> RunHome:
        """Return the run at *text*, such as ``s3://bucket/em.run#sha256=…``.

        Raises:
            OptionError: what follows the ``#`` is no digest.
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
                msg = f"there is no run at {self.url}; chunkflow submit makes one, or mend the URL"
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
        """Return the SHA-256 of the spec that was submitted; nothing if nobody has noted it.

        It does not protect against who can write to the run, as a pinned address does: it finds
        a spec that was edited while some of its tasks were done already.
        """
        noted = (self.store.get(_SUBMITTED) or b"").decode(errors="replace").strip()
        return noted if re.fullmatch("[0-9a-f]{64}", noted) else ""

    @property
    def shown(self) -> str:
        """The URL as it is told: without name and password."""
        return without_secrets(self.url)

    @property
    def address(self) -> str:
        """The address that workers are given: it pins the spec."""
        return f"{self.shown}#sha256={self.spec.digest}"

    def exists(self) -> bool:
        """Tell whether there is a run."""
        return self.store.size(SPEC) is not None

    def check_there(self) -> None:
        """Look again whether there is a run, which may have been deleted meanwhile.

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
        """Remove the folder of a run that does not come to be, if it was not there before.

        A signal that comes before there is a run refuses it as well.
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
        """See whether a new run may begin here.

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
        """Try whether of two writes of one name the first stays.

        Raises:
            VolumeError: it does not: records could be overwritten there.
        """
        key = f"probe-{secrets.token_hex(8)}"
        first = self.store.put_if_absent(key, b"first")  # what it raises says what is wrong
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
        """Write all of a new run, its spec last; return whether it is new.

        Args:
            spec: of the run.
            plans: files of the plans, by stage.
            files: that stages need, and where they are.
            documents: metadata of the outputs, by SHA-256.

        Raises:
            OptionError: another run is there; says how it differs.
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
        self.check_same(spec, len(spec.stages))
        self.store.put_if_absent(_SUBMITTED, f"{self.spec.digest}\n".encode())
        return new

    def check_same(self, spec: Spec, stages: int) -> None:
        """Compare the run that is here with one that is to be made.

        Args:
            spec: of that, or of its first stages.
            stages: how many it will have.

        Raises:
            OptionError: it is another; says how they differ.
        """
        there = self.spec
        there.check_current()
        found = [
            f"stage {old.name}: {words}"
            for old, new in zip(there.stages, spec.stages, strict=False)
            for words in differences(old, new)
        ]
        if len(there.stages) != stages:
            found.append(f"{stages} stages, not {len(there.stages)}")
        if not found and there.queue != spec.queue:
            found.append(f"the queue is {spec.queue}, not {there.queue}")
        if not found:
            return  # the same but for the version of the package, or the folder
        msg = (
            f"{self.url} holds another run ({'; '.join(found[:4])}); give the new one another "
            f"--run, and --fork {self.url} to take over the stages that stay the same"
        )
        raise OptionError(msg)

    # --- stages ----------------------------------------------------------------------------------

    def plan(self, stage: str) -> Plan:
        """Return the tasks of a stage.

        Raises:
            OptionError: the file of the plan is not the one that the spec names.
        """
        if stage not in self._plans:
            said = self.spec.stage(stage)
            content = self.store.get(f"plan/{stage}") or b""
            if sha256_of(content) != said.plan_sha256:
                msg = f"{self.url}/plan/{stage} is not the plan that was submitted; submit again"
                raise OptionError(msg)
            self._plans[stage] = plan_from_json(said.plan, content)
        return self._plans[stage]

    def ledger(self, stage: str) -> Ledger:
        """Return the records of a stage, which may be those of another run (``--fork``)."""
        if stage not in self._ledgers:
            taken = self.spec.reused.get(stage)
            store = self.store if taken is None else open_store(taken)
            span, older = self.plan(stage).span, self.spec.is_older
            self._ledgers[stage] = Ledger(store, stage, span, older=older)
        return self._ledgers[stage]

    def document(self, digest: str) -> bytes | None:
        """Return metadata of an output as it was when the run was made; ``None`` if it is lost."""
        content = self.store.get(f"documents/{digest}")
        return content if content is not None and sha256_of(content) == digest else None

    def coverage(self, stage: str) -> Coverage:
        """Return what the records of a stage must name."""
        said = self.spec.stage(stage)
        copies = f"{self.store.url.rstrip('/')}/documents"
        return Coverage(said.outputs, self.document, copies, [name for name, _ in said.options])

    def is_sent(self, stage: str) -> bool:
        """Tell whether all tasks of a stage were sent once."""
        return self.store.size(f"stages/{stage}/sent") is not None

    def set_sent(self, stage: str, count: int) -> None:
        """Say so."""
        self.store.put_if_absent(f"stages/{stage}/sent", json.dumps({"tasks": count}).encode())

    def is_closed(self, stage: str) -> bool:
        """Tell whether all tasks of a stage have ended."""
        return stage in self.spec.reused or self.store.size(f"stages/{stage}/closed") is not None

    def close(self, stage: str) -> None:
        """Say so, and what there is to say of them; the next stage opens."""
        if not self.is_closed(stage):
            counts = json.dumps(asdict(self.ledger(stage).counts())).encode()
            self.store.put_if_absent(f"stages/{stage}/closed", counts)

    def counts(self, stage: str) -> LedgerCounts:
        """Return what there is to say of all tasks of a stage."""
        return self.ledger(stage).counts()

    def reopen(self, stage: str) -> None:
        """Take it back, for tasks that are done again."""
        self.store.delete(f"stages/{stage}/closed")

    def unsend(self, stage: str) -> None:
        """Take back that a stage was sent: the worker that opens it sends what has no record."""
        self.store.delete(f"stages/{stage}/sent")
        self.store.delete(f"stages/{stage}/sending")

    def stale(self, stage: str) -> Plan | set[int]:
        """Return the tasks of a stage that have read what was wrong in a stage before it.

        They were found by a repair, and are done again when the stages before are repaired.
        """
        said = json.loads(self.store.get(f"stages/{stage}/stale") or b"[]")
        return self.plan(stage) if said == _ALL else set(said)

    def add_stale(self, stage: str, numbers: Plan | set[int]) -> None:
        """Add to the tasks that have read what was wrong; the plan itself stands for all."""

        def added(content: bytes | None) -> bytes:
            said = json.loads(content or b"[]")
            if said == _ALL or numbers is self.plan(stage):
                return json.dumps(_ALL).encode()
            return json.dumps(sorted({*said, *numbers}), separators=(",", ":")).encode()

        self.store.update(f"stages/{stage}/stale", added)

    def renew(self, stage: str) -> None:
        """Take back the records of tasks that have read what was wrong, now that it is right.

        The repair has done so already. Whoever worked on one of them then, and was not done, has
        recorded it since.
        """
        numbers = self.stale(stage)
        if numbers:
            self.ledger(stage).reopen(numbers)
            self.store.delete(f"stages/{stage}/stale")

    def current_stage(self) -> str | None:
        """Return the first stage that is not closed, or ``None``."""
        return next((s.name for s in self.spec.stages if not self.is_closed(s.name)), None)

    # --- what a worker needs ---------------------------------------------------------------------

    def check_profile(self, stage: str, profile: dict[str, str] | None) -> None:
        """Refuse a machine that computes other bytes than the first worker of the stage.

        Raises:
            ProfileError: names what differs.
        """
        if not profile or self.spec.stage(stage).device_class == "any":
            return
        key = f"stages/{stage}/profile.json"
        self.store.put_if_absent(key, json.dumps(profile, sort_keys=True).encode())
        fixed: dict[str, Any] = json.loads(self.store.get(key) or b"{}")
        if fixed == profile:
            return
        names = sorted(fixed.keys() | profile.keys())
        found = [
            f"{name} is {profile.get(name, 'not said')}, not {fixed.get(name, 'not said')}"
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
        """Return the path of a file of the run on this machine; its content is checked.

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
    said = os.environ.get("XDG_CACHE_HOME")
    return (Path(said) if said else Path.home() / ".cache") / "chunkflow" / "files"
