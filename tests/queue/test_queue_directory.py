"""The queue in a shared folder."""

import pytest
from contracts.queue_contract import QueueContract


class TestDirectoryQueue(QueueContract):
    """The contract of every queue."""

    many_messages = 30_000

    @pytest.fixture
    def url(self, tmp_path):
        """Return a folder that does not exist, in one that does not either."""
        return f"file://{tmp_path}/a folder/tasks #1?"
