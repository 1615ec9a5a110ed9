"""The lease that a queue of SQS is made with."""

from contextlib import closing

import pytest

from chunkflow_py.queue.queue_protocol import open_queue

pytestmark = pytest.mark.aws


@pytest.mark.parametrize(("asked", "made"), [(77, "77"), (None, "120")])
def test_a_queue_is_made_with_the_lease_that_is_asked_for(sqs, asked, made):
    """Who receives without saying how long gets that; a queue that is there stays as it is."""
    name = f"lease-{made}"
    for lease_s in (asked, 999):
        with closing(open_queue(name, create=True, lease_s=lease_s)):
            url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            assert found["VisibilityTimeout"] == made
