"""The inner loop of `region_merging`: merges regions from the best contact to the worst.

If numba is installed (extra ``numba``), it compiles the loop. Without numba, Python interprets the
loop, which is slower but has the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    _Array = NDArray[np.int64]

F = TypeVar("F", bound="Callable[..., Any]")

try:
    from numba import njit
except ImportError:  # pragma: no cover  (depends on the environment)
    njit = None  # type: ignore[assignment, unused-ignore]

IS_COMPILED = njit is not None


def _compiled(function: F) -> F:
    if njit is None:
        return function
    return cast("F", njit(cache=True, nogil=True)(function))


# The same computation as in `contacts.mean_keys`, for one mean.
@_compiled
def _key(total: int, count: int) -> tuple[int, int]:
    whole = total // count
    rest = (total - whole * count) << 31
    high = rest // count
    low = ((rest - high * count) << 31) // count
    return whole, (high << 31) | low


@_compiled
def _is_better(
    whole: int, rest: int, tie: int, other_whole: int, other_rest: int, other_tie: int
) -> bool:
    if whole != other_whole:
        return whole > other_whole
    if rest != other_rest:
        return rest > other_rest
    return tie < other_tie


@_compiled
def _sift(heap: _Array, size: int, at: int, whole: _Array, rest: _Array, tie: _Array) -> None:
    # Moves an entry down until both of its children are worse. *whole*, *rest* and *tie* are the
    # keys with which the edges were pushed, because keys in the heap must not change.
    edge = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size:
            a, b = heap[other], heap[child]
            if _is_better(whole[a], rest[a], tie[a], whole[b], rest[b], tie[b]):
                child = other
        b = heap[child]
        if not _is_better(whole[b], rest[b], tie[b], whole[edge], rest[edge], tie[edge]):
            break
        heap[at] = b
        at = child
    heap[at] = edge


@_compiled
def _slot(table: _Array, keys_a: _Array, keys_b: _Array, a: int, b: int) -> int:
    if a > b:
        a, b = b, a
    mask = len(table) - 1
    at = ((a * 0x9E3779B1) ^ (b * 0x85EBCA77)) & mask
    while table[at] >= 0 and not (keys_a[at] == a and keys_b[at] == b):
        at = (at + 1) & mask
    return at


@_compiled
def merge_best_first(
    first: _Array,
    second: _Array,
    total: _Array,
    count: _Array,
    tie: _Array,
    blocked: NDArray[np.bool_],
    least_whole: int,
    least_rest: int,
) -> tuple[_Array, _Array, _Array, _Array, _Array]:
    """Merge regions from the best contact to the worst; see `region_merging`.

    Args:
        first: for each contact, the number of its first region. Regions are numbered from 0, and
            each pair of regions occurs once.
        second: for each contact, the number of its second region.
        total: sum of the affinities of the edges of each contact; overwritten.
        count: number of edges of each contact; overwritten.
        tie: lowest index of the edges of each contact; overwritten.
        blocked: mask of the regions that must not be merged. The function also sets the mask for
            regions whose best contact is with a blocked region.
        least_whole: first of the two integers that `contacts.mean_keys` returns for the smallest
            mean at which regions are merged.
        least_rest: second of the two integers.

    Returns:
        Five arrays with one entry for each merge, in the order of the merges: the region that keeps
        its number (the lower one), the region that loses its number, and the sum, the count and the
        tie of their contact.
    """
    edges, nodes = len(first), len(blocked)
    a_end, b_end = first.copy(), second.copy()
    # Contacts of a node form a list: half edge 2 * edge belongs to a_end, 2 * edge + 1 to b_end.
    head = np.full(nodes, -1, np.int64)
    following = np.full(2 * edges, -1, np.int64)
    previous = np.full(2 * edges, -1, np.int64)
    degree = np.zeros(nodes, np.int64)
    for half in range(2 * edges):
        node = a_end[half >> 1] if half % 2 == 0 else b_end[half >> 1]
        following[half] = head[node]
        if head[node] >= 0:
            previous[head[node]] = half
        head[node] = half
        degree[node] += 1
    # Contacts are found by their nodes. Entries of nodes that were merged into others remain.
    size = 16
    while size < 4 * edges:
        size *= 2
    table = np.full(size, -1, np.int64)
    keys_a, keys_b = np.zeros(size, np.int64), np.zeros(size, np.int64)
    used = 0
    for edge in range(edges):
        at = _slot(table, keys_a, keys_b, a_end[edge], b_end[edge])
        table[at] = edge
        keys_a[at] = min(a_end[edge], b_end[edge])
        keys_b[at] = max(a_end[edge], b_end[edge])
        used += 1
    whole, rest = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    heap = np.zeros(edges, np.int64)
    waiting = 0
    for edge in range(edges):
        whole[edge], rest[edge] = _key(total[edge], count[edge])
        if not _is_better(least_whole, least_rest, 0, whole[edge], rest[edge], 0):
            heap[waiting] = edge
            waiting += 1
    # Keys as pushed: those of a contact only get worse, so an entry is looked at in time.
    pushed_whole, pushed_rest, pushed_tie = whole.copy(), rest.copy(), tie.copy()
    for at in range(waiting // 2 - 1, -1, -1):
        _sift(heap, waiting, at, pushed_whole, pushed_rest, pushed_tie)
    is_gone = np.zeros(edges, np.bool_)
    name = np.arange(nodes)
    merges = 0
    is_merged = np.zeros(nodes, np.bool_)
    kept, lost = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    totals, counts = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    ties = np.zeros(nodes, np.int64)
    while waiting:
        edge = heap[0]
        is_stale = (
            is_gone[edge]
            or whole[edge] != pushed_whole[edge]
            or rest[edge] != pushed_rest[edge]
            or tie[edge] != pushed_tie[edge]
        )
        if (
            is_stale
            and not is_gone[edge]
            and not _is_better(least_whole, least_rest, 0, whole[edge], rest[edge], 0)
        ):
            pushed_whole[edge], pushed_rest[edge] = whole[edge], rest[edge]
            pushed_tie[edge] = tie[edge]
            _sift(heap, waiting, 0, pushed_whole, pushed_rest, pushed_tie)
            continue
        waiting -= 1
        if waiting:
            heap[0] = heap[waiting]
            _sift(heap, waiting, 0, pushed_whole, pushed_rest, pushed_tie)
        if is_stale:
            continue
        a, b = a_end[edge], b_end[edge]
        if blocked[a] or blocked[b]:
            blocked[a] = blocked[b] = True
            continue
        if degree[a] < degree[b]:  # move the contacts of the node that has fewer
            a, b = b, a
        low, high = min(name[a], name[b]), max(name[a], name[b])
        kept[merges], lost[merges] = low, high
        totals[merges], counts[merges], ties[merges] = total[edge], count[edge], tie[edge]
        merges += 1
        name[a] = low
        is_merged[b] = True
        half = head[b]
        while half >= 0:
            after = following[half]
            moved = half >> 1
            other = b_end[moved] if half % 2 == 0 else a_end[moved]
            dropped = -1
            if other == a:
                dropped = moved
            else:
                at = _slot(table, keys_a, keys_b, a, other)
                twin = table[at]
                if twin < 0:
                    used += 1
                    keys_a[at], keys_b[at] = min(a, other), max(a, other)
                    table[at] = moved
                else:
                    # The better of the two contacts stays, because its entry in the heap is in
                    # time for the mean of both.
                    dropped = moved
                    stays = twin
                    if _is_better(
                        whole[moved], rest[moved], tie[moved], whole[twin], rest[twin], tie[twin]
                    ):
                        stays, dropped = moved, twin
                        table[at] = moved
                    total[stays] += total[dropped]
                    count[stays] += count[dropped]
                    tie[stays] = min(tie[stays], tie[dropped])
                    whole[stays], rest[stays] = _key(total[stays], count[stays])
            if dropped >= 0:
                is_gone[dropped] = True
                for end in range(2):
                    gone = 2 * dropped + end
                    node = a_end[dropped] if end == 0 else b_end[dropped]
                    if previous[gone] >= 0:
                        following[previous[gone]] = following[gone]
                    else:
                        head[node] = following[gone]
                    if following[gone] >= 0:
                        previous[following[gone]] = previous[gone]
                    degree[node] -= 1
            if dropped != moved:
                # Take the half edge out of the list of b, and put it into the list of a.
                if previous[half] >= 0:
                    following[previous[half]] = following[half]
                else:
                    head[b] = following[half]
                if following[half] >= 0:
                    previous[following[half]] = previous[half]
                degree[b] -= 1
                previous[half] = -1
                following[half] = head[a]
                if head[a] >= 0:
                    previous[head[a]] = half
                head[a] = half
                degree[a] += 1
                if half % 2 == 0:
                    a_end[moved] = a
                else:
                    b_end[moved] = a
            half = after
        if 4 * used > 3 * len(table):
            table[:] = -1
            used = 0
            for each in range(edges):
                if not is_gone[each]:
                    at = _slot(table, keys_a, keys_b, a_end[each], b_end[each])
                    table[at] = each
                    keys_a[at] = min(a_end[each], b_end[each])
                    keys_b[at] = max(a_end[each], b_end[each])
                    used += 1
    # A region keeps its lowest number, which need not be that of the node with its contacts.
    marks = blocked.copy()
    for node in range(nodes):
        if not is_merged[node]:
            blocked[name[node]] = marks[node]
    return kept[:merges], lost[:merges], totals[:merges], counts[:merges], ties[:merges]


def interpreted() -> Callable[..., tuple[_Array, ...]]:
    """Return `merge_best_first` without the compilation by numba, for comparison."""
    return getattr(merge_best_first, "py_func", merge_best_first)
