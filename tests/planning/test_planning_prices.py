"""Dollars: machines, requests and storage, by a table that says its date."""

import json
from datetime import date

import pytest

from chunkflow_py.errors import OptionError
from chunkflow_py.planning.prices import cost_of, load_prices
from chunkflow_py.planning.task_amounts import Transfer

GB = 10**9


def transfer(name, protocol, size=100 * GB, requests=10**6):
    """Return what a loader or saver moves."""
    return Transfer(name, f"{protocol}://bucket", protocol, 1, size, size, requests=requests)


def cost(reads=(), writes=(), stored=None, hour=2.0, tasks=1000):
    """Return what a stage of 10 hours costs."""
    return cost_of(load_prices(), hour, 10.0, tasks, reads, writes, stored or {})


def test_the_table_says_when_and_where_from():
    """It has a date, a source, and prices that make sense."""
    prices = load_prices()
    assert date.fromisoformat(prices.date)
    assert "list prices" in prices.source.lower()
    for instance in prices.instances.values():
        assert 0 < instance.spot_hour < instance.hour
        assert instance.memory_bytes >= 2**33
        assert bool(instance.gpu) == bool(instance.device_bytes)
    assert set(prices.stores) == {"s3", "gs"}


def test_machines_cost_their_hours():
    """Files of this machine cost nothing beside."""
    found = cost([transfer("load", "file")], [transfer("save", "file")])
    assert (found.parts, found.month, found.egress) == ({"machines": 20.0}, 0, 0)
    assert cost(hour=None).parts == {}


def test_clouds_charge_requests_and_storage():
    """Reads and writes are paid by the request, what is kept by the month, egress apart."""
    found = cost([transfer("load", "s3")], [transfer("save", "s3")], {"load": 50 * GB})
    assert found.parts["requests of load"] == pytest.approx(0.4)
    assert found.parts["requests of save"] == pytest.approx(5.0)
    assert 0.005 < found.parts["ledger and queue"] < 0.02
    assert found.month == pytest.approx(2.3)
    assert found.egress == pytest.approx(4.5)
    assert found.dollars == pytest.approx(sum(found.parts.values()))
    assert found.assumed == ("the voxels that save writes are stored without compression",)


def test_traffic_and_storage_are_part_of_the_cost_if_asked_for():
    """Both are shown anyway; with a price per gigabyte and a time, they are added."""
    reads, writes = [transfer("load", "s3"), transfer("local", "file")], [transfer("save", "s3")]
    prices = load_prices()
    amounts = (prices, 2.0, 10.0, 1000, reads, writes, {"load": 50 * GB, "save": 40 * GB})
    plain = cost_of(*amounts)
    assert plain.cross_region == pytest.approx(50 * 0.02)
    assert plain.egress == pytest.approx(50 * 0.09)
    assert (plain.stored_bytes, plain.month) == (40 * GB, pytest.approx(40 * 0.023))
    found = cost_of(*amounts, read_price=0.03, months=6)
    assert found.parts["traffic of load"] == pytest.approx(1.5)
    assert "traffic of local" not in found.parts
    assert found.parts["storage of the output"] == pytest.approx(6 * 40 * 0.023)
    assert found.dollars == pytest.approx(plain.dollars + 1.5 + 6 * 40 * 0.023)
    assert cost([transfer("load", "https")]).parts == {"machines": 20.0}


def test_a_table_without_prices_between_regions_takes_those_of_other_clouds(tmp_path):
    """Older tables lack region_gb."""
    stores = {"s3": {"gb_month": 1, "put": 2, "get": 3, "egress_gb": 4}}
    said = {"date": "2030-01-01", "source": "us", "queue_request": 0, "instances": {}}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({**said, "stores": stores}))
    assert load_prices(file).stores["s3"]["region_gb"] == 4


def test_a_file_of_prices_stands_above_the_table(tmp_path):
    """Own types, own spot prices; what is assumed of spot prices is known."""
    file = tmp_path / "prices.json"
    stores = {"s3": {"gb_month": 1, "put": 2, "get": 3, "egress_gb": 4}}
    instances = {
        "ours": {"hour": 3, "spot": 1, "memory_gib": 1},
        "mine": {"hour": 4, "memory_gib": 2},
    }
    said = {"date": "2030-01-01", "source": "us", "spot_share": 0.5, "queue_request": 0}
    file.write_text(json.dumps({**said, "stores": stores, "instances": instances}))
    prices = load_prices(file)
    ours, mine = prices.instance("ours"), prices.instance("mine")
    assert (ours.spot_hour, ours.spot_is_assumed) == (1, False)
    assert (mine.spot_hour, mine.spot_is_assumed) == (2, True)
    with pytest.raises(OptionError, match=r"of 2030-01-01 has no machine type 'our'.*are ours"):
        prices.instance("our")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"date": 1, "instances": 3}'])
def test_what_is_no_table_is_refused(tmp_path, text):
    """The file is named, and where a right one stands."""
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(OptionError, match=r"prices\.json is not a price table.*docs/planning\.md"):
        load_prices(file)
