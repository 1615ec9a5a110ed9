"""What a fleet needs at the same time, compared with the quotas of services."""

from __future__ import annotations

import pytest

from chunkflow_py.errors import OptionError
from chunkflow_py.planning.duration_estimate import Fleet
from chunkflow_py.planning.prices import load_prices
from chunkflow_py.planning.quotas import message_use, rate_uses, vcpu_use
from chunkflow_py.planning.task_amounts import Transfer

INSTANCE = load_prices().instance("g5.xlarge")  # 4 vCPUs


def transfer(name, protocol, requests):
    """Return what a loader or saver moves."""
    return Transfer(name, f"{protocol}://bucket", protocol, 1, 1, 1, requests=requests)


def test_vcpus_are_those_of_all_machines():
    """A quota that is too small is a problem, with the number of machines that it allows."""
    use = vcpu_use(INSTANCE, Fleet(3600, 2), 14_399)
    assert use is not None
    assert (use.amount, use.quota, use.is_exceeded, use.is_problem) == (14_400, 14_399, True, True)
    assert "give --machines 3599, or ask the provider" in use.remedy
    assert str(use) == "14,400 of 14,399 vCPUs (--vcpu-quota)"
    enough = vcpu_use(INSTANCE, Fleet(3600, 2), 14_400)
    assert enough is not None
    assert not enough.is_exceeded
    none = vcpu_use(INSTANCE, Fleet(1), 3)
    assert none is not None
    assert none.remedy == "ask the provider for a larger quota", "not even one machine fits"
    unknown = vcpu_use(INSTANCE, Fleet(2), None)
    assert unknown is not None
    assert (str(unknown), unknown.is_exceeded) == (
        "8 vCPUs (g5.xlarge; your quota is not known)", False
    )  # fmt: skip


def test_a_quota_needs_a_type_of_machine(tmp_path):
    """Otherwise, the number of processors is unknown; a table need not have it."""
    assert vcpu_use(None, Fleet(2), None) is None
    with pytest.raises(OptionError, match="--vcpu-quota 64 needs .* add --instance TYPE"):
        vcpu_use(None, Fleet(2), 64)
    file = tmp_path / "prices.json"
    file.write_text(
        '{"date": "2030-01-01", "source": "us", "queue_request": 0, "stores": {}, '
        '"instances": {"ours": {"hour": 3, "memory_gib": 1}}}'
    )
    ours = load_prices(file).instance("ours")
    assert vcpu_use(ours, Fleet(2), None) is None
    with pytest.raises(OptionError, match="add cores of ours to the --price-file"):
        vcpu_use(ours, Fleet(2), 64)


def test_messages_in_flight_are_those_that_workers_hold():
    """As many as each pipeline holds; more of short tasks; SQS allows 120,000."""
    assert message_use(Fleet(3600), 5, 60.0).amount == 3600 * 5
    assert message_use(Fleet(3600, 2), 5, None).amount == 3600 * 10
    assert message_use(Fleet(1), 5, 0.01).amount == 5 + 5 + 25
    assert not message_use(Fleet(24_000), 5, 60.0).is_exceeded
    use = message_use(Fleet(24_001), 5, 60.0)
    assert use.is_exceeded
    assert not use.is_problem, "the queue may be another one"


def test_a_worker_holds_what_is_planned(tmp_path):
    """The estimate is the target of a real pool."""
    from rigs.workers import Stage

    stage = Stage(tmp_path, 200)
    stage.send()
    supervisor = stage.supervisor(seconds=0.2, ahead=1, processes=2)
    most = 0

    def observe(snapshot, *, is_last):
        nonlocal most
        most = max(most, snapshot().leases)
        if len(stage.notes.records) >= 12 or is_last:
            supervisor.stop("enough")

    stage.notes.may_observe = observe
    supervisor.run()
    # One stage, which holds one task, and one that waits for it.
    window = 2
    assert window <= most <= message_use(Fleet(1, 2), window, 0.2).amount


def test_rates_are_means_over_the_step():
    """Only stores with a limit count; exceeding it is no problem, because stores grow."""
    reads = [transfer("load", "s3", 600_000), transfer("mask", "file", 10**9)]
    writes = [transfer("save", "gs", 110_000), transfer("none", "s3", 0)]
    get, put = rate_uses(reads, writes, 100.0)
    assert (get.what, get.amount, get.quota) == ("GET requests per second by load", 6000, 5500)
    assert (put.what, put.amount, put.quota) == ("PUT requests per second by save", 1100, 1000)
    assert get.is_exceeded
    assert not get.is_problem
    assert str(get) == "6,000 of 5,500 GET requests per second by load (S3, per prefix)"
    assert not any(use.is_exceeded for use in rate_uses(reads, writes, 200.0))
