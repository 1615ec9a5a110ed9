"""Drills whose queue and store are emulators of a cloud, behind the fault proxy."""

import re
import secrets
from contextlib import closing

from chunkflow_py.queue.queue_protocol import open_queue

LEDGER = "drill.run/ledger/drill"
RENEWAL, DELETION = "ChangeMessageVisibility", "DeleteMessage"


def in_cloud(make_drill, s3, *args, variables=None, **keywords):
    """Return a drill in a new bucket, with a new queue.

    Args:
        make_drill: the fixture.
        s3: a bucket, see `rigs.s3`.
        *args: of `Drill`.
        variables: more of the environment, such as where another server of SQS is.
        **keywords: of `Drill`.
    """
    return make_drill(
        *args,
        run=f"s3://{s3.bucket}/drill.run",
        queue=f"sqs://drill-{secrets.token_hex(6)}",
        output=f"zarr://s3://{s3.bucket}/out.zarr",
        variables=s3.environment | (variables or {}),
        **keywords,
    )


def action_of(request):
    """Return the action of SQS that a request of the log asks for, or nothing."""
    headers = {name.lower(): value for name, value in request["headers"].items()}
    return headers.get("x-amz-target", "").rpartition(".")[2]


def asked(log, action="", path="", method=""):
    """Return the requests of a log for an action of SQS, or whose path and method match."""
    return [
        each
        for each in log
        if action in action_of(each)
        and re.search(path, each["path"])
        and re.fullmatch(method or ".*", each["method"])
    ]


def bodies_of(queue_url, lease_s=60.0):
    """Take all messages out of a queue; return their bodies."""
    bodies = []
    with closing(open_queue(queue_url)) as queue:
        while messages := queue.receive(100, lease_s, 1):
            bodies += [message.body for message in messages]
            queue.acknowledge(messages)
    return bodies
