"""Hands connections of producers and consumers over to workers, and takes them back.

A connection whose requests have taken the routes of one worker for a while, none of them very
large, is handed over to it (docs/adr/0027-connection-handover.md): it is not read here any more,
and the worker answers its requests itself (worker/handed_connections.py). It comes back with what a
worker does not do, such as the end of a transaction and the first batch of the next. The more often
it comes back soon, the longer it takes until it is handed over again. So it is with a connection
that follows one partition (fetch_routes.py).

The invariant of routes (produce_routes.py) holds for the worker, too: every CHECK_S they are
compared with what they were made of, and a connection whose routes are not valid any more is
recalled; so are all when requests are traced or clients have quotas, and when the router stops.
Called by the event loop, by produce_routes.py, fetch_routes.py and by connections.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from odradek.node.bus.connection_handover import (
    RECEIVED_BYTES_MAX,
    DirectRoute,
    Forget,
    HandedBack,
    HandOver,
    HandoverChannel,
    Recall,
    Served,
    Unread,
    handover_path,
)
from odradek.node.router.context import Services
from odradek.node.router.dispatch import Dispatcher
from odradek.node.router.fetch_routes import SmallFetches
from odradek.node.router.produce_routes import (
    HANDOVER_AFTER_MIN,
    LOG_START_SINCE,
    ProduceRoute,
    ProduceRoutes,
    ProduceRouting,
)
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection import Connection, ConnectionServer, Slot
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import ApiKey

log = get_logger(__name__)

CHECK_S: Final = 0.05
"""How often the routes of connections that are handed over are compared."""
HANDED_MAX: Final = 128
"""Connections that are handed over at a time, which bounds the check."""
CONSUMERS_MAX: Final = 16
"""Of them those of consumers: a turn of a worker may have to serve all of them."""
HANDOVER_AFTER_MAX: Final = 1 << 16
"""See ProduceRoutes."""
SERVED_MIN: Final = 64
"""A connection for which a worker has answered fewer requests has come back soon."""
_ROUTES_BYTES_MAX: Final = 48 << 10


class HandedRequests(Protocol):
    """The requests of a connection that a worker is to answer: those of a producer, or of a
    consumer (fetch_routes.py)."""

    @property
    def api_key(self) -> ApiKey: ...

    @property
    def worker(self) -> int: ...

    @property
    def pace(self) -> ProduceRoutes | SmallFetches:
        """When the connection is handed over again."""

    @property
    def handover_after_min(self) -> int: ...

    def message(self, connection: Connection, received: bytes) -> HandOver | None:
        """What the worker is told; None if the connection had better stay."""

    def is_valid(self, connection: Connection) -> bool:
        """Whether nothing has changed that the worker does not see."""

    def served(self, connection: Connection, message: Served) -> None:
        """The worker has answered requests."""

    def take_back(self, connection: Connection, message: HandedBack) -> None:
        """Go on with the connection."""


class _ProducedRequests:
    """Those of a producer."""

    api_key: Final = ApiKey.PRODUCE
    handover_after_min: Final = HANDOVER_AFTER_MIN

    def __init__(
        self,
        routing: ProduceRouting,
        routes: ProduceRoutes,
        store: int,
        worker_of: Callable[[int], int],
        count_requests: Callable[[tuple[int, int], int], None],
    ) -> None:
        self._routing = routing
        self.pace = routes
        self._worker_of = worker_of
        self._count_requests = count_requests
        self.worker = worker_of(store)
        self._taken: list[ProduceRoute] = []
        """The routes that the worker has."""
        self._bytes_max = 0

    def message(self, connection: Connection, received: bytes) -> HandOver | None:
        routes = self.pace
        by_prefix = {
            prefix: route
            for prefix, route in routes.by_prefix.items()
            if self._worker_of(route.store) == self.worker
        }
        self._taken = list(by_prefix.values())
        if not 0 < routes.prefix_end * len(by_prefix) <= _ROUTES_BYTES_MAX:
            return None
        direct = tuple(_direct_route(prefix, route) for prefix, route in by_prefix.items())
        self._bytes_max = connection.wire.settings.request_bytes_max
        return HandOver(
            connection.id,
            routes.key_and_version,
            direct,
            received,
            is_large=routes.is_large,
            bytes_max=self._bytes_max,
        )

    def is_valid(self, connection: Connection) -> bool:
        if self._bytes_max != connection.wire.settings.request_bytes_max:
            return False
        return all(self._routing.is_valid(route, connection) for route in self._taken)

    def served(self, _connection: Connection, message: Served) -> None:
        self._count_requests(self._taken[0].count_key, message.requests)

    def take_back(self, connection: Connection, message: HandedBack) -> None:
        slots = []
        for _ in message.answers:
            slots.append(Slot(connection))
            connection.slots.append(slots[-1])
        connection.take_back(message.received, message.unsent)
        for slot, (correlation_id, index, reply) in zip(slots, message.answers, strict=True):
            self._routing.answer(slot, self._taken[index], correlation_id, reply)


class _HandedOver:
    """One connection that is handed over or about to be. A Handover of connection_hooks.py."""

    __slots__ = ("_owner", "connection", "is_away", "is_recalled", "requests", "served", "unread")

    def __init__(
        self, owner: "ConnectionHandover", connection: Connection, requests: HandedRequests
    ) -> None:
        self._owner = owner
        self.connection = connection
        self.requests = requests
        self.is_away = self.is_recalled = False
        self.served = 0
        self.unread: list[bytes] = []
        """What the worker has sent back so far."""

    def begin(self) -> None:
        if not self.is_away:
            self._owner.send(self)

    def recall(self) -> None:
        self._owner.recall(self)

    def lost(self) -> None:
        self._owner.lost(self)


class ConnectionHandover:
    """See the module's docstring."""

    def __init__(
        self,
        services: Services,
        wire: ConnectionServer,
        run_folder: Path,
        dispatcher: Dispatcher,
    ) -> None:
        self._services = services
        self._wire = wire
        self._run_folder = run_folder
        self._worker_of = services.worker_client.worker_of
        self._channels: dict[int, HandoverChannel] = {}
        """By worker."""
        self._routing = dispatcher.produce_routing
        self._routing.consider_handover = self._consider_producer
        dispatcher.fetch_routing.consider_handover = self._consider
        self._count_requests = dispatcher.count
        self._away: dict[int, _HandedOver] = {}
        """The connections that workers have, by id."""
        self._check: asyncio.TimerHandle | None = None
        self._has_stopped = False
        self.handed_over_count = 0
        """Since the start."""

    @property
    def count(self) -> int:
        """Connections that workers have."""
        return len(self._away)

    def send(self, handed: _HandedOver) -> None:
        """All responses are written: hand the connection over, or read it again."""
        connection, requests = handed.connection, handed.requests
        channel, descriptor = self._channel(requests.worker), connection.descriptor()
        message = received = None
        if channel is not None and descriptor is not None and self._has_room_for(requests):
            received = connection.input.take_away(RECEIVED_BYTES_MAX)
        if received is not None:
            message = requests.message(connection, received)
        if (
            channel is None
            or descriptor is None
            or message is None
            or self._has_stopped
            or not self._is_valid(handed)
            or not channel.try_send(message, descriptor)
        ):
            _back_off(requests)
            connection.take_back(received or b"")
            return
        handed.is_away = True
        self._away[connection.id] = handed
        self.handed_over_count += 1
        if self._check is None:
            self._check = self._wire.loop.call_later(CHECK_S, self._check_routes)

    def recall(self, handed: _HandedOver) -> None:
        """Have a connection back."""
        if not handed.is_away:
            handed.connection.take_back()
        elif not handed.is_recalled:
            handed.is_recalled = True
            self._channels[handed.requests.worker].send(Recall(handed.connection.id))

    def lost(self, handed: _HandedOver) -> None:
        """A connection is closed."""
        if self._away.pop(handed.connection.id, None) is not None:
            self._channels[handed.requests.worker].send(Forget(handed.connection.id))

    def stop(self) -> None:
        """Recall all connections, and hand over no more."""
        self._has_stopped = True
        for handed in list(self._away.values()):
            self.recall(handed)

    def close(self) -> None:
        """Close the channels. There must be no connections."""
        if self._check is not None:
            self._check.cancel()
        for worker in list(self._channels):
            self._close_channel(worker)

    def _consider_producer(self, connection: Connection, routes: ProduceRoutes, store: int) -> None:
        """The requests of a connection have gone to this store for a while."""
        routes.until_handover = routes.handover_after
        self._consider(
            connection,
            _ProducedRequests(self._routing, routes, store, self._worker_of, self._count_requests),
        )

    def _consider(self, connection: Connection, requests: HandedRequests) -> None:
        """Hand the connection over to a worker, if that is possible. Only while a request of the
        connection is begun."""
        if (
            not self._has_stopped
            and self._may_hand_over()
            and connection.gate is None
            and connection.handover is None
            and connection.descriptor() is not None
        ):
            connection.hand_over(_HandedOver(self, connection, requests))

    # -- what a route was made of ------------------------------------------------------------------

    def _has_room_for(self, requests: HandedRequests) -> bool:
        if requests.api_key is ApiKey.FETCH:
            kinds = [each.requests.api_key for each in self._away.values()]
            if kinds.count(ApiKey.FETCH) >= CONSUMERS_MAX:
                return False
        return len(self._away) < HANDED_MAX

    def _may_hand_over(self) -> bool:
        services = self._services
        return not services.tracer.is_active and not services.client_quotas.is_active

    def _is_valid(self, handed: _HandedOver) -> bool:
        return self._may_hand_over() and handed.requests.is_valid(handed.connection)

    def _check_routes(self) -> None:
        self._check = None
        for channel in self._channels.values():
            channel.flush()
        for handed in list(self._away.values()):
            if not handed.is_recalled and not self._is_valid(handed):
                self.recall(handed)
        if self._away:
            self._check = self._wire.loop.call_later(CHECK_S, self._check_routes)

    # -- channels ----------------------------------------------------------------------------------

    def _channel(self, worker: int) -> HandoverChannel | None:
        channel = self._channels.get(worker)
        if channel is None:
            channel = HandoverChannel.connect(handover_path(self._run_folder, worker))
            if channel is not None:
                self._channels[worker] = channel
                self._wire.loop.add_reader(channel.fileno(), self._receive, worker)
        return channel

    def _receive(self, worker: int) -> None:
        channel = self._channels[worker]
        while True:
            try:
                received = channel.receive()
            except EOFError:
                self._close_channel(worker)
                return
            if received is None:
                return
            message, _ = received
            if isinstance(message, Served):
                self._take_served(message)
            elif isinstance(message, Unread):
                unread = self._away.get(message.connection)
                if unread is not None:
                    unread.unread.append(message.piece)
            elif isinstance(message, HandedBack):
                self._take_back(message)

    def _close_channel(self, worker: int) -> None:
        """The worker is gone. Which requests it has carried out is unknown: their clients send them
        again over new connections."""
        channel = self._channels.pop(worker)
        self._wire.loop.remove_reader(channel.fileno())
        channel.close()
        lost = [each for each in self._away.values() if each.requests.worker == worker]
        for handed in lost:
            del self._away[handed.connection.id]
            handed.connection.abort()
        if lost:
            log.warning("closing the connections that a worker had when it ended", count=len(lost))

    def _take_served(self, message: Served) -> None:
        wire, handed = self._wire, self._away.get(message.connection)
        counters = wire.counters
        counters.requests += message.requests
        counters.received_bytes += message.received_bytes
        counters.sent_bytes += message.sent_bytes
        if handed is None:
            return
        for received_ns, done_ns, sent_ns in message.timings:
            timing = RequestTiming(handed.requests.api_key, received_ns, received_ns)
            timing.done_ns = done_ns
            wire.request_times.observe(timing, sent_ns)
        handed.served += message.requests
        handed.connection.note_served(message.requests)
        handed.requests.served(handed.connection, message)

    def _take_back(self, message: HandedBack) -> None:
        handed = self._away.pop(message.connection, None)
        if handed is None:
            return  # it was closed meanwhile
        requests, pace = handed.requests, handed.requests.pace
        if handed.served >= SERVED_MIN and not message.is_overloaded:
            pace.handover_after = max(pace.handover_after // 4, requests.handover_after_min)
            pace.until_handover = pace.handover_after
        elif message.is_overloaded or not handed.is_recalled:
            _back_off(requests)
        if handed.unread:
            received = b"".join((*handed.unread, message.received))
            message = msgspec.structs.replace(message, received=received)
        requests.take_back(handed.connection, message)


def _back_off(requests: HandedRequests) -> None:
    """Handing the connection over was of no use."""
    pace = requests.pace
    pace.handover_after = min(4 * pace.handover_after, HANDOVER_AFTER_MAX)
    pace.until_handover = pace.handover_after


def _direct_route(prefix: bytes, route: ProduceRoute) -> DirectRoute:
    return DirectRoute(
        prefix,
        route.store,
        route.number,
        route.acks,
        route.timeout_ms,
        route.version,
        route.head,
        route.tail,
        route.version >= LOG_START_SINCE,
        route.transactional_id is not None,
    )
