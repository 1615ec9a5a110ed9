"""What does not fit is refused before anything is read, and what would fit is named."""

import logging
from dataclasses import replace

import pytest
import torch

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.activations import Activations
from chunkflow_py.inference.fit import (
    check_fits,
    largest_batch,
    lowered_batch,
    out_of_memory,
    smaller_batch,
)
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.memory import Workload, forecast
from chunkflow_py.inference.settings import EngineSettings

PATCH = Zyx(20, 256, 256)
SETTINGS = EngineSettings(PatchGeometry(PATCH, PATCH, Zyx(4, 64, 64)), batch_size=8)
WORKLOAD = Workload(
    settings=SETTINGS,
    activations=Activations(8 * 500_000_000, 8 * PATCH.product()),
    weight_bytes=7_000_000,
    input_size=Zyx(128, 2048, 2048),
    output_size=Zyx(128, 2048, 2048),
    divisor=Zyx(1, 16, 16),
    resident_bytes=300_000_000,
)
NEED = forecast(WORKLOAD).host_bytes
GPU = replace(WORKLOAD, device=torch.device("cuda"))
GB = 1_000_000_000


def test_what_fits_is_let_through(caplog):
    """Nothing is said of a run with room to spare."""
    check_fits(forecast(WORKLOAD), 2 * NEED)
    assert not caplog.records


def test_what_nearly_fills_memory_is_warned_of(caplog):
    """The forecast may be a little wrong, so a run that hardly fits is let through with a word."""
    with caplog.at_level(logging.WARNING):
        check_fits(forecast(WORKLOAD), int(1.05 * NEED))
    assert "nearly all" in caplog.text


def test_what_does_not_fit_is_refused_with_what_would():
    """Both numbers, and the largest chunk, batch and patch that fit; each of them does."""
    limit = int(0.75 * NEED)
    with pytest.raises(OptionError) as raised:
        check_fits(forecast(WORKLOAD), limit)
    text = str(raised.value)
    assert f"{NEED / 1e9:.2f} GB of host memory" in text
    assert f"{limit / 1e9:.2f} GB are available" in text
    chunk = Zyx(*map(int, text.partition("chunks of (")[2].partition(")")[0].split(",")))
    batch = int(text.partition("--batch-size ")[2].partition(",")[0])
    patch = Zyx(*map(int, text.partition("--input-patch-size ")[2].split()))
    geometry = PatchGeometry(patch, patch, SETTINGS.geometry.output_patch_overlap)
    for other in (
        WORKLOAD.with_output_size(chunk),
        WORKLOAD.with_batch_size(batch),
        WORKLOAD.with_patch(geometry),
    ):
        assert 0.5 * limit < forecast(other).host_bytes <= limit
    assert forecast(WORKLOAD.with_batch_size(batch + 1)).host_bytes > limit
    assert not any(patch % WORKLOAD.divisor)
    assert not any(chunk % SETTINGS.geometry.stride)


def test_what_never_fits_is_said_to_never_fit():
    """No size is named that would not do."""
    with pytest.raises(OptionError, match="neither smaller chunks nor a smaller batch or patch"):
        check_fits(forecast(WORKLOAD), 200_000_000)


def test_an_unknown_network_is_refused_only_by_the_rest():
    """What is known not to fit is refused; the rest is not guessed."""
    unknown = replace(WORKLOAD, activations=None)
    need = forecast(unknown).host_bytes
    check_fits(forecast(unknown), 2 * need)
    with pytest.raises(OptionError, match="at least"):
        check_fits(forecast(unknown), need // 2)


def test_a_gpu_is_checked_beside_its_host():
    """Whichever of the two memories is too small is named."""
    need = forecast(GPU).device_bytes
    check_fits(forecast(GPU), 100 * GB, 2 * need)
    with pytest.raises(OptionError, match="of device memory"):
        check_fits(forecast(GPU), 100 * GB, need // 2)
    with pytest.raises(OptionError, match="of host memory"):
        check_fits(forecast(GPU), GB, 2 * need)


def test_the_memory_of_this_machine_is_asked_for():
    """Without numbers the system is asked; nothing here has 100 TB."""
    with pytest.raises(OptionError, match="are available"):
        check_fits(forecast(replace(WORKLOAD, weight_bytes=10**14)))


def test_the_largest_batch_is_the_largest():
    """It fits, and one more patch does not; 0 if not even one does."""
    need = forecast(GPU.with_batch_size(3)).device_bytes
    assert largest_batch(GPU, 100 * GB, need) == 3
    assert largest_batch(GPU, 100 * GB, 100 * GB) == 8
    assert largest_batch(GPU, 100 * GB, GB // 10) == 0


@pytest.mark.parametrize(
    ("failed", "foretold", "smaller"),
    [(8, 3, 3), (8, 7, 4), (8, 0, 4), (2, None, 1), (1, 1, None)],
)
def test_after_a_batch_that_did_not_fit_a_smaller_one_is_tried(failed, foretold, smaller):
    """As foretold, but at most half; nothing is smaller than one patch."""
    assert smaller_batch(failed, foretold) == smaller


def test_what_is_said_when_memory_ends():
    """The batch that fits, and how to go on with it; and that results are not quite the same."""
    text = out_of_memory(torch.device("cuda:1"), 8, 4)
    assert "cuda:1" in text
    assert "--batch-size 8" in text
    assert "--batch-size 4, or --lower-batch" in text
    assert "--input-patch-size" in out_of_memory(torch.device("cuda"), 1, None)
    assert "numerical profile" in lowered_batch(8, 4)
