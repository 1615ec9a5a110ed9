"""Contract of backends: inherit `BackendContract` and define a fixture `backend`.

A call of a backend may overwrite the result of the previous call, so the suite copies results.

```python
class TestMyBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return create_backend("mine", **self.settings)
```
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from chunkflow_py.core.geometry import Zyx


class BackendContract:
    """Tests of everything that `chunkflow_py.inference.backends.backend_protocol.Backend` promises.

    Attributes:
        input_patch_size: size of the input patch, voxels, zyx.
        output_patch_size: size of the output patch, voxels, zyx.
        num_input_channels: number of channels of each input patch.
        num_output_channels: number of channels of each output patch.
        batch_size: number of patches in a batch; at least 3.
    """

    input_patch_size = Zyx(8, 16, 16)
    output_patch_size = Zyx(4, 12, 12)
    num_input_channels = 1
    num_output_channels = 3
    batch_size = 3

    @property
    def settings(self) -> dict[str, object]:
        """Arguments with which the fixture must create the backend."""
        return {
            "input_patch_size": self.input_patch_size,
            "output_patch_size": self.output_patch_size,
            "num_input_channels": self.num_input_channels,
            "num_output_channels": self.num_output_channels,
            "batch_size": self.batch_size,
            "device": "cpu",
        }

    def batch(self, seed: int = 0) -> torch.Tensor:
        """Return a batch of random patches, all different."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.batch_size, self.num_input_channels, *self.input_patch_size)
        return torch.rand(shape, generator=generator)

    def test_returns_floats_of_either_patch_size(self, backend):
        """Results are floats (n, channels, z, y, x) of the input or the output patch size."""
        result = backend(self.batch())
        assert result.dtype.is_floating_point
        assert tuple(result.shape[:2]) == (self.batch_size, self.num_output_channels)
        assert tuple(result.shape[2:]) in (self.input_patch_size, self.output_patch_size)
        assert result.device == backend.device

    def test_leaves_its_input_alone(self, backend):
        """A call does not change its batch."""
        batch = self.batch()
        before = batch.clone()
        backend(batch)
        assert torch.equal(batch, before)

    def test_keeps_nothing_of_earlier_batches(self, backend):
        """The result of a batch does not depend on the batches that ran before."""
        first = backend(self.batch()).clone()
        backend(self.batch(seed=1))
        assert torch.equal(backend(self.batch()), first)

    def test_warming_changes_nothing(self, backend):
        """The method `warm`, if defined, can run in any thread, and does not change results."""
        warm = getattr(backend, "warm", None)
        if warm is None:
            return
        with ThreadPoolExecutor(1) as other:
            other.submit(warm).result()
        first = backend(self.batch()).clone()
        profile = backend.profile
        warm()
        assert torch.equal(backend(self.batch()), first)
        assert backend.profile == profile

    def test_is_deterministic(self, backend):
        """The same batch gives the same bytes."""
        batch = self.batch()
        first = backend(batch).clone()
        assert torch.equal(backend(batch), first)

    def test_position_in_the_batch_does_not_matter(self, backend):
        """In batches of equal shape, the position of a patch does not change its result."""
        batch = self.batch()
        order = [2, 0, 1]
        straight = backend(batch).clone()
        assert torch.equal(straight[order], backend(batch[order].contiguous()))

    def test_neighbours_in_the_batch_do_not_matter(self, backend):
        """In batches of equal shape, the other patches of a batch do not change a result."""
        batch, other = self.batch(), self.batch(seed=1)
        other[1] = batch[1]
        beside = backend(batch)[1].clone()
        assert torch.equal(beside, backend(other)[1])

    def test_takes_a_batch_that_is_a_view(self, backend):
        """A batch need not be contiguous."""
        batch = torch.cat([self.batch(), self.batch(seed=1)])[::2]
        result = backend(batch).clone()
        assert torch.equal(result, backend(batch.contiguous()))

    def test_says_what_decides_the_bytes(self, backend):
        """The compute profile maps names to texts, and contains the PyTorch version and device."""
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in backend.profile.items())
        assert {"torch", "device", "framework"} <= backend.profile.keys()

    def test_divisor_is_three_numbers_or_unknown(self, backend):
        """The divisor is three positive integers, or None."""
        assert backend.divisor is None or min(Zyx.of(backend.divisor)) >= 1
        assert isinstance(backend.weighted, bool)
