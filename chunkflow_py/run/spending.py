"""The budget of a run, and what the workers of the run have spent together.

```
<run>/budget.json                                the budget; may be changed at any time
<run>/spending/<worker>-<report>-<cost>-<rate>   latest report of a worker
```

A worker reports its cost: the price of its machine, multiplied by the time since the worker started
(including idle time and failed attempts). The cost is part of the name of the report, so listing
the reports is enough to know the costs of all workers. Listing the reports of 3,600 workers takes 4
requests; reading every report would take 3,600 requests.

A report includes the expected cost until the next report. The sum of all reports is therefore never
less than what running workers have spent. If a worker is killed, the sum is too large by at most
the cost of the time between two reports. When the budget is spent, a worker only finishes the tasks
that it has begun, and reports only the cost so far. The last report of a worker that ends is exact.

A worker reports at least every two minutes. Shortly before the budget is spent, a worker reports
more often, so that it notices in time that the budget is spent: the interval is then a quarter of
the time until the budget is expected to be spent.
"""

from __future__ import annotations

import json
import logging
import math
import random
import re
import secrets
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from chunkflow_py.core import strict_json
from chunkflow_py.errors import ChunkflowError, OptionError, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

FOLDER = "spending"  # of the run directory
LONGEST_INTERVAL_S = 120.0  # between two reports of a worker
SHORTEST_INTERVAL_S = 0.5
_SHARE = 0.25  # of the time until the budget would be reached, that passes until the next report
_EARLY = (0.75, 1.0)  # a report is made after this share of its interval, before its time is over
_LISTS_PER_S = 1000.0  # requests of all workers together; S3 allows 5,500 per prefix
_RETRY_S = 10.0  # after a failed report
_CLOSE_S = 5.0  # longest time for which a worker that ends waits for its last report
_PAGE = 1000  # objects that one request lists

_BUDGET = "budget.json"
_LONGEST_BUDGET = 1024  # bytes
_LARGEST = 1e12
_UNIT = 1e-6  # unit of the amounts in the names of reports
_REPORT = re.compile(r"([0-9a-f]{12})-([0-9]{8})-([0-9]{15,18})-([0-9]{1,18})")


# --- the budget -----------------------------------------------------------------------------------


def set_budget(store: Store, amount: float | None) -> None:
    """Store the budget of a run; ``None`` removes the budget.

    Raises:
        OptionError: the amount is not a finite number greater than 0.
    """
    if amount is None:
        store.delete(_BUDGET)
    else:
        check_budget(amount)
        store.put(_BUDGET, json.dumps({"budget": amount}).encode())


def check_budget(amount: float) -> None:
    """Check that *amount* can be the budget of a run.

    Raises:
        OptionError: the amount is not a finite number greater than 0.
    """
    if not _is_amount(amount):
        msg = f"a budget of {amount} is not possible; give a number greater than 0, such as 500"
        raise OptionError(msg)


def budget_of(store: Store) -> float | None:
    """Return the budget of a run; ``None`` if the run has none.

    Raises:
        OptionError: the stored budget cannot be read. If workers ignored such a budget, they would
            spend too much.
    """
    content = store.get(_BUDGET, _LONGEST_BUDGET)
    if content is None:
        return None
    try:
        stored = strict_json.loads(content)
    except ValueError:
        stored = None
    amount = stored.get("budget") if isinstance(stored, dict) else None
    if not _is_amount(amount):
        msg = (
            f"{store.url}/{_BUDGET} contains {content[:80]!r}, which is not a budget such as "
            '{"budget": 500}; set the budget again with chunkflow budget RUN AMOUNT'
        )
        raise OptionError(msg)
    return float(amount)


def _is_amount(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= _LARGEST


# --- what is spent --------------------------------------------------------------------------------


class Spending(NamedTuple):
    """The sum of the costs in the latest reports of all workers of a run.

    Attributes:
        cost: cost of the workers, in the currency of ``--cost-per-hour``.
        per_hour: cost per hour of the workers that have not ended.
        live: number of workers that have not reported their end, including killed workers.
        reports: number of objects that were listed.
    """

    cost: float = 0.0
    per_hour: float = 0.0
    live: int = 0
    reports: int = 0


def spending_of(store: Store, without: str = "") -> Spending:
    """Return the sum of the costs in the latest reports of all workers of a run.

    Args:
        store: store of the run directory.
        without: identifier of a worker whose reports are left out.
    """
    last: dict[str, tuple[int, int, int]] = {}
    reports = 0
    for key in store.list(f"{FOLDER}/"):
        reports += 1
        match = _REPORT.fullmatch(key.removeprefix(f"{FOLDER}/"))
        if match is None or match[1] == without:
            continue
        report = int(match[2]), int(match[3]), int(match[4])
        last[match[1]] = max(report, last.get(match[1], report))
    return Spending(
        _UNIT * sum(cost for _, cost, _ in last.values()),
        _UNIT * sum(rate for _, _, rate in last.values()),
        sum(rate > 0 for _, _, rate in last.values()),
        reports,
    )


def money(amount: float) -> str:
    """Return an amount as text with two decimals; amounts below 1 have three significant digits."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.3g}"


def budget_reached(home: RunDirectory) -> str | None:
    """Return a sentence for the user if the budget of a run is spent, else ``None``.

    Raises:
        OptionError: the stored budget cannot be read.
    """
    if (budget := budget_of(home.store)) is None:
        return None
    return _reached(home.shown, budget, spending_of(home.store).cost)


def spending_text(home: RunDirectory) -> str:
    """Return a phrase about the cost and the budget of a run; empty if both are unknown.

    Raises:
        OptionError: the stored budget cannot be read.
    """
    budget, spending = budget_of(home.store), spending_of(home.store)
    return describe(home.shown, budget, spending.cost if spending.reports else None)


def describe(run: str, budget: float | None, cost: float | None, *, is_over: bool = False) -> str:
    """Return a phrase about the cost and the budget of a run; empty if both are ``None``.

    Args:
        run: address of the run.
        budget: budget of the run; ``None`` if it has none.
        cost: cost of all workers; ``None`` if no worker has reported its cost.
        is_over: whether all tasks of the run have ended.
    """
    if budget is None:
        return "" if cost is None else f"{money(cost)} spent, without a budget"
    text = f"{money(cost or 0)} spent of a budget of {money(budget)}"
    if is_over or cost is None or cost < budget:
        return text
    return (
        f"{text}, so workers take no more tasks; raise the budget with chunkflow budget {run} "
        "AMOUNT, and start workers again"
    )


def _reached(run: str, budget: float, cost: float) -> str | None:
    if cost < budget:
        return None
    return (
        f"the workers of the run have spent {money(cost)}, and its budget is {money(budget)}; to "
        f"go on, raise the budget with chunkflow budget {run} AMOUNT, and start workers again"
    )


class SpendingMeter:
    """Reports the cost of one worker, and compares the cost of all workers with the budget.

    Args:
        store: store of the run directory.
        run: address of the run, for messages.
        cost_per_hour: price of this machine.
        clock: function that returns the current time in seconds.

    Attributes:
        reached: message for the user when the budget is spent; ``None`` before.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        cost_per_hour: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reached: str | None = None
        self._store, self._run, self._rate, self._clock = store, run, cost_per_hour, clock
        self._worker = secrets.token_hex(6)
        self._began = clock()
        self._reports = 0
        self._key = ""  # of the last report

    @property
    def cost(self) -> float:
        """Cost of this worker so far."""
        return self._rate * (self._clock() - self._began) / 3600

    def check(self) -> float:
        """Report the cost of this worker, and return the seconds until the next report.

        The attribute `reached` is updated. If the budget is already spent before the first report,
        the worker reports nothing.

        Raises:
            OptionError: the stored budget cannot be read.
            ChunkflowError: the store cannot be reached.
        """
        budget, reached, interval_s = budget_of(self._store), None, LONGEST_INTERVAL_S
        if budget is not None:
            others = spending_of(self._store, without=self._worker)
            cost = others.cost + self.cost
            reached = _reached(self._run, budget, cost)
            if reached is None:
                left_s = 3600 * (budget - cost) / (others.per_hour + self._rate)
                pages = max(1, math.ceil(others.reports / _PAGE))
                least_s = max(SHORTEST_INTERVAL_S, (others.live + 1) * pages / _LISTS_PER_S)
                interval_s = max(least_s, min(LONGEST_INTERVAL_S, _SHARE * left_s))
        self.reached = reached
        if reached is None:
            self._report(self.cost + self._rate * interval_s / 3600, self._rate)
        elif self._key:  # this worker only finishes its tasks, so nothing is paid in advance
            self._report(self.cost, self._rate)
        return interval_s * random.uniform(*_EARLY)  # noqa: S311

    def close(self) -> None:
        """Report the exact cost of this worker, which has ended."""
        if self._key:
            self._report(self.cost, 0.0)

    def _report(self, cost: float, per_hour: float) -> None:
        self._reports += 1
        # Rounded up: a sum of many costs must not be too small.
        amount, rate = math.ceil(cost / _UNIT), math.ceil(per_hour / _UNIT)
        key = f"{FOLDER}/{self._worker}-{self._reports:08}-{amount:015}-{rate}"
        self._store.put(key, b"")
        if self._key:  # whoever lists both takes the later one
            self._store.delete(self._key)
        self._key = key


@contextmanager
def metered(home: RunDirectory, cost_per_hour: float | None) -> Iterator[SpendingMeter | None]:
    """Report the cost of this worker in a thread until the ``with`` block ends.

    Yields the `SpendingMeter` of the worker. *cost_per_hour* is the price of this machine. If the
    price is ``None`` and the run has no budget, nothing is reported, and ``None`` is yielded.

    Raises:
        OptionError: the run has a budget, but the price of this machine is unknown, or the stored
            budget cannot be read.
    """
    if not cost_per_hour:
        if (budget := budget_of(home.store)) is not None:
            msg = (
                f"{home.shown} has a budget of {money(budget)}, so the worker needs the price "
                "of this machine; add --cost-per-hour PRICE"
            )
            raise OptionError(msg)
        yield None
        return
    meter = SpendingMeter(home.store, home.shown, cost_per_hour)
    is_over = threading.Event()
    # The thread also makes the last report, so that a worker need not wait for a slow store.
    thread = threading.Thread(
        target=_keep_reporting, args=(meter, meter.check(), is_over), name="spending", daemon=True
    )
    thread.start()
    try:
        yield meter
    finally:
        is_over.set()
        thread.join(_CLOSE_S)


def _keep_reporting(meter: SpendingMeter, wait_s: float, is_over: threading.Event) -> None:
    while not is_over.wait(wait_s):
        try:
            wait_s = meter.check()
        except Exception as error:  # noqa: BLE001  (the thread must live)
            wait_s = min(wait_s, _RETRY_S)
            logger.warning(
                "cannot report the cost of this worker, or compare the cost of the run with the "
                "budget; trying again in %.1f s: %s",
                wait_s,
                named(error),
            )
    try:
        meter.close()
    except ChunkflowError as error:
        logger.warning("cannot report the final cost of this worker: %s", error)
