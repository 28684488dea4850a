"""Long polls: completed by notices and deadlines, without missed notices and without leaks."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from odradek.node.bus.reply import drive
from odradek.node.router.fetch_purgatory import WAKES_PER_TURN, ExclusiveWatch, FetchPurgatory


def _run(scenario: Callable[[FetchPurgatory, list[tuple[int, int]]], Awaitable[None]]) -> None:
    async def main() -> None:
        flags: list[tuple[int, int]] = []
        waits = FetchPurgatory(
            asyncio.get_running_loop(), lambda store, number: flags.append((store, number))
        )
        await scenario(waits, flags)

    asyncio.run(main())


def _never() -> bool:
    return False


def test_a_notice_wakes_only_fetches_of_the_partition() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
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
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        late = waits.park([(0, 1)], 60_000, _never)
        soon = waits.park([(0, 1)], 1, _never)
        assert await asyncio.wait_for(_value(soon), 5) is False
        assert not late.is_done

    _run(scenario)


def test_without_a_deadline_it_waits_until_it_is_woken_or_the_router_stops() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        woken = waits.park([(0, 1)], None, _never)
        stopped = waits.park([(0, 2)], None, _never)
        abandoned = waits.park([(0, 2)], None, _never, owner=7)
        waits.abandon(7)
        assert abandoned.result() is False
        await _value(waits.park([(0, 3)], 1, _never))
        assert not woken.is_done
        waits.on_advanced(0, (1,))
        assert woken.result() is True
        assert not stopped.is_done
        waits.end_all(later_wait_ms_max=1)
        assert stopped.result() is False
        assert await asyncio.wait_for(_value(waits.park([(0, 2)], None, _never)), 5) is False
        assert not waits.parked_count

    _run(scenario)


async def _value(reply: object) -> object:
    from odradek.node.bus.reply import Reply, drive

    assert isinstance(reply, Reply)
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def wait() -> object:
        return await reply

    drive(wait(), lambda value, error: done.set_result(error or value))
    return await done


def test_an_append_between_the_read_and_the_watch_flag_is_not_missed() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        order: list[str] = []

        def has_advanced() -> bool:
            order.append(f"asked after {len(flags)} flags")
            return True

        reply = waits.park([(0, 1), (3, 4)], 60_000, has_advanced)
        assert reply.result() is True
        assert order == ["asked after 2 flags"]
        assert waits.parked_count == 0

    _run(scenario)


def test_the_watch_flag_is_set_again_after_a_notice() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        waits.park([(0, 1)], 60_000, _never)
        waits.on_advanced(0, (1,))
        waits.park([(0, 1)], 60_000, _never)
        assert flags == [(0, 1), (0, 1)]

    _run(scenario)


def test_a_woken_fetch_is_referenced_nowhere() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        # A consumer of many partitions of which one is busy must not leave traces in the others.
        for _ in range(100):
            waits.park([(0, number) for number in range(10)], 60_000, _never, owner=7)
            waits.on_advanced(0, (3,))
        assert waits.parked_count == 0
        late = waits.park([(0, 5)], 60_000, _never)
        waits.on_advanced(0, (5,))
        assert late.result() is True

    _run(scenario)


def test_fetches_of_a_closed_connection_end() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        gone = [waits.park([(0, 1)], 2**31 - 1, _never, owner=4) for _ in range(3)]
        other = waits.park([(0, 1)], 60_000, _never, owner=5)
        waits.abandon(4)
        waits.abandon(99)
        assert all(reply.result() is False for reply in gone)
        assert not other.is_done
        assert waits.parked_count == 1

    _run(scenario)


def test_a_stopping_router_ends_all_fetches_and_parks_no_more() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        parked = waits.park([(0, 1)], 60_000, _never)
        waits.end_all()
        assert parked.result() is False
        assert waits.park([(0, 1)], 60_000, _never).result() is False

    _run(scenario)


def test_while_a_router_stops_later_fetches_wait_for_a_moment() -> None:
    """Consumers that still fetch here do not spin."""

    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        parked = waits.park([(0, 1)], 60_000, _never)
        waits.end_all(later_wait_ms_max=20)
        assert parked.result() is False
        later = waits.park([(0, 1)], 60_000, _never)
        assert not later.is_done
        is_over = asyncio.Event()
        later.on_done(is_over.set)
        async with asyncio.timeout(5):
            await is_over.wait()
        assert later.result() is False

    _run(scenario)


def test_a_thousand_fetches_expire_and_none_early() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        replies = [waits.park([(0, n % 7)], n % 50, _never, owner=n) for n in range(1_000)]
        await asyncio.wait_for(_value(waits.park([(0, 1)], 60, _never)), 5)
        assert all(reply.result() is False for reply in replies)
        # The loop's clock has milliseconds.
        assert loop.time() - begun >= 0.058
        assert waits.parked_count == 0

    _run(scenario)


def test_wake_all_wakes_every_fetch() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        parked = [waits.park([(0, number)], 60_000, _never) for number in range(5)]
        waits.wake_all()
        assert all(reply.result() is True for reply in parked)

    _run(scenario)


class Basket:
    """Records that competing fetches take, one each."""

    def __init__(self, waits: FetchPurgatory, name: str = "basket", number: int = 1) -> None:
        self._waits = waits
        self.count = 0
        self.line = ExclusiveWatch(name, (0, number), lambda: self.count > 0)
        self.takers: list[int] = []

    def wait(self, who: int, *, needs: int = 1) -> None:
        """As ShareFetch does: read, acquire or wait, and read again when woken."""
        drive(self._fetch(who, needs), lambda _value, error: _fail(error))

    async def _fetch(self, who: int, needs: int) -> None:
        while self.count < needs:
            if not await self._waits.park(
                (), 60_000, _never, owner=who, exclusive_watches=[self.line]
            ):
                return
        self.count -= needs
        self.takers.append(who)

    def put(self, count: int) -> None:
        self.count += count
        self._waits.on_available(self.line.key)


def _fail(error: BaseException | None) -> None:
    if error is not None:
        raise error


async def _turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_competing_fetches_are_woken_in_order_while_there_are_records() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        basket = Basket(waits)
        for who in range(5):
            basket.wait(who)
        basket.put(2)
        assert basket.takers == [0, 1]
        basket.wait(0)
        basket.put(1)
        assert basket.takers == [0, 1, 2]
        assert waits.parked_count == 3
        await _turns(1)
        basket.put(9)
        assert basket.takers == [0, 1, 2, 3, 4, 0]
        assert not waits._queues, "a line in which nobody waits is forgotten"
        assert not waits._exclusive_keys

    _run(scenario)


def test_a_fetch_that_takes_nothing_does_not_block_the_next_one() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        basket = Basket(waits)
        basket.wait(0, needs=3)
        basket.wait(1, needs=3)
        basket.wait(2)
        basket.put(2)
        assert (basket.takers, basket.count) == ([2], 1)
        assert waits.parked_count == 2, "each has looked once"
        await _turns(1)
        basket.put(5)
        assert (basket.takers, basket.count) == ([2, 0, 1], 0)

    _run(scenario)


def test_fetches_of_closed_connections_are_skipped() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        basket = Basket(waits)
        for who in range(3):
            basket.wait(who)
        waits.abandon(0)
        basket.put(1)
        assert basket.takers == [1]

    _run(scenario)


def test_a_notice_wakes_a_queue_and_the_partition_stays_watched() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        basket, other = Basket(waits), Basket(waits, "other")
        plain = waits.park([(0, 1)], 60_000, _never)
        for who in range(3):
            basket.wait(who)
        other.wait(9)
        assert flags == [(0, 1)]
        basket.count = 1
        waits.on_advanced(0, (1,))
        assert plain.result() is True
        assert (basket.takers, other.takers) == ([0], [])
        assert flags == [(0, 1)] * 2, "two wait in the line still"
        other.count = basket.count = 5
        waits.on_advanced(0, (1,))
        assert (basket.takers, other.takers) == ([0, 1, 2], [9])
        waits.on_advanced(0, (1,))
        assert flags == [(0, 1)] * 3, "nobody waits any more"

    _run(scenario)


def test_available_records_wake_only_their_queue() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        def line(key: str) -> ExclusiveWatch:
            return ExclusiveWatch(key, (0, 1), lambda: True)

        mine = waits.park((), 60_000, _never, exclusive_watches=[line("a"), line("b")])
        other = waits.park((), 60_000, _never, exclusive_watches=[line("c")])
        plain = waits.park([(0, 1)], 60_000, _never)
        waits.on_available("b")
        waits.on_available("nobody's")
        assert mine.result() is True
        assert not other.is_done
        assert not plain.is_done

    _run(scenario)


def test_a_long_queue_is_woken_over_several_turns_of_the_loop() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        basket = Basket(waits)
        for who in range(3 * WAKES_PER_TURN):
            basket.wait(who)
        basket.put(3 * WAKES_PER_TURN - 1)
        assert len(basket.takers) == WAKES_PER_TURN
        await _turns(1)
        assert len(basket.takers) == 2 * WAKES_PER_TURN
        basket.put(1)
        await _turns()
        assert basket.takers == [*range(3 * WAKES_PER_TURN)]

    _run(scenario)


def test_many_queues_are_woken_over_several_turns_of_the_loop() -> None:
    """A member that leaves releases records in all partitions of its group."""

    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        count = 3 * WAKES_PER_TURN
        replies = [
            waits.park(
                (), 60_000, _never, exclusive_watches=[ExclusiveWatch(n, (0, n), lambda: True)]
            )
            for n in range(count)
        ]

        def woken_count() -> int:
            return sum(reply.is_done for reply in replies)

        for key in range(count):
            waits.on_available(key)
        assert woken_count() <= WAKES_PER_TURN
        await _turns(1)
        assert woken_count() <= 2 * WAKES_PER_TURN
        await _turns(6)
        assert woken_count() == count

    _run(scenario)


def test_no_fetch_waits_while_there_are_records_for_it() -> None:
    async def scenario(waits: FetchPurgatory, flags: list[tuple[int, int]]) -> None:
        dice = random.Random(7)
        basket = Basket(waits)
        for step in range(5_000):
            match dice.randrange(6):
                case 0 | 1:
                    basket.wait(step)
                case 2:
                    waits.abandon(dice.randrange(step + 1))
                case 3:
                    basket.put(dice.choice((1, 1, 2, 40)))
                case 4:
                    basket.count += 1
                    waits.on_advanced(0, (1,))
                case _:
                    await _turns(1)
            if dice.randrange(20) == 0:
                await _turns(step // WAKES_PER_TURN + 1)
                assert not basket.count or not waits.parked_count, step

    _run(scenario)
