"""Consumers that follow the end of one partition: their fetches may be answered by its worker.

A connection whose fetches of a single partition find a few records each time is handed over to the
worker that owns the partition (connection_handover.py, docs/adr/0027-connection-handover.md). What
the worker is given, a `FetchRoute`, is the request and the response with the places of what
changes (single_fetches.py), and where the session is.

Invariant as for the routes of producers: a worker answers only while nothing has changed that was
asked when the request was decoded. Called by repeated_requests.py and connection_handover.py.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from odradek.node.bus.connection_handover import (
    FetchPosition,
    HandedBack,
    HandOver,
    Served,
)
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_sessions import FetchSession
from odradek.node.router.produce_routes import ProduceRoutes
from odradek.node.router.single_fetches import SingleFetch, SingleFetches
from odradek.node.wire.connection import Connection
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.fetch import FetchRequest

HANDOVER_AFTER: Final = 16
"""Fetches in a row that found a few records, before the connection is handed over."""
FEW_BYTES_MAX: Final = 32 << 10
"""Of records in a response. A worker sends twice as many, because sizes vary."""


class SmallFetches:
    """What is remembered of a connection: how many fetches in a row found a few records."""

    __slots__ = ("handover_after", "until_handover")

    def __init__(self) -> None:
        self.handover_after = self.until_handover = HANDOVER_AFTER


class FetchRoute:
    """The fetches of one connection, as its worker answers them: a HandedRequests."""

    api_key: Final = ApiKey.FETCH
    handover_after_min: Final = HANDOVER_AFTER

    def __init__(self, routing: "FetchRouting", fetches: SmallFetches, fetch: SingleFetch) -> None:
        self._routing = routing
        self.pace = fetches
        self._fetch = fetch
        self._session: FetchSession | None = None
        self._session_epoch = 0
        """When the connection was handed over."""
        self.worker = routing.worker_of(fetch.log.store)

    def message(self, connection: Connection, received: bytes) -> HandOver | None:
        """What the worker is told. None if the last response was not like those before."""
        if connection.remembered is not self.pace:
            return None
        fetch = self._fetch
        position = FetchPosition(0, fetch.fetch_offset, -1, -1)
        if fetch.request.session_id:
            session = self._session = self._routing.sessions.get(fetch.request.session_id)
            cached = fetch.cached_in(session)
            if session is None or cached is None:
                return None
            self._session_epoch = session.epoch
            position = FetchPosition(
                session.epoch,
                cached.fetch_offset,
                cached.sent_high_watermark,
                cached.sent_log_start_offset,
            )
        api_key, version = fetch.count_key
        key_and_version = (api_key << 16) + version
        return HandOver(connection.id, key_and_version, (), received, fetch.template(position))

    def is_valid(self, connection: Connection) -> bool:
        """Whether nothing has changed that the worker does not see."""
        routing, session = self._routing, self._session
        return routing.fetches.is_unchanged(self._fetch, connection) and (
            session is None
            or (
                session.epoch == self._session_epoch
                and routing.sessions.get(session.session_id) is session
            )
        )

    def served(self, connection: Connection, message: Served) -> None:
        """The worker has answered requests."""
        routing, fetch = self._routing, self._fetch
        routing.count_requests(fetch.count_key, message.requests)
        if not message.requests:
            return
        if self._session is not None:
            routing.sessions.touch(self._session, routing.fetches.now_ms())
        sent = message.record_bytes, message.records
        routing.fetches.record(fetch, connection, fetch.cached_at(message.fetch_offset), sent)

    def take_back(self, connection: Connection, message: HandedBack) -> None:
        """The session goes on where the worker has left it."""
        session, position = self._session, message.position
        if session is not None and position is not None and session.epoch == self._session_epoch:
            cached = self._fetch.cached_at(position.fetch_offset)
            cached.sent_high_watermark = position.sent_high_watermark
            cached.sent_log_start_offset = position.sent_log_start_offset
            self._fetch.replace_in(session, cached)
            session.epoch = position.epoch
        connection.take_back(message.received, message.unsent)


ConsiderFetchHandover: TypeAlias = Callable[[Connection, FetchRoute], None]


class FetchRouting:
    """The fetches of all connections of a router. `count_requests` is called with API key and
    version of requests, and their number."""

    def __init__(
        self,
        services: Services,
        fetches: SingleFetches,
        count_requests: Callable[[tuple[int, int], int], None],
    ) -> None:
        self.fetches: Final = fetches
        self.sessions: Final = services.fetch_sessions
        self.worker_of: Final = services.worker_client.worker_of
        self.count_requests: Final = count_requests
        self.consider_handover: ConsiderFetchHandover = lambda _connection, _route: None
        """Called with a fetch that goes on as those before it."""

    def begin(
        self, client: Connection, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> None:
        """A request that is single. If those before it found a few records, handing over the
        connection is considered. Only while the request is begun."""
        fetches = client.remembered
        if type(fetches) is SmallFetches and fetches.until_handover <= 0:
            fetches.until_handover = fetches.handover_after
            fetch = self.fetches.resolve(request, context, body_offset)
            if fetch is not None:
                self.consider_handover(client, FetchRoute(self, fetches, fetch))

    def note(self, client: Connection, record_bytes: int) -> None:
        """Count the response to a request that was begun. It has so many bytes of records of its
        partition and nothing else, or 0."""
        fetches = client.remembered
        if not 0 < record_bytes <= FEW_BYTES_MAX:
            if type(fetches) is SmallFetches:
                client.remembered = None
        elif type(fetches) is not ProduceRoutes:
            if type(fetches) is not SmallFetches:
                fetches = client.remembered = SmallFetches()
            fetches.until_handover -= 1
