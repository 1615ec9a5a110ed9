"""Derive the minimum permissions that the submitter (``producer``) and workers of a run need.

For AWS, the permissions are two policies. Each policy has the same statements as the policy in
``deploy/aws/fleet.yaml`` (an AWS CloudFormation stack), but with the addresses of one run. A test
compares the policies with this stack. For Google Cloud Storage, the permissions are roles to grant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError, VolumeError
from chunkflow_py.queue.queue_protocol import address_of
from chunkflow_py.queue.sqs_address import SqsAddress, attributes_of, find_or_create
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.run.run_spec import Spec

_SEND = ("sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:SendMessage")
_RECEIVE = (
    "sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:ReceiveMessage",
    "sqs:ChangeMessageVisibility", "sqs:DeleteMessage",
)  # fmt: skip
_READ, _LIST = ("s3:GetObject",), ("s3:ListBucket",)
# Folders of the run directory that workers write to, and from which they remove objects.
_WRITTEN = ("/exchange", "/ledger", "/spending", "/stages", "/workers")
_REMOVED = ("/exchange", "/ledger", "/spending")
_WRITE, _REMOVE = ("s3:PutObject", "s3:AbortMultipartUpload"), ("s3:DeleteObject",)
_CLOUDS = "s3", "gs"
# markers in the addresses of a spec: text before the level, placeholder for the box of a task
_LEVEL, _BOX = " at mip ", "BOX"


@dataclass(frozen=True)
class Area:
    """Objects of a bucket that need the same permissions.

    Attributes:
        scheme: ``s3`` or ``gs``.
        pattern: bucket and key of the objects, such as ``bucket/key/*``; a ``*`` at the end stands
            for any text.
    """

    scheme: str
    pattern: str

    @property
    def bucket(self) -> str:
        """Name of the bucket that contains the objects."""
        return self.pattern.partition("/")[0]

    def __str__(self) -> str:
        """Return the pattern as an address, such as ``s3://bucket/key/*``."""
        return f"{self.scheme}://{self.pattern}"


@dataclass(frozen=True)
class Policy:
    """Permissions that the submitter and the workers of a run need.

    Attributes:
        run: address of the run directory without credentials, for the report.
        home: address of the run directory to which the policies give access; ``None`` if the
            directory is not in a cloud and therefore needs no policy.
        outputs: objects that the run writes.
        inputs: objects that the run only reads, including output of other runs that this run
            reuses.
        queue: the ARN of the queue and the ARN of its dead-letter queue; ``None`` if the run has no
            SQS queue.
        stages: number of steps of the run.
        remarks: sentences about needed permissions that the policies do not contain.
    """

    run: str
    home: str | None
    outputs: tuple[Area, ...]
    inputs: tuple[Area, ...]
    queue: tuple[str, str] | None
    stages: int
    remarks: tuple[str, ...]

    def producer(self) -> dict[str, Any]:
        """Return the AWS policy for submitting, monitoring, verifying and repairing the run."""
        own = [*self._own(), *self._arns(self.outputs)]
        return _document(
            _statement("SendTasks", _SEND, self._queues(0)),
            _statement("ReadDeadLetters", _RECEIVE, self._queues(1)),
            _statement("WriteRunAndOutput", (*_READ, *_WRITE, *_REMOVE), own),
            *self._common(),
        )

    def worker(self) -> dict[str, Any]:
        """Return the AWS policy for workers that execute the run."""
        outputs = self._arns(self.outputs)
        removed = [each for folder in _REMOVED for each in self._own(folder)]
        written = [each for folder in _WRITTEN for each in self._own(folder)]
        several = self.stages > 1
        return _document(
            _statement("TakeTasks", _RECEIVE, self._queues(0)),
            _statement("BuryTasks", _SEND, self._queues(1)),
            _statement("ReadRunAndOutput", _READ, [*self._own(), *outputs]),
            _statement("WriteLedgerAndOutput", _WRITE, [*written, *outputs]),
            _statement("RemoveFoldedRecordsAndEmptyBlocks", _REMOVE, [*removed, *outputs]),
            *self._common(),
            _statement("SendNextStage", ("sqs:SendMessage",), self._queues(0) if several else []),
            _statement(
                "TakeOverNextStage",
                _REMOVE,
                [
                    each
                    for name in ("sending", "stale")
                    for each in self._own(f"/stages/*/{name}", "")
                ]
                if several
                else [],
            ),
        )

    def _common(self) -> Iterator[dict[str, Any]]:
        yield _statement("ReadInput", _READ, self._arns(self.inputs))
        # Without permission to list, S3 reports a missing object as forbidden. The permission is
        # for whole buckets: a request for one object never meets a condition on the prefix.
        areas = (*self._home(), *self.outputs, *self.inputs)
        buckets = dict.fromkeys(area.bucket for area in areas if area.scheme == "s3")
        yield _statement(
            "TellMissingFromForbidden", _LIST, [f"arn:aws:s3:::{bucket}" for bucket in buckets]
        )

    def _home(self, below: str = "", rest: str = "/*") -> list[Area]:
        if self.home is None:
            return []
        scheme, _, path = self.home.partition("://")
        return [Area(scheme, f"{path}{below}{rest}")]

    def _own(self, below: str = "", rest: str = "/*") -> list[str]:
        return self._arns(self._home(below, rest))

    def _queues(self, index: int) -> list[str]:
        return [] if self.queue is None else [self.queue[index]]

    @staticmethod
    def _arns(areas: Iterable[Area]) -> list[str]:
        return [f"arn:aws:s3:::{area.pattern}" for area in areas if area.scheme == "s3"]

    def google(self) -> dict[str, list[str]]:
        """Return the roles to grant on Google Cloud Storage; empty if the run does not use it.

        Returns:
            Three lists of text: ``producer``, the roles of the submitter; ``worker``, the roles of
            a worker; and ``how``, instructions for granting the roles.
        """
        home = [str(area) for area in self._home() if area.scheme == "gs"]
        outputs = [str(area) for area in self.outputs if area.scheme == "gs"]
        inputs = [str(area) for area in self.inputs if area.scheme == "gs"]
        if not (home or outputs or inputs):
            return {}
        everywhere = [*home, *outputs, *inputs]
        read = [f"roles/storage.objectViewer (get, list) on {each}" for each in inputs]
        ledger = [str(each) for part in _WRITTEN for each in self._home(part)]
        user = "roles/storage.objectUser (get, list, create, update, delete) on "
        return {
            "producer": [*(user + each for each in (*home, *outputs)), *read],
            "worker": [
                *(f"roles/storage.objectViewer (get, list) on {each}" for each in home),
                *(user + each for each in (*(ledger if home else ()), *outputs)),
                *read,
            ],
            "how": [
                f"grant the roles on the buckets of {', '.join(everywhere)}, each with a condition "
                'such as resource.name.startsWith("projects/_/buckets/BUCKET/objects/PREFIX"); '
                "grant the permission to list objects (storage.objects.list) without a condition, "
                "because it applies to the whole bucket"
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """Return the policies of submitter and workers, and the remarks, as a JSON object."""
        return {
            "run": self.run,
            "producer": self.producer(),
            "worker": self.worker(),
            "google": self.google(),
            "remarks": list(self.remarks),
        }

    def text(self) -> str:
        """Return the policies and remarks as text, as `chunkflow doctor --policy` prints them."""
        parts = []
        for who, policy in (("producer", self.producer()), ("worker", self.worker())):
            if policy["Statement"]:
                parts += [f"AWS, {who}:", json.dumps(policy, indent=2)]
        for who, lines in self.google().items():
            title = "Google, how:" if who == "how" else f"Google, {who}:"
            parts += [title, *(f"  {line}" for line in lines)]
        return "\n".join([*parts, *(f"Note: {each}" for each in self.remarks)])


def policy_of(address: str) -> Policy:
    """Return the permissions that the submitter and the workers of a run need.

    Args:
        address: address of the run directory.

    Raises:
        ChunkflowError: the spec of the run cannot be read.
    """
    home = RunDirectory.parse(address)
    spec = home.spec
    remarks = []
    writes = [area for place in _declared_places(spec, "writes") for area in areas_of(place)]
    reads = [area for place in _declared_places(spec, "reads") for area in areas_of(place)]
    known = {area.pattern.rstrip("/*") for area in (*writes, *reads)}
    for place in _mentioned(spec):
        found = areas_of(place)
        reads += [each for each in found if each.pattern.rstrip("/*") not in known]
    reads += [
        Area(*_split(f"{other}/*")) for other in set(spec.reused.values()) if _is_cloud(other)
    ]
    if code := [command for step in spec.steps for command in step.code]:
        remarks.append(
            f"the code of {', '.join(code)} may read and write other addresses; add permissions "
            "for these addresses to the policies"
        )
    own = home.url if _is_cloud(home.url) else None
    local = [
        place
        for place in (home.url, *_declared_places(spec, "writes"), *_declared_places(spec, "reads"))
        if not _is_cloud(place)
    ]
    if local:
        names = (without_secrets(place.partition(_LEVEL)[0]) for place in local)
        places = ", ".join(dict.fromkeys(names))
        remarks.append(f"every worker needs access to these folders of this machine: {places}")
    queue, remark = _arns_of(spec.queue)
    return Policy(
        run=home.shown,
        home=own,
        outputs=tuple(dict.fromkeys(writes)),
        inputs=tuple(dict.fromkeys(area for area in reads if area not in writes)),
        queue=queue,
        stages=len(spec.steps),
        remarks=(*remarks, *remark),
    )


def areas_of(place: str) -> list[Area]:
    """Return the cloud objects that an address refers to; empty for local addresses."""
    name, level, _ = place.partition(_LEVEL)
    if not _is_cloud(name):
        return []
    scheme, path = _split(name.rstrip("/"))
    if _BOX in path:  # one file per task
        return [Area(scheme, f"{path.partition(_BOX)[0]}*")]
    if level:
        return [Area(scheme, f"{path}/*")]
    return [Area(scheme, path), Area(scheme, f"{path}/*")]


def _is_cloud(place: str) -> bool:
    return place.partition("://")[0] in _CLOUDS


def _split(url: str) -> tuple[str, str]:
    scheme, _, path = url.partition("://")
    return scheme, path


def _declared_places(spec: Spec, key: str) -> Iterator[str]:
    for stage in spec.steps:
        for _, options in stage.options:
            yield from options.get(key, ())


def _mentioned(spec: Spec) -> Iterator[str]:
    # All cloud addresses in the options: an operator may use an address without declaring it.
    values: list[Any] = []
    for stage in spec.steps:
        values += [*stage.source, *(options for _, options in stage.options)]
    while values:
        value = values.pop()
        if isinstance(value, str) and any(f"{scheme}://" in value for scheme in _CLOUDS):
            try:
                yield Location.parse(value.partition(_LEVEL)[0]).store_url
            except VolumeError:  # text that only mentions an address
                continue
        elif isinstance(value, list | tuple):
            values += value
        elif isinstance(value, Mapping):
            values += value.values()


def _arns_of(url: str) -> tuple[tuple[str, str] | None, list[str]]:
    """Return the ARNs of an SQS queue and of its dead-letter queue, and remarks for the user.

    The ARNs are ``None`` if the run has no queue, or a queue of another kind.
    """
    if not url:
        return None, []
    scheme, rest = address_of(url)
    if scheme != "sqs":
        return None, [f"workers also need to read and write the file or folder of the queue {url}"]
    place = SqsAddress.of(rest)
    try:
        from chunkflow_py.queue.sqs_client import SqsClient

        with closing(SqsClient(f"queue {place.name!r}", place.endpoint, place.region)) as client:
            address = find_or_create(client, place, create=False)
            attributes = attributes_of(client, address, "QueueArn", "RedrivePolicy")
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        arn = attributes["QueueArn"]
        return (arn, redrive.get("deadLetterTargetArn", f"{arn}-dead")), []
    except ChunkflowError:
        region = (
            place.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        arn = f"arn:aws:sqs:{region or '*'}:{place.owner or '*'}:{place.name}"
        remark = (
            f"the ARN of the queue {url} could not be read; in {arn}, replace each * with your "
            "region or account number"
        )
        return (arn, f"{arn}-dead"), [remark]


def _statement(name: str, actions: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resources}


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    """Return an AWS policy of the *statements*, without statements that list no resource."""
    return {"Version": "2012-10-17", "Statement": [each for each in statements if each["Resource"]]}
