"""Tests of chunkflow_py.store.memory_store."""

import secrets

import pytest

from chunkflow_py.testing.store_contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self):
        return f"mem://{secrets.token_hex(8)}/volume"
