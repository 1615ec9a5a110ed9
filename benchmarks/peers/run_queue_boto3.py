"""Send, or receive and delete, by boto3 in batches of ten and nothing else."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter, process_time
from typing import Any

import boto3
from botocore.config import Config

BATCH = 10


def box(number: int) -> str:
    """Return the box string of a task of `run_queue_ours.grid_of`."""
    y, x = divmod(number, 100)
    return f"0-64_{512 * y}-{512 * y + 512}_{512 * x}-{512 * x + 512}"


def send(job: dict[str, Any]) -> dict[str, Any]:
    """Send over as many connections as there are threads."""
    connections = job["connections"]
    client = boto3.client("sqs", config=Config(max_pool_connections=connections))
    address = client.create_queue(QueueName=job["queue"].removeprefix("sqs://"))["QueueUrl"]
    firsts = count(0, BATCH)

    def send_some() -> None:
        while (first := next(firsts)) < job["tasks"]:
            entries = [{"Id": str(n), "MessageBody": box(first + n)} for n in range(BATCH)]
            answer = client.send_message_batch(QueueUrl=address, Entries=entries)
            assert len(answer["Successful"]) == BATCH

    start, cpu = perf_counter(), process_time()
    with ThreadPoolExecutor(connections) as pool:
        for future in [pool.submit(send_some) for _ in range(connections)]:
            future.result()
    return {"wall_s": perf_counter() - start, "cpu_s": process_time() - cpu}


def receive(job: dict[str, Any]) -> dict[str, Any]:
    """Receive and delete over one connection."""
    client = boto3.client("sqs")
    address = client.get_queue_url(QueueName=job["queue"].removeprefix("sqs://"))["QueueUrl"]
    done = 0
    start, cpu = perf_counter(), process_time()
    while done < job["tasks"]:
        asked = {"QueueUrl": address, "MaxNumberOfMessages": BATCH, "VisibilityTimeout": 120}
        messages = client.receive_message(**asked)["Messages"]
        entries = [
            {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
            for n, message in enumerate(messages)
        ]
        answer = client.delete_message_batch(QueueUrl=address, Entries=entries)
        assert len(answer["Successful"]) == len(messages)
        done += len(messages)
    return {"wall_s": perf_counter() - start, "cpu_s": process_time() - cpu}


def main() -> None:
    """Do what the job says."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    found = globals()[job["what"]](job)
    print(json.dumps({**found, "tasks": job["tasks"]}))


if __name__ == "__main__":
    main()
