"""The queue in a SQLite file."""

import pytest
from contracts.queue_contract import QueueContract


class TestSqliteQueue(QueueContract):
    """The contract of every queue."""

    @pytest.fixture
    def url(self, tmp_path):
        """Return a file that does not exist, in a folder that does not either."""
        return f"sqlite://{tmp_path}/a folder/tasks #1?.db"
