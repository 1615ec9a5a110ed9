"""Receive and delete by the queue of chunkflow 1.2.0, as its fetch-task-from-sqs does."""

import json
import sys
from time import perf_counter, process_time

from chunkflow.lib.aws.sqs_queue import SQSQueue


def main() -> None:
    """Take tasks one by one, with its own settings."""
    job = json.loads(sys.argv[1])
    queue = SQSQueue(job["queue"].removeprefix("sqs://"), visibility_timeout=120)
    start, cpu = perf_counter(), process_time()
    for _ in range(job["tasks"]):
        handle, body = queue.handle_and_message
        assert body
        queue.delete(handle)
    times = {"wall_s": perf_counter() - start, "cpu_s": process_time() - cpu}
    print(json.dumps({**times, "tasks": job["tasks"]}))


if __name__ == "__main__":
    main()
