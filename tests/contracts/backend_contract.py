"""What every backend promises the engine; inherit, and give a `backend` fixture.

```python
class TestMyBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return create_backend("mine", **self.settings)
```
"""

from __future__ import annotations

import pytest
import torch

from chunkflow_py.geometry import Zyx


class BackendContract:
    """Promises of `chunkflow_py.inference.backends.protocol.Backend`."""

    input_patch_size = Zyx(8, 16, 16)
    output_patch_size = Zyx(4, 12, 12)
    num_input_channels = 1
    num_output_channels = 3

    @property
    def settings(self) -> dict[str, object]:
        """Arguments of create_backend that the suite counts on."""
        return {
            "input_patch_size": self.input_patch_size,
            "output_patch_size": self.output_patch_size,
            "num_input_channels": self.num_input_channels,
            "num_output_channels": self.num_output_channels,
            "device": "cpu",
        }

    def batch(self, number: int, seed: int = 0) -> torch.Tensor:
        """Return *number* different patches."""
        generator = torch.Generator().manual_seed(seed)
        shape = (number, self.num_input_channels, *self.input_patch_size)
        return torch.rand(shape, generator=generator)

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_returns_float32_of_either_patch_size(self, backend, number):
        """Any batch size gives (n, channels, z, y, x) float32 of input or output patch size."""
        result = backend(self.batch(number))
        assert result.dtype == torch.float32
        assert tuple(result.shape[:2]) == (number, self.num_output_channels)
        assert tuple(result.shape[2:]) in (self.input_patch_size, self.output_patch_size)
        assert result.device == backend.device

    def test_leaves_its_input_alone(self, backend):
        """A batch holds the same values after the call, also if the result is overwritten."""
        batch = self.batch(2)
        before = batch.clone()
        backend(batch).fill_(7)
        assert torch.equal(batch, before)

    def test_returns_a_fresh_tensor(self, backend):
        """A result does not change when the next batch runs, and may be changed."""
        first = backend(self.batch(1))
        kept = first.clone()
        backend(self.batch(1, seed=1)).add_(1)
        assert torch.equal(first, kept)
        assert torch.equal(backend(self.batch(1)), kept)

    def test_is_deterministic(self, backend):
        """The same batch gives the same bytes."""
        batch = self.batch(3)
        assert torch.equal(backend(batch), backend(batch))

    def test_position_in_the_batch_does_not_matter(self, backend):
        """In batches of one shape a patch gives the same bytes wherever it stands."""
        batch = self.batch(3)
        order = [2, 0, 1]
        assert torch.equal(backend(batch)[order], backend(batch[order].contiguous()))

    def test_neighbours_in_the_batch_do_not_matter(self, backend):
        """In batches of one shape a patch gives the same bytes whatever stands beside it."""
        batch, other = self.batch(3), self.batch(3, seed=1)
        other[1] = batch[1]
        assert torch.equal(backend(batch)[1], backend(other)[1])

    def test_takes_a_batch_that_is_a_view(self, backend):
        """A batch need not be contiguous."""
        batch = self.batch(4)[::2]
        assert torch.equal(backend(batch), backend(batch.contiguous()))

    def test_says_what_decides_the_bytes(self, backend):
        """The profile is text, and names PyTorch and the device."""
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in backend.profile.items())
        assert {"torch", "device", "framework"} <= backend.profile.keys()

    def test_divisor_is_three_numbers_or_unknown(self, backend):
        """The divisor is a positive Zyx, or None."""
        assert backend.divisor is None or min(Zyx.of(backend.divisor)) >= 1
        assert isinstance(backend.weighted, bool)
