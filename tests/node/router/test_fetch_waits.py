"""Long polls: woken by notices and deadlines, nothing missed in between, nothing left behind."""

import asyncio
from collections.abc import Awaitable, Callable

from node.router.fetch_waits import FetchWaits


def _run(scenario: Callable[[FetchWaits, list[tuple[int, int]]], Awaitable[None]]) -> None:
    async def main() -> None:
        flags: list[tuple[int, int]] = []
        waits = FetchWaits(
            asyncio.get_running_loop(), lambda store, number: flags.append((store, number))
        )
        await scenario(waits, flags)

    asyncio.run(main())


def _never() -> bool:
    return False


def test_notice_wakes_whoever_waits_for_the_partition_and_nobody_else() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        first = waits.park([(0, 1), (0, 2)], 60_000, _never)
        second = waits.park([(0, 2)], 60_000, _never)
        other = waits.park([(1, 2)], 60_000, _never)
        assert flags == [(0, 1), (0, 2), (1, 2)]
        waits.on_advanced(0, (2,))
        assert first.result() is True
        assert second.result() is True
        assert not other.is_done
        assert waits.parked_count == 1

    _run(scenario)


def test_deadline_answers_false() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        late = waits.park([(0, 1)], 60_000, _never)
        soon = waits.park([(0, 1)], 1, _never)
        assert await asyncio.wait_for(_value(soon), 5) is False
        assert not late.is_done

    _run(scenario)


async def _value(reply: object) -> object:
    from node.bus.reply import Reply, drive

    assert isinstance(reply, Reply)
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def wait() -> object:
        return await reply

    drive(wait(), lambda value, error: done.set_result(error or value))
    return await done


def test_append_between_the_look_and_the_flag_is_not_missed() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        order: list[str] = []

        def has_moved() -> bool:
            order.append(f"asked after {len(flags)} flags")
            return True

        reply = waits.park([(0, 1), (3, 4)], 60_000, has_moved)
        assert reply.result() is True
        assert order == ["asked after 2 flags"]
        assert waits.parked_count == 0

    _run(scenario)


def test_partition_is_flagged_again_after_its_notice() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        waits.park([(0, 1)], 60_000, _never)
        waits.on_advanced(0, (1,))
        waits.park([(0, 1)], 60_000, _never)
        assert flags == [(0, 1), (0, 1)]

    _run(scenario)


def test_fetch_that_was_woken_is_forgotten_everywhere() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        # A consumer of many partitions of which one is busy must not leave traces in the others.
        for _ in range(100):
            waits.park([(0, number) for number in range(10)], 60_000, _never, owner=7)
            waits.on_advanced(0, (3,))
        assert waits.parked_count == 0
        late = waits.park([(0, 5)], 60_000, _never)
        waits.on_advanced(0, (5,))
        assert late.result() is True

    _run(scenario)


def test_client_that_is_gone_waits_no_longer() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        gone = [waits.park([(0, 1)], 2**31 - 1, _never, owner=4) for _ in range(3)]
        other = waits.park([(0, 1)], 60_000, _never, owner=5)
        waits.abandon(4)
        waits.abandon(99)
        assert all(reply.result() is False for reply in gone)
        assert not other.is_done
        assert waits.parked_count == 1

    _run(scenario)


def test_router_that_stops_answers_at_once_and_parks_no_more() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        parked = waits.park([(0, 1)], 60_000, _never)
        waits.end_all()
        assert parked.result() is False
        assert waits.park([(0, 1)], 60_000, _never).result() is False

    _run(scenario)


def test_thousand_deadlines_all_come_and_none_early() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        replies = [waits.park([(0, n % 7)], n % 50, _never, owner=n) for n in range(1_000)]
        await asyncio.wait_for(_value(waits.park([(0, 1)], 60, _never)), 5)
        assert all(reply.result() is False for reply in replies)
        # The loop's clock has milliseconds.
        assert loop.time() - begun >= 0.058
        assert waits.parked_count == 0

    _run(scenario)


def test_new_metadata_wakes_everyone() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        parked = [waits.park([(0, number)], 60_000, _never) for number in range(5)]
        waits.wake_all()
        assert all(reply.result() is True for reply in parked)

    _run(scenario)


def test_signal_wakes_whoever_waits_for_it_and_nobody_else_at_the_partition() -> None:
    async def scenario(waits: FetchWaits, flags: list[tuple[int, int]]) -> None:
        mine = waits.park([(0, 1)], 60_000, _never, signals=["a", "b"])
        other = waits.park([(0, 1)], 60_000, _never, signals=["c"])
        plain = waits.park([(0, 1)], 60_000, _never)
        waits.on_signal("b")
        assert mine.result() is True
        assert not other.is_done
        assert not plain.is_done
        waits.on_advanced(0, (1,))
        assert other.result() is True
        assert not waits._by_signal, "what nobody waits for is forgotten"

    _run(scenario)
