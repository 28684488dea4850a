"""A cluster in one process: one clock, one network, a disk for each host, all from one seed.

Hosts are pure cores with the driver of a process: they get messages and the time, and do nothing by
themselves. The simulation does not know what they do. Every event has a time; events at the same
time happen in the order of their creation; all randomness comes from `random`. So a seed determines
a whole history.

After every event each check is called with the host of the event. A violation ends in
SimulationFailure, which has the seed and the last events.
"""

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.simulation.network import Network

_REMEMBERED_EVENTS = 80


class Violation(AssertionError):
    """An invariant does not hold."""


class SimulationFailure(AssertionError):  # as pytest shows it, it is one
    """A violation with its seed and the events before it."""


class Host(Protocol):
    """A host of the simulation. Its clock is the simulation's, in milliseconds."""

    def start(self) -> None:
        """Start with the state on the disk."""

    def crash(self) -> None:
        """Lose everything that is not on the disk."""

    def receive(self, message: object) -> None:
        """A message has arrived."""

    def wake(self) -> None:
        """The deadline is reached."""

    def next_deadline_ms(self) -> int:
        """When to call `wake`, if nothing happens before."""


class _Seat:
    """The state of a host: whether it runs, until when it is paused, when it wakes."""

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
        """Add a running host."""
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
        """SIGKILL and power loss at once. Messages to it that are in flight are lost as well."""
        seat = self._seats[host_id]
        assert seat.is_running
        self.note(f"{host_id} crashes")
        seat.is_running = False
        seat.incarnation += 1
        seat.wake_ms = -1
        seat.stopped_until_ms = 0
        seat.host.crash()

    def stop(self, host_id: int, for_ms: int) -> None:
        """SIGSTOP, and SIGCONT later. Messages wait meanwhile."""
        self.note(f"{host_id} stands still for {for_ms} ms")
        self._seats[host_id].stopped_until_ms = self.now_ms + for_ms

    # -- events ------------------------------------------------------------------------------------

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Schedule an event that belongs to no host: a fault, its end, or a client."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def after_on(self, host_id: int, delay_ms: int, action: Callable[[], None]) -> None:
        """Schedule an event of a host. It is dropped if the host crashes before, and delayed
        while the host is paused."""
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
        """Send a message over the network, with its faults."""
        if to in self._seats:
            for delay_ms in self.network.delays_ms(sender, to):
                self.deliver(to, delay_ms, message)

    def deliver(self, to: int, delay_ms: int, message: object) -> None:
        """Deliver a message, unless the receiver crashes before."""
        host = self._seats[to].host
        self.after_on(to, delay_ms, lambda: host.receive(message))

    def run(self, for_ms: int) -> None:
        """Run for this time."""
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
        """Keep an event for the report."""
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
        """The violation, the command that repeats it, and the last events."""
        history = "\n".join(self._history)
        return (
            f"seed {self.seed}, after {self.event_count} events at {self.now_ms} ms: {error!r}\n"
            f"again: SIM_SEED={self.seed} pytest tests/simulation\n{history}"
        )
