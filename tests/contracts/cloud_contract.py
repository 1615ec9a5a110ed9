"""Tests that every volume driver passes in buckets, on each of the emulators, and under faults."""

import numpy as np
import pytest
from rigs.s3 import SEVERAL_FAULTS

from chunkflow_py.core.geometry import BoxGrid
from chunkflow_py.errors import VolumeError
from chunkflow_py.testing.volume_contract import BOUNDS, VolumeContract, noise
from chunkflow_py.volume import open_volume

DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class CloudContract(VolumeContract):
    """The same promises in buckets, on each of the emulators, and under faults."""

    pytestmark = pytest.mark.aws

    @pytest.fixture
    def url(self, s3):
        """Return where the volume of this test goes."""
        return f"{self.scheme}://{s3.url}/em"

    def test_faults(self, url, s3):
        """One request in ten fails: what is written and read is the same, and takes no longer."""
        chunk = noise()
        self.create(url).write(chunk)
        calm = self.objects(url)
        self.store(url).delete(self.stored_blocks(url)[0])
        with s3.faults(*SEVERAL_FAULTS):
            volume = self.create(url)
            for box in BoxGrid.covering(BOUNDS, self.unit):
                volume.write(chunk.cut(box.intersection(BOUNDS)))
            np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)
        assert self.objects(url) == calm

    def test_forbidden(self, url, s3):
        """What is not allowed is told at once, and not tried again."""
        self.create(url)
        refused = pytest.raises(VolumeError, match=r"(?i)denied|permission|not allowed")
        with s3.faults({"type": "status", "code": 403, "body": DENIED}), refused:
            open_volume(url)
