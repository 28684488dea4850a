"""Hands connections of producers over to workers, and takes them back.

A connection whose requests have taken the routes of one worker for a while, none of them large, is
handed over to it (docs/adr/0027-connection-handover.md): it is not read here any more, and the
worker answers its requests itself (worker/handed_connections.py). It comes back with what a worker
does not do, such as the end of a transaction and the first batch of the next. The more often it
comes back soon, the longer it takes until it is handed over again.

The invariant of routes (produce_routes.py) holds for the worker, too: every CHECK_S they are
compared with what they were made of, and a connection whose routes are not valid any more is
recalled; so are all when requests are traced or clients have quotas, and when the router stops.
Called by the event loop, by produce_routes.py and by connections.
"""

import asyncio
from pathlib import Path
from typing import Final

from odradek.node.bus.connection_handover import (
    RECEIVED_BYTES_MAX,
    DirectRoute,
    Forget,
    HandedBack,
    HandOver,
    HandoverChannel,
    Recall,
    Served,
    handover_path,
)
from odradek.node.router.context import Services
from odradek.node.router.dispatch import Dispatcher
from odradek.node.router.produce_routes import (
    HANDOVER_AFTER_MIN,
    LOG_START_SINCE,
    ProduceRoute,
    ProduceRoutes,
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
HANDOVER_AFTER_MAX: Final = 1 << 16
"""See ProduceRoutes."""
SERVED_MIN: Final = 64
"""A connection for which a worker has answered fewer requests has come back soon."""
_ROUTES_BYTES_MAX: Final = 48 << 10


class _HandedOver:
    """One connection that is handed over or about to be. A Handover of connection_hooks.py."""

    __slots__ = (
        "_owner",
        "connection",
        "is_away",
        "is_recalled",
        "routes",
        "served",
        "taken",
        "worker",
    )

    def __init__(
        self,
        owner: "ConnectionHandover",
        connection: Connection,
        routes: ProduceRoutes,
        worker: int,
    ) -> None:
        self._owner = owner
        self.connection = connection
        self.routes = routes
        self.worker = worker
        self.taken: list[ProduceRoute] = []
        """The routes that the worker has."""
        self.is_away = self.is_recalled = False
        self.served = 0

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
        self._routing.consider_handover = self.consider
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

    def consider(self, connection: Connection, routes: ProduceRoutes, store: int) -> None:
        """Hand the connection over to the worker of this store, if that is possible. Only while a
        request of the connection is begun."""
        routes.until_handover = routes.handover_after
        if (
            self._has_stopped
            or not self._may_hand_over()
            or connection.gate is not None
            or connection.handover is not None
            or connection.descriptor() is None
        ):
            return
        handed = _HandedOver(self, connection, routes, self._worker_of(store))
        connection.hand_over(handed)

    def send(self, handed: _HandedOver) -> None:
        """All responses are written: hand the connection over, or read it again."""
        connection, routes = handed.connection, handed.routes
        by_prefix = {
            prefix: route
            for prefix, route in routes.by_prefix.items()
            if self._worker_of(route.store) == handed.worker
        }
        handed.taken = list(by_prefix.values())
        channel = self._channel(handed.worker)
        descriptor, received = connection.descriptor(), None
        if channel is not None and descriptor is not None and self._may_send(handed):
            received = connection.input.take_away(RECEIVED_BYTES_MAX)
        if channel is None or received is None or descriptor is None:
            self._back_off(routes)
            connection.take_back()
            return
        message = HandOver(
            connection.id,
            routes.key_and_version,
            tuple(_direct_route(prefix, route) for prefix, route in by_prefix.items()),
            received,
        )
        if not channel.try_send(message, descriptor):
            self._back_off(routes)
            connection.take_back(received)
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
            self._channels[handed.worker].send(Recall(handed.connection.id))

    def lost(self, handed: _HandedOver) -> None:
        """A connection is closed."""
        if self._away.pop(handed.connection.id, None) is not None:
            self._channels[handed.worker].send(Forget(handed.connection.id))

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

    # -- what a route was made of ------------------------------------------------------------------

    def _may_hand_over(self) -> bool:
        services = self._services
        return not services.tracer.is_active and not services.client_quotas.is_active

    def _may_send(self, handed: _HandedOver) -> bool:
        prefix_bytes = handed.routes.prefix_end * len(handed.taken)
        return (
            not self._has_stopped
            and len(self._away) < HANDED_MAX
            and 0 < prefix_bytes <= _ROUTES_BYTES_MAX
            and self._is_valid(handed)
        )

    def _is_valid(self, handed: _HandedOver) -> bool:
        return self._may_hand_over() and all(
            self._routing.is_valid(route, handed.connection) for route in handed.taken
        )

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
            elif isinstance(message, HandedBack):
                self._take_back(message)

    def _close_channel(self, worker: int) -> None:
        """The worker is gone. Which requests it has carried out is unknown: their clients send them
        again over new connections."""
        channel = self._channels.pop(worker)
        self._wire.loop.remove_reader(channel.fileno())
        channel.close()
        lost = [each for each in self._away.values() if each.worker == worker]
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
        for received_ns, done_ns, sent_ns in message.timings:
            timing = RequestTiming(ApiKey.PRODUCE, received_ns, received_ns)
            timing.done_ns = done_ns
            wire.request_times.observe(timing, sent_ns)
        if handed is not None:
            handed.served += message.requests
            handed.connection.note_served(message.requests)
            self._count_requests(handed.taken[0].count_key, message.requests)

    def _back_off(self, routes: ProduceRoutes) -> None:
        """Handing the connection over was of no use."""
        routes.handover_after = routes.until_handover = min(
            4 * routes.handover_after, HANDOVER_AFTER_MAX
        )

    def _take_back(self, message: HandedBack) -> None:
        handed = self._away.pop(message.connection, None)
        if handed is None:
            return  # it was closed meanwhile
        routes = handed.routes
        if handed.served >= SERVED_MIN:
            routes.handover_after = max(routes.handover_after // 4, HANDOVER_AFTER_MIN)
        elif not handed.is_recalled:
            self._back_off(routes)
        routes.until_handover = routes.handover_after
        connection = handed.connection
        slots = []
        for _ in message.answers:
            slots.append(Slot(connection))
            connection.slots.append(slots[-1])
        connection.take_back(message.received, message.unsent)
        for slot, (correlation_id, index, reply) in zip(slots, message.answers, strict=True):
            self._routing.answer(slot, handed.taken[index], correlation_id, reply)


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
