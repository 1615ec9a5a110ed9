"""Settings for all tests."""

import os

from hypothesis import settings
from rigs.s3 import google, gs, ministack, ministack_address, moto, s3  # fixtures
from rigs.sqs import fauxqs, sqs_queue, sqs_server

# Machines that run the suite are slow and shared: time is no reason to fail an example. A gate has
# to give one answer, so it draws the same examples each time; elsewhere each run draws new ones.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")

__all__ = [
    "fauxqs", "google", "gs", "ministack", "ministack_address", "moto", "s3", "sqs_queue",
    "sqs_server",
]  # fmt: skip
