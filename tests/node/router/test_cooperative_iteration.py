"""Loops over long lists yield to the event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator

import pytest

from odradek.node.bus.reply import MeasuredDrive, Reply, WorkMeter, start_coroutine
from odradek.node.router.cooperative_iteration import (
    COMMAND_ITEMS_MAX,
    IN_FLIGHT_MAX,
    ITEMS_PER_TURN,
    LoopYielder,
    command_batches,
    gather_cooperatively,
    iterate_cooperatively,
    run_in_thread,
    run_work,
    unique_cooperatively,
)


async def _turns_of(work: Callable[[], Awaitable[list[int]]]) -> tuple[list[int], int]:
    """The result of the work, and how many turns of the loop others had meanwhile."""
    turns = 0
    is_over = False

    async def others() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        items = await work()
        had = turns
        is_over = True
    return items, had


def _list(count: int) -> Callable[[], Awaitable[list[int]]]:
    async def work() -> list[int]:
        return [item async for item in iterate_cooperatively(range(count))]

    return work


def test_a_short_list_does_not_yield() -> None:
    assert asyncio.run(_turns_of(_list(ITEMS_PER_TURN))) == (list(range(ITEMS_PER_TURN)), 0)


def test_a_long_list_yields_to_the_loop() -> None:
    items, turns = asyncio.run(_turns_of(_list(4 * ITEMS_PER_TURN)))
    assert items == list(range(4 * ITEMS_PER_TURN))
    assert turns == 3


def test_many_short_lists_of_one_request_yield_to_the_loop() -> None:
    async def work() -> list[int]:
        pace, done = LoopYielder(), []
        for _ in range(10):
            for item in range(ITEMS_PER_TURN // 5):
                await pace.step()
                done.append(item)
        return done

    items, turns = asyncio.run(_turns_of(work))
    assert len(items) == 2 * ITEMS_PER_TURN
    assert turns == 1


def test_few_of_many_requests_are_in_flight() -> None:
    async def run() -> None:
        begun: list[Reply[int]] = []

        async def ask() -> int:
            reply: Reply[int] = Reply()
            begun.append(reply)
            return await reply

        results = start_coroutine(gather_cooperatively(ask() for _ in range(2 * IN_FLIGHT_MAX + 1)))
        for at in range(2 * IN_FLIGHT_MAX + 1):
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(begun) == min(at + IN_FLIGHT_MAX, 2 * IN_FLIGHT_MAX + 1)
            begun[at].resolve(at)
        assert results.result() == list(range(2 * IN_FLIGHT_MAX + 1))

    asyncio.run(asyncio.wait_for(run(), 10))


def test_many_requests_that_are_answered_at_once_leave_turns_to_others() -> None:
    async def answer(number: int) -> int:
        return number

    async def work() -> list[int]:
        return await gather_cooperatively(answer(number) for number in range(4 * ITEMS_PER_TURN))

    items, turns = asyncio.run(_turns_of(work))
    assert items == list(range(4 * ITEMS_PER_TURN))
    assert turns == 3


def test_names_are_told_apart_in_slices() -> None:
    names = [number % 5_000 for number in range(10_000)]

    async def work() -> list[int]:
        return [int(name) for name in await unique_cooperatively([f"{n}" for n in names])]

    assert asyncio.run(_turns_of(work)) == (list(range(5_000)), 4)


def test_commands_have_few_items_and_whole_groups() -> None:
    assert list(command_batches([])) == []
    assert list(command_batches([[1], [2, 3]])) == [[1, 2, 3]]
    groups = [[group] * 3 for group in range(COMMAND_ITEMS_MAX)]
    batches = list(command_batches(groups))
    assert [item for batch in batches for item in batch] == [i for g in groups for i in g]
    assert max(map(len, batches)) <= COMMAND_ITEMS_MAX
    assert len(batches) <= 4
    assert all(len(batch) % 3 == 0 for batch in batches)
    large = [0] * (COMMAND_ITEMS_MAX + 1)
    assert list(command_batches([[1], large, [2]])) == [[1], large, [2]]


def _work_ms(duration_ms: int) -> bytes:
    until = time.perf_counter() + duration_ms / 1000
    while time.perf_counter() < until:
        pass
    return b"%d" % duration_ms


def _long_work() -> Generator[Callable[[], bytes] | None, bytes | None, bytes | None]:
    """Two pieces in a thread, with a slice of the loop's between them."""
    first = yield lambda: _work_ms(20)
    yield None
    second = yield lambda: _work_ms(30)
    return (first or b"") + (second or b"")


@pytest.mark.parametrize(
    ("work", "shortest_ms", "result"),
    [
        pytest.param(lambda: run_in_thread(_work_ms, 40), 40, b"40", id="call"),
        pytest.param(lambda: run_work(_long_work()), 50, b"2030", id="work in pieces"),
        pytest.param(
            lambda: start_coroutine(run_work(_long_work())), 50, b"2030", id="in a coroutine"
        ),
    ],
)
def test_the_time_in_threads_is_the_requests(
    work: Callable[[], Awaitable[bytes]], shortest_ms: int, result: bytes
) -> None:
    async def answer() -> tuple[bytes | None, int]:
        meter, results, is_done = WorkMeter(), list[bytes | None](), asyncio.Event()

        async def handle() -> bytes:
            return await work()

        def finish(value: bytes | None, _error: BaseException | None) -> None:
            results.append(value)
            is_done.set()

        MeasuredDrive(handle(), finish, meter)
        await is_done.wait()
        return results[0], meter.spent_ns()

    found, spent_ns = asyncio.run(answer())
    assert found == result
    assert spent_ns >= shortest_ms * 1_000_000
