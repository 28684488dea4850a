"""Loops over long lists that yield to the event loop, for requests that name very many items.

A router has one loop: a request for 20,000 items must not block all others. Items are counted, not
timed, so that short requests never yield. Called by the dispatcher, which decodes large requests
and encodes long responses in slices, and by handlers.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Protocol, TypeVar

from odradek.node.bus.reply import Reply, WorkMeter, start_coroutine
from odradek.protocol.sliced_work import SlicedWork

T = TypeVar("T")

ITEMS_PER_TURN: Final = 100
"""A few milliseconds, at 10 to 50 microseconds each."""
_NAMES_PER_TURN: Final = 2_000
"""To be sorted or told apart."""
IN_FLIGHT_MAX: Final = 200
"""Requests to a worker that one request of a client has in flight: what a worker carries out in one
turn of about ten milliseconds."""

COMMAND_ITEMS_MAX: Final = 200
"""Changes in one command. The controller decides and applies so many, and every other process
applies them, in a few milliseconds each, however much there is besides: 10,000 topics, users or
entities with quotas, 100,000 ACL bindings."""


class LongRequest(Protocol):
    """The context of a request. `is_long` says that its response is encoded in slices."""

    is_long: bool


class LoopYielder:
    """For nested loops: counts the items of all of them. Once it yields, `request` is long."""

    __slots__ = ("_left", "_request")

    def __init__(self, request: LongRequest | None = None) -> None:
        self._left = ITEMS_PER_TURN
        self._request = request

    async def step(self, cost: int = 1) -> None:
        """Call before each item. Yields to the loop after every ITEMS_PER_TURN. An item with a
        `cost` counts as so many."""
        if self._left <= 0:
            self._left = ITEMS_PER_TURN
            await take_turn(self._request)
        self._left -= cost


async def iterate_cooperatively(
    items: Iterable[T], request: LongRequest | None = None
) -> AsyncIterator[T]:
    """The items in order. Yields to the loop after every ITEMS_PER_TURN."""
    pace = LoopYielder(request)
    for item in items:
        await pace.step()
        yield item


async def unique_cooperatively(
    names: Sequence[str], request: LongRequest | None = None
) -> list[str]:
    """The names in order, each once."""
    unique: dict[str, None] = {}
    for start in range(0, len(names), _NAMES_PER_TURN):
        if start:
            await take_turn(request)
        unique.update(dict.fromkeys(names[start : start + _NAMES_PER_TURN]))
    return list(unique)


async def sort_cooperatively(
    names: Sequence[str], request: LongRequest | None = None
) -> Iterator[str]:
    """The names in order: sorted in slices, which are merged when the result is read."""
    slices = []
    for start in range(0, len(names), _NAMES_PER_TURN):
        if start:
            await take_turn(request)
        slices.append(sorted(names[start : start + _NAMES_PER_TURN]))
    return iter(slices[0]) if len(slices) == 1 else heapq.merge(*slices)


def command_batches(groups: Iterable[Sequence[T]]) -> Iterator[list[T]]:
    """The items of all groups in order, in lists for one command of the controller each. Those of
    one group are in one list, and one list has at most COMMAND_ITEMS_MAX or one group."""
    batch: list[T] = []
    for group in groups:
        if batch and len(batch) + len(group) > COMMAND_ITEMS_MAX:
            yield batch
            batch = []
        batch += group
    if batch:
        yield batch


async def gather_cooperatively(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. At most IN_FLIGHT_MAX have begun and wait for other processes, and
    those that do not wait leave turns to others. Coroutines after one that raises are not begun."""
    results = []
    in_flight: deque[Reply[T]] = deque()
    pace = LoopYielder()
    for coroutine in coroutines:
        await pace.step()
        if len(in_flight) == IN_FLIGHT_MAX:
            results.append(await in_flight.popleft())
        in_flight.append(start_coroutine(coroutine))
    results += [await reply for reply in in_flight]
    return results


async def take_turn(request: LongRequest | None = None) -> None:
    """Yield to the loop once: after a slice of work on a long request."""
    if request is not None:
        request.is_long = True
    await asyncio.sleep(0)


async def run_in_slices(slices: Generator[None, None, T]) -> T:
    """The result of a generator that yields often. Each time it does, so does the loop."""
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)


async def run_in_thread(work: Callable[..., T], *arguments: object) -> T:
    """The result of a call in a thread. Its time is the request's (KIP-124)."""
    return await _run_metered(WorkMeter.current(), partial(work, *arguments))


async def _run_metered(meter: WorkMeter | None, work: Callable[[], T]) -> T:
    def timed() -> tuple[T, int]:
        began_ns = perf_counter_ns()
        return work(), perf_counter_ns() - began_ns

    result, spent_ns = await asyncio.get_running_loop().run_in_executor(None, timed)
    if meter is not None:
        meter.add(spent_ns)
    return result


async def run_work(work: SlicedWork[T]) -> T:
    """The result of long work. What it does without the GIL runs in a thread, whose time is the
    request's."""
    meter = WorkMeter.current()
    content: bytes | None = None
    while True:
        try:
            task = work.send(content)
        except StopIteration as stop:
            result: T = stop.value
            return result
        content = None
        if task is None:
            await asyncio.sleep(0)
        else:
            content = await _run_metered(meter, task)
