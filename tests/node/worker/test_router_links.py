"""A worker's end of the bus: real sockets, rings and wakeup pipes; the test plays the routers."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import zmq

from odradek.node.bus.adaptive_spin import PROCESSORS_MIN
from odradek.node.bus.endpoint import encode
from odradek.node.bus.messages import (
    Appended,
    DeleteRecords,
    PartitionsAdvanced,
    ToRouter,
    WorkerGreeting,
)
from odradek.node.bus.wakeup_pipe import WakeupPipe
from odradek.node.worker.router_links import RouterLinks
from odradek.node.worker.turn_requests import Request, RouterState
from tests.support.manual_router import RING_BYTES, ManualRouter
from tests.support.waiting import is_readable, wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
INCARNATION = 99


class Bus:
    """A worker's links and the routers around them."""

    def __init__(self, folder: Path, router_count: int = 1) -> None:
        self.context: Context = zmq.Context()
        self.folder = folder
        self.routers = [ManualRouter(self.context, folder, index) for index in range(router_count)]
        self.links = RouterLinks(
            self.context,
            folder,
            router_count=router_count,
            worker=3,
            incarnation=INCARNATION,
            processors=PROCESSORS_MIN,
        )
        for router in self.routers:
            assert not self.links.are_open
            self.meet(router)
        assert self.links.are_open

    def meet(self, router: ManualRouter, incarnation: int = 1) -> None:
        """Connect worker and router, and send the first request."""

        def greeting() -> WorkerGreeting | None:
            self.links.receive()
            return router.receive_greeting()

        heard = wait_until(greeting, what="the worker greets")
        assert heard is not None
        assert (heard.worker, heard.incarnation) == (3, INCARNATION)
        router.answer_greeting(heard, incarnation)
        router.ask(request(0))

        def has_come() -> bool:
            self.links.receive()
            return numbers(self.links.read()) == [0]

        wait_until(has_come, what="the worker has opened its rings")

    def replace_router(self, index: int = 0) -> ManualRouter:
        """The router dies and another one takes its place."""
        self.routers[index].close()
        self.routers[index] = ManualRouter(self.context, self.folder, index)
        return self.routers[index]

    def states(self) -> list[RouterState]:
        """The state of each router, as it comes with its requests."""
        for index, router in enumerate(self.routers):
            router.ask(request(1000 + index))
        return [state for state, _ in self.links.read()]

    def close(self) -> None:
        self.links.close()
        for router in self.routers:
            router.close()
        self.context.term()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    yield bus
    bus.close()


@pytest.fixture
def wide_bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path, router_count=2)
    yield bus
    bus.close()


def request(number: int) -> DeleteRecords:
    return DeleteRecords(number, 0, 0, 0)


def numbers(requests: list[tuple[RouterState, Request]]) -> list[int]:
    return [message.request_id for _, message in requests]


def test_a_worker_greets_and_maps_the_routers_arena(bus: Bus) -> None:
    (router,) = bus.routers
    router.arena.view[2 << 20 : (2 << 20) + 5] = b"bytes"
    router.ask(request(1))
    ((state, _),) = bus.links.read()
    assert state.arena is not None
    assert bytes(state.arena[2 << 20 : (2 << 20) + 5]) == b"bytes"


def test_requests_come_in_order_and_many_messages_at_a_time(bus: Bus) -> None:
    (router,) = bus.routers
    router.ask(request(1), request(2))
    router.ask(request(3))
    assert numbers(bus.links.read()) == [1, 2, 3]
    assert bus.links.read() == []


def test_a_busy_router_does_not_starve_the_others(wide_bus: Bus) -> None:
    """A turn takes a bounded number of messages from each."""
    first, second = wide_bus.routers
    for number in range(500):
        first.ask(request(number))
    second.ask(request(900))
    turn = numbers(wide_bus.links.read())
    assert 900 in turn
    assert len(turn) < 500
    while more := numbers(wide_bus.links.read()):
        turn += more
    turn.remove(900)
    assert turn == list(range(500))


def test_replies_go_to_their_router_in_one_message(wide_bus: Bus) -> None:
    first, second = wide_bus.states()
    first.replies += [Appended(1, 0, 10), Appended(2, 0, 11)]
    second.replies.append(Appended(1, 0, 20))
    wide_bus.links.send_replies()
    assert wide_bus.routers[0].hear() == [Appended(1, 0, 10), Appended(2, 0, 11)]
    assert wide_bus.routers[1].hear() == [Appended(1, 0, 20)]
    wide_bus.links.send_replies()
    assert [router.replies.read() for router in wide_bus.routers] == [None, None]


def test_a_broadcast_reaches_every_router_with_its_replies(wide_bus: Bus) -> None:
    first, _ = wide_bus.states()
    first.replies.append(Appended(1, 0, 10))
    wide_bus.links.broadcast(PartitionsAdvanced(0, (7,)))
    wide_bus.links.send_replies()
    assert wide_bus.routers[0].hear() == [Appended(1, 0, 10), PartitionsAdvanced(0, (7,))]
    assert wide_bus.routers[1].hear() == [PartitionsAdvanced(0, (7,))]


def test_a_slow_router_is_waited_for_and_gets_everything(bus: Bus) -> None:
    (state,) = bus.states()
    replies = [Appended(number, 87, -1, error_message="x" * 1_000) for number in range(400)]
    assert len(encode(replies)) > 4 * RING_BYTES
    state.replies.extend(replies)
    heard: list[ToRouter] = []

    def listen() -> None:
        while len(heard) < len(replies):
            heard.extend(bus.routers[0].hear())

    listener = threading.Thread(target=listen)
    listener.start()
    bus.links.send_replies()
    listener.join(10)
    assert not listener.is_alive()
    assert heard == replies


def test_a_dead_router_is_not_waited_for(bus: Bus) -> None:
    (state,) = bus.states()
    bus.routers[0].wakeup_pipe.close()
    state.replies.extend(
        Appended(number, 87, -1, error_message="x" * 1_000) for number in range(400)
    )
    bus.links.send_replies()
    assert state.replies == []
    bus.routers[0].wakeup_pipe = WakeupPipe(bus.folder / "unused.bell")


# -- sleeping --------------------------------------------------------------------------------------


def test_a_sleeping_worker_is_woken(bus: Bus) -> None:
    (router,) = bus.routers
    assert bus.links.fall_asleep()
    router.ask(request(1))
    assert router.requests.must_wake()
    assert router.wakeup_writer is not None
    assert router.wakeup_writer.wake()
    assert is_readable(bus.links.wakeup_pipe, 10)
    bus.links.wake_up()
    assert numbers(bus.links.read()) == [1]
    bus.links.wakeup_pipe.clear()
    assert not is_readable(bus.links.wakeup_pipe)


def test_an_awake_worker_is_not_woken(bus: Bus) -> None:
    (router,) = bus.routers
    assert bus.links.fall_asleep()
    bus.links.wake_up()
    router.ask(request(1))
    assert not router.requests.must_wake()


def test_a_worker_does_not_fall_asleep_with_a_request_in_the_ring(wide_bus: Bus) -> None:
    for router in wide_bus.routers:
        router.ask(request(1))
        assert not wide_bus.links.fall_asleep()
        wide_bus.links.wake_up()
        assert numbers(wide_bus.links.read()) == [1]
    assert wide_bus.links.fall_asleep()


def test_a_sleeping_router_is_woken_and_an_awake_one_is_not(bus: Bus) -> None:
    (router,) = bus.routers
    (state,) = bus.states()
    state.replies.append(Appended(1))
    bus.links.send_replies()
    assert not router.is_rung()
    router.hear()
    assert router.replies.fall_asleep()
    state.replies.append(Appended(2))
    bus.links.send_replies()
    assert router.is_rung()


@pytest.mark.parametrize("last_count", [0, 1, 5])
def test_requests_in_the_ring_are_read_without_spinning(bus: Bus, last_count: int) -> None:
    bus.routers[0].ask(request(1), request(2))
    assert numbers(bus.links.read_or_spin(last_count)) == [1, 2]


def test_the_worker_spins_after_a_single_request(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_late(read_count: int) -> float:
        if read_count == 3:
            bus.routers[0].ask(request(7))
        return read_count * 1e-9

    clock = Clock(asks_late)
    monkeypatch.setattr("odradek.node.worker.router_links.time.perf_counter", clock)
    for last_count in (0, 2):
        assert bus.links.read_or_spin(last_count) == []
    assert clock.read_count == 0, "many are in flight or none: no reason to look"
    assert numbers(bus.links.read_or_spin(1)) == [7]


def test_spinning_without_a_request_ends(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda read_count: read_count * 1e-5)
    monkeypatch.setattr("odradek.node.worker.router_links.time.perf_counter", clock)
    assert bus.links.read_or_spin(1) == []
    assert 1 < clock.read_count < 1_000


class Clock:
    """A clock that advances with each read."""

    def __init__(self, time_at: Callable[[int], float]) -> None:
        self.read_count = 0
        self._time_at = time_at

    def __call__(self) -> float:
        self.read_count += 1
        return self._time_at(self.read_count)


# -- deaths ----------------------------------------------------------------------------------------


def test_without_a_router_nothing_is_read_and_replies_are_dropped(tmp_path: Path) -> None:
    context: Context = zmq.Context()
    links = RouterLinks(context, tmp_path, router_count=2, worker=3, incarnation=1)
    assert links.read() == []
    assert links.fall_asleep()
    links.wake_up()
    links.broadcast(PartitionsAdvanced(0, (1,)))
    links.send_replies()
    links.receive()
    links.close()
    context.term()


def test_a_restarted_router_is_greeted_and_served_from_its_new_rings(bus: Bus) -> None:
    (old_state,) = bus.states()
    old_arena = old_state.arena
    router = bus.replace_router()
    bus.meet(router, incarnation=2)
    router.ask(request(5))
    ((state, message),) = bus.links.read()
    assert message.request_id == 5
    assert state.arena is not None
    assert state.arena is not old_arena
    state.replies.append(Appended(5))
    bus.links.send_replies()
    assert router.hear() == [Appended(5)]


def test_replies_to_a_dead_router_are_not_sent_to_its_successor(bus: Bus) -> None:
    (state,) = bus.states()
    router = bus.replace_router()
    state.replies.append(Appended(1))
    bus.links.send_replies()
    bus.meet(router, incarnation=2)
    bus.links.send_replies()
    assert router.replies.read() is None


def test_late_replies_to_a_dead_router_are_not_sent_to_its_successor(bus: Bus) -> None:
    (old_state,) = bus.states()
    router = bus.replace_router()
    bus.meet(router, incarnation=2)
    old_state.replies.append(Appended(1))
    assert old_state.arena is None
    (state,) = bus.states()
    state.replies.append(Appended(2))
    bus.links.send_replies()
    assert router.hear() == [Appended(2)]
    assert router.replies.read() is None


def test_a_reconnected_router_hears_replies_to_earlier_requests(bus: Bus) -> None:
    (router,) = bus.routers
    (state,) = bus.states()
    router.answer_greeting(WorkerGreeting(3, INCARNATION, str(bus.folder / "worker-3.wakeup")))
    link = next(iter(bus.links.sockets))
    assert link.poll(10_000)
    bus.links.receive()
    state.replies.append(Appended(1))
    bus.links.send_replies()
    assert router.hear() == [Appended(1)]


def test_a_reconnected_router_keeps_its_rings(bus: Bus) -> None:
    (router,) = bus.routers
    router.ask(request(1))
    assert numbers(bus.links.read()) == [1]
    router.ask(request(2))
    router.answer_greeting(WorkerGreeting(3, INCARNATION, str(bus.folder / "worker-3.bell")))
    link = next(iter(bus.links.sockets))
    assert link.poll(10_000)
    bus.links.receive()
    router.ask(request(3))
    assert numbers(bus.links.read()) == [2, 3]
