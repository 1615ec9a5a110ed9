"""Compute the cost of a run from a dated table of prices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chunkflow_py.planning.exchange_estimate import Exchange
    from chunkflow_py.planning.task_amounts import Transfer

GIB, GB = 2**30, 10**9
_MONTH_S = 30 * 24 * 3600
_LOOKUP_READS = 3

# requests per task besides those for voxels (measured: docs/benchmarks-queue.md)
_LEDGER_PUTS, _LEDGER_GETS, _QUEUE = 1.01, 5.0, 5.3


@dataclass(frozen=True)
class Instance:
    """A type of machine.

    Attributes:
        name: name of the type, such as ``g5.xlarge``.
        hour: on-demand price, dollars per hour.
        spot_hour: price of a spot machine (one that may be preempted), dollars per hour.
        spot_is_assumed: whether the spot price is computed as a share of the on-demand price.
        memory_bytes: size of the host memory in bytes.
        device_bytes: size of the GPU memory in bytes; 0 without a GPU.
        gpu: name of the GPU; empty without a GPU.
        cores: number of virtual processors; 0 if not known.
    """

    name: str
    hour: float
    spot_hour: float
    spot_is_assumed: bool
    memory_bytes: int
    device_bytes: int = 0
    gpu: str = ""
    cores: int = 0


@dataclass(frozen=True)
class Prices:
    """A table of prices, in dollars.

    Attributes:
        date: date of the prices.
        source: text that says where the prices come from.
        instances: machine types, with their prices and memory, by name.
        stores: prices of each store, by protocol, such as ``s3``: ``gb_month`` (a gigabyte stored
            for a month), ``put`` and ``get`` (one request), ``region_gb`` (a gigabyte sent to
            another region of the same cloud), ``egress_gb`` (a gigabyte sent out of the cloud).
        queue_request: price of one request to a cloud queue.
    """

    date: str
    source: str
    instances: dict[str, Instance]
    stores: dict[str, dict[str, float]]
    queue_request: float

    def instance(self, name: str) -> Instance:
        """Return the machine type with this name.

        Raises:
            OptionError: the table does not contain this type; the message lists similar names.
        """
        if name in self.instances:
            return self.instances[name]
        near = get_close_matches(name, self.instances, 3, 0.4) or sorted(self.instances)[:3]
        msg = (
            f"the price table of {self.date} has no machine type {name!r}; similar ones are "
            f"{', '.join(near)}; give one of these types, a --price-file that contains {name}, or "
            "--price"
        )
        raise OptionError(msg)


@dataclass(frozen=True)
class Cost:
    """Cost of a step, in dollars.

    Attributes:
        parts: cost of each item, by name, such as ``machines``.
        month: cost of storing the output for a month; not part of the total cost.
        egress: cost of reading the input from another cloud; not part of the total cost.
        cross_region: cost of reading the input from another region of the same cloud; not part of
            the total cost.
        stored_bytes: size of the output that is stored in a cloud. It is the compressed size if the
            pilot measured it, else the uncompressed size.
        assumed: assumptions on which the cost is based, as text.
    """

    parts: dict[str, float] = field(default_factory=dict)
    month: float = 0.0
    egress: float = 0.0
    cross_region: float = 0.0
    stored_bytes: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def dollars(self) -> float:
        """Total cost of the step in dollars, the sum of *parts*."""
        return sum(self.parts.values())


def load_prices(path: Path | None = None) -> Prices:
    """Return the price table of a JSON file (default: the table in this package).

    Raises:
        OptionError: the file cannot be read or is not a price table.
    """
    place = files(__package__) / "prices.json" if path is None else path
    try:
        return _parsed(json.loads(place.read_text(encoding="utf-8")))
    except OSError as error:
        msg = f"--price-file {path} cannot be read: {error.strerror}"
        raise OptionError(msg) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__} {error}"
        msg = (
            f"--price-file {path} is not a price table ({what}); give a JSON file with date, "
            "source, instances, stores and queue_request, as shown in docs/planning.md"
        )
        raise OptionError(msg) from error


def _parsed(table: dict[str, Any]) -> Prices:
    share = float(table.get("spot_share", 1.0))
    instances = {
        name: Instance(
            name,
            float(each["hour"]),
            float(each.get("spot", each["hour"] * share)),
            "spot" not in each,
            round(float(each["memory_gib"]) * GIB),
            round(float(each.get("gpu_memory_gib", 0)) * GIB),
            str(each.get("gpu", "")),
            int(each.get("cores", 0)),
        )
        for name, each in table["instances"].items()
    }
    stores = {
        protocol: {name: float(each[name]) for name in ("gb_month", "put", "get", "egress_gb")}
        | {"region_gb": float(each.get("region_gb", each["egress_gb"]))}
        for protocol, each in table["stores"].items()
    }
    return Prices(
        str(table["date"]), str(table["source"]), instances, stores, float(table["queue_request"])
    )


def cost_of(
    prices: Prices,
    hour: float | None,
    machine_hours: float | None,
    tasks: int,
    reads: Sequence[Transfer],
    writes: Sequence[Transfer],
    stored: dict[str, int],
    *,
    read_price: float = 0.0,
    months: float = 0.0,
) -> Cost:
    """Return the cost of a step.

    Args:
        prices: price table, used for requests and storage.
        hour: price of a machine, dollars per hour; ``None`` if unknown.
        machine_hours: working hours of all machines together; ``None`` if unknown.
        tasks: number of tasks.
        reads: amounts that loaders read from volumes.
        writes: amounts that savers write to volumes.
        stored: stored (compressed) bytes that each loader or saver reads or writes, by operator
            name. Operators for which this number is unknown are left out.
        read_price: price of reading a gigabyte from a store that is not a file system.
        months: number of months for which the output is stored.
    """
    parts: dict[str, float] = {}
    assumed: list[str] = []
    if hour is not None and machine_hours is not None:
        parts["machines"] = hour * machine_hours
    month = egress = region = 0.0
    kept = 0
    for transfer in reads:
        size = stored.get(transfer.operator, transfer.total_bytes)
        if read_price and transfer.protocol != "file":
            name = f"traffic of {transfer.operator}"
            parts[name] = parts.get(name, 0.0) + size / GB * read_price
        if (store := prices.stores.get(transfer.protocol)) is not None:
            name = f"requests of {transfer.operator}"
            parts[name] = parts.get(name, 0.0) + transfer.requests * store["get"]
            egress += size / GB * store["egress_gb"]
            region += size / GB * store["region_gb"]
    for transfer in writes:
        if (store := prices.stores.get(transfer.protocol)) is not None:
            name = f"requests of {transfer.operator}"
            parts[name] = parts.get(name, 0.0) + transfer.requests * store["put"]
            size = stored.get(transfer.operator, transfer.total_bytes)
            kept += size
            month += size / GB * store["gb_month"]
            if "ledger and queue" not in parts:
                ledger = _LEDGER_PUTS * store["put"] + _LEDGER_GETS * store["get"]
                parts["ledger and queue"] = tasks * (ledger + _QUEUE * prices.queue_request)
            if transfer.operator not in stored:
                assumed.append(
                    f"the voxels that {transfer.operator} writes are stored without compression"
                )
    if months and month:
        parts["storage of the output"] = months * month
    return Cost(parts, month, egress, region, kept, tuple(assumed))


def exchange_cost(
    prices: Prices, protocol: str | None, exchanges: Sequence[Exchange], seconds: float
) -> dict[str, float]:
    """Return the cost of the exchange of patches, in dollars: requests and storage, by item.

    Removing an object is free. A list request costs as much as writing an object. The cost includes
    the requests to the ledger (the records of finished tasks). The ledger is assumed to be in the
    same store as the exchange.

    Args:
        prices: price table.
        protocol: protocol of the store of the parts (pieces of patches that tasks exchange);
            nothing is charged for stores without prices.
        exchanges: amounts that tasks exchange, for each network with patches that several tasks
            share.
        seconds: duration of the step. The cost of storage assumes that the peak amount of parts is
            stored for this whole time.
    """
    store = prices.stores.get(protocol or "")
    if store is None:
        return {}
    writes = sum(each.objects + each.lists for each in exchanges)
    # For each object, the ledger is asked whether its reader has ended: two headers, one entry.
    reads = sum((1 + _LOOKUP_READS) * each.objects for each in exchanges)
    stored = sum(each.peak_bytes for each in exchanges) / GB
    return {
        "requests of the exchange": writes * store["put"] + reads * store["get"],
        "storage of the exchange": stored * store["gb_month"] * seconds / _MONTH_S,
    }
