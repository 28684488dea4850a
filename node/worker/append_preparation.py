"""Client batches whose records take long to check: they leave the turn for the preparation thread.

They come back as requests of a later turn, and the requests for their partitions that have come in
the meantime follow them in their order. Invariant: while a batch for a partition is in preparation,
none of the requests that the partition carries out in their order overtakes it. Called by
TurnExecutor, of both threads of a turn; a partition belongs to one of them during a turn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from odradek.node.bus.messages import Append, AppendBytes, WriteMarker
from odradek.node.worker.hosted_partitions import PartitionLocation
from odradek.node.worker.preparation_thread import Preparation, PreparationThread
from odradek.node.worker.turn_requests import PreparedAppend, Request, RouterState
from odradek.storage.client_batches import prepare
from odradek.storage.log_append import LogAppend
from odradek.storage.settings import LogSettings

INLINE_COST_MAX = 2_000_000
"""Nanoseconds that a turn spends on the records of one batch."""

TURN_COST_MAX = 8_000_000
"""Nanoseconds that a turn spends on the records of all batches that have more than one step."""

_ORDERED = (Append, AppendBytes, WriteMarker)
"""The requests that a partition carries out in their order."""


class InPreparation(NamedTuple):
    """What the preparation thread works on."""

    router: RouterState
    append: PreparedAppend


_Waiting: TypeAlias = dict[PartitionLocation, list[tuple[RouterState, Request]]]
"""The requests behind batches in preparation, by partition."""


@dataclass(slots=True)
class TurnCost:
    """What one thread of a turn has spent on checking records, in nanoseconds."""

    now_ms: int = 0
    cost_ns: int = 0
    is_measured: bool = False
    """Whether a client has a quota of time."""


class AppendPreparation:
    """See the module's docstring. `thread` is to be polled like a socket."""

    def __init__(self, pin_thread: Callable[[], None] | None = None) -> None:
        self.thread: PreparationThread[InPreparation] = PreparationThread(pin_thread)
        self.waiting: _Waiting = {}
        """Empty while no batch is in preparation."""

    def check(
        self,
        router: RouterState,
        request: Append | AppendBytes,
        append: LogAppend,
        settings: LogSettings,
        turn: TurnCost,
    ) -> bool:
        """Check a client's batches. False if they are left to the thread. Raises
        BatchRejectedError."""
        steps = prepare(append, settings, turn.now_ms)
        cost = 0
        for step in steps:
            cost += step
            turn.cost_ns += step
            if cost > INLINE_COST_MAX or turn.cost_ns > TURN_COST_MAX:
                prepared = PreparedAppend(request.store, request.number, request, append)
                if turn.is_measured:
                    prepared.work_ns = cost
                    steps = _counted(steps, prepared)
                self.waiting[request.store, request.number] = []
                self.thread.submit(Preparation(InPreparation(router, prepared), steps))
                return False
        return True

    def is_preparing(self, location: PartitionLocation) -> bool:
        """Whether a batch for the partition is in preparation."""
        return location in self.waiting

    def must_wait(self, router: RouterState, request: Request) -> bool:
        """Whether a batch before this one is in preparation; the request waits for it then."""
        waiting = self.waiting.get((request.store, request.number))
        if waiting is None or type(request) not in _ORDERED:
            return False
        waiting.append((router, request))
        return True

    def take(self) -> list[tuple[RouterState, Request]]:
        """The batches that come back from the thread, each with the requests that have waited for
        it. To be run before any later request."""
        requests: list[tuple[RouterState, Request]] = []
        for done in self.thread.take():
            router, prepared = done.subject
            prepared.rejection = done.rejection
            requests.append((router, prepared))
            requests += self.waiting.pop((prepared.store, prepared.number))
        return requests


def _counted(steps: Iterator[int], prepared: PreparedAppend) -> Iterator[int]:
    for cost in steps:
        prepared.work_ns += cost
        yield cost
