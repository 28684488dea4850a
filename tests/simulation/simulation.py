"""A cluster in one process: one clock, one network, a disk for each host, all from one seed.

Hosts are pure cores with the driver that a process would be: they are told of messages and of time,
and do nothing else of their own accord. The simulation knows nothing of what they are: a host of
the Raft core, of a controller or of a replica is told apart by its number alone. Everything that
happens is an event with a time; events at one time happen in the order in which they were asked
for; whatever is drawn by lot is drawn from `random`. So a seed is a whole history.

After every event each check is called with the host that it happened to. A violation ends in
SimulationFailure, which carries the seed and the last events.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.simulation.network import Network

_REMEMBERED_EVENTS = 80


class Violation(AssertionError):
    """Something happened that must not happen."""


class SimulationFailure(AssertionError):  # as pytest shows it, it is one
    """A violation with its seed and what led to it."""


class Host(Protocol):
    """Whoever lives in the simulation. Its clock is the simulation's, in milliseconds."""

    def start(self) -> None:
        """Begin, with what the disk has."""

    def crash(self) -> None:
        """Lose everything that is not on the disk."""

    def receive(self, message: object) -> None:
        """A message has arrived."""

    def wake(self) -> None:
        """The deadline has come."""

    def next_deadline_ms(self) -> int:
        """When it wants to be woken, if nothing happens before."""


class _Seat:
    """A host's place: whether it runs, until when it is stopped, when it will be woken."""

    __slots__ = ("host", "incarnation", "is_running", "stopped_until_ms", "wake_ms")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_running = False
        self.incarnation = 0
        self.stopped_until_ms = 0
        self.wake_ms = -1


class Simulation:
    """See the module's docstring."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.network = Network(self.random)
        self.event_count = 0
        self.checks: list[Callable[[int], None]] = []
        self._seats: dict[int, _Seat] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._history: deque[str] = deque(maxlen=_REMEMBERED_EVENTS)

    # -- hosts -------------------------------------------------------------------------------------

    @property
    def host_ids(self) -> list[int]:
        return list(self._seats)

    def add_host(self, host_id: int, host: Host) -> None:
        """It runs from now on."""
        self._seats[host_id] = _Seat(host)
        self.start(host_id)

    def is_running(self, host_id: int) -> bool:
        return self._seats[host_id].is_running

    def start(self, host_id: int) -> None:
        """Start a host that is down."""
        seat = self._seats[host_id]
        assert not seat.is_running
        seat.is_running = True
        self.note(f"{host_id} starts")
        self._happen(host_id, seat.host.start)

    def crash(self, host_id: int) -> None:
        """SIGKILL and power loss at once. What was on its way to it is lost as well."""
        seat = self._seats[host_id]
        assert seat.is_running
        self.note(f"{host_id} crashes")
        seat.is_running = False
        seat.incarnation += 1
        seat.wake_ms = -1
        seat.stopped_until_ms = 0
        seat.host.crash()

    def stop(self, host_id: int, for_ms: int) -> None:
        """SIGSTOP, and SIGCONT later. What arrives meanwhile waits."""
        self.note(f"{host_id} stands still for {for_ms} ms")
        self._seats[host_id].stopped_until_ms = self.now_ms + for_ms

    # -- events ------------------------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen that is nobody's: a fault, a client, the end of one."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def after_on(self, host_id: int, delay_ms: int, action: Callable[[], None]) -> None:
        """Let something happen to a host, unless it crashes before; to a stopped one later."""
        seat = self._seats[host_id]
        incarnation = seat.incarnation

        def happen() -> None:
            if not seat.is_running or seat.incarnation != incarnation:
                return
            if seat.stopped_until_ms > self.now_ms:
                self.after(seat.stopped_until_ms - self.now_ms, happen)
                return
            self._happen(host_id, action)

        self.after(delay_ms, happen)

    def send(self, sender: int, to: int, message: object) -> None:
        """Put a message on the network, which may do with it what networks do."""
        if to in self._seats:
            for delay_ms in self.network.delays_ms(sender, to):
                self.deliver(to, delay_ms, message)

    def deliver(self, to: int, delay_ms: int, message: object) -> None:
        """Let a message arrive, unless whom it is for crashes before."""
        host = self._seats[to].host
        self.after_on(to, delay_ms, lambda: host.receive(message))

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + for_ms
        events = self._events
        try:
            while events and events[0][0] <= end_ms:
                at_ms, _, action = heapq.heappop(events)
                self.now_ms = max(self.now_ms, at_ms)
                self.event_count += 1
                action()
        except Exception as error:
            raise SimulationFailure(self.report(error)) from error
        self.now_ms = end_ms

    def note(self, text: str) -> None:
        """Remember what happened, for the report."""
        self._history.append(f"{self.now_ms:>7} ms  {text}")

    def _happen(self, host_id: int, action: Callable[[], None]) -> None:
        action()
        seat = self._seats[host_id]
        for check in self.checks:
            check(host_id)
        deadline_ms = seat.host.next_deadline_ms()
        if seat.wake_ms <= self.now_ms or deadline_ms < seat.wake_ms:
            self._wake_at(host_id, seat, max(deadline_ms, self.now_ms + 1))

    def _wake_at(self, host_id: int, seat: _Seat, at_ms: int) -> None:
        seat.wake_ms = at_ms

        def wake() -> None:
            if seat.wake_ms == at_ms:
                seat.host.wake()

        self.after_on(host_id, at_ms - self.now_ms, wake)

    def report(self, error: Exception) -> str:
        """What is wrong, how to see it again, and what happened last."""
        history = "\n".join(self._history)
        return (
            f"seed {self.seed}, after {self.event_count} events at {self.now_ms} ms: {error!r}\n"
            f"again: SIM_SEED={self.seed} pytest tests/simulation\n{history}"
        )
