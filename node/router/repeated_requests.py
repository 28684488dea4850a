"""Requests that repeat an earlier one of their connection, and are not decoded again.

A producer that sends single batches takes a route (produce_routes.py), a consumer that has nothing
to read waits (idle_fetches.py), one that follows its partition may be answered by a worker
(fetch_routes.py). What is remembered of a connection is its `remembered`: one of these. Called by
dispatch.py, which asks for none of them while requests are traced or clients have quotas.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_routes import FetchRouting
from odradek.node.router.idle_fetches import IdleFetch, IdleFetchCandidate, IdleFetches
from odradek.node.router.large_fetches import LargeFetch, LargeFetchRouting
from odradek.node.router.produce_routes import (
    FinishProduce,
    ProduceRoutes,
    ProduceRouting,
    RouteCandidate,
)
from odradek.node.router.sessionless_fetches import (
    SessionlessFetch,
    SessionlessFetchRouting,
    is_sessionless,
)
from odradek.node.router.single_fetches import (
    SingleFetches,
    record_bytes_of,
    single_record_bytes,
)
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection import Connection, Slot
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.produce import ProduceRequest, ProduceResponse

log = get_logger(__name__)

REPEATED: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""The APIs whose requests may be remembered."""

Finish = Callable[[Any, BaseException | None], None]
"""Called with the response, or with an error."""


class RepeatedRequests:
    """See the module's docstring.

    `count_request` is called with API key and version of each request that is not decoded,
    `finish_produce` with the responses to those that the worker has refused, `begin_request` with a
    frame that has to be decoded after all.
    """

    def __init__(
        self,
        services: Services,
        count_request: Callable[..., None],
        finish_produce: FinishProduce,
        begin_request: Callable[[Slot, memoryview, int], None],
    ) -> None:
        self.routing: Final = ProduceRouting(services, count_request, finish_produce)
        self.idle_fetches: Final = IdleFetches(services, count_request, self._begin_late)
        fetches = self._single_fetches = SingleFetches(services)
        self.fetch_routing: Final = FetchRouting(services, fetches, count_request)
        self._large_fetches = LargeFetchRouting(services, fetches, count_request)
        self._sessionless_fetches = SessionlessFetchRouting(services, fetches, count_request)
        self._begin_request = begin_request

    def begin(self, slot: Slot, frame: memoryview, arena_offset: int) -> bool:
        """Start a request if it repeats what is remembered; its slot is completed then."""
        remembered = slot.connection.remembered
        if type(remembered) is ProduceRoutes:
            return self.routing.begin(remembered, slot, frame, arena_offset)
        if type(remembered) is IdleFetch:
            return self.idle_fetches.begin(remembered, slot, frame)
        if type(remembered) is LargeFetch:
            return self._large_fetches.begin(remembered, slot, frame)
        if type(remembered) is SessionlessFetch:
            return self._sessionless_fetches.answer(remembered, slot, frame)
        return False

    def remembering(
        self,
        client: Connection,
        request: object,
        context: RequestContext,
        body_offset: int,
        finish: Finish,
    ) -> Finish:
        """`finish`, or a function that also remembers the request. The request has not been
        authorized yet; its body begins at `body_offset` of the frame. One that is still to be
        decoded is not remembered: it is large."""
        if isinstance(request, ProduceRequest):
            candidate = self.routing.candidate(request, context)
            if candidate is not None:
                return partial(self._finish_produce, client, candidate, finish)
        elif isinstance(request, FetchRequest):
            fetch = self.idle_fetches.candidate(request, context, body_offset)
            if fetch is not None:
                finish = partial(self._finish_fetch, client, fetch, finish)
            version = context.api_version
            is_single = self._single_fetches.is_single(request, version)
            if is_single:
                self.fetch_routing.begin(client, request, context, body_offset)
            if request.session_id:
                if is_single:
                    self._large_fetches.remember(client, request, context, body_offset)
                    finish = partial(self._finish_single_fetch, client, finish)
            elif is_sessionless(request, version):
                kept = self._sessionless_fetches.begin(client, request, context, body_offset)
                finish = partial(
                    self._finish_sessionless_fetch, client, kept, finish, is_single=is_single
                )
        return finish

    def _finish_produce(
        self,
        client: Connection,
        candidate: RouteCandidate,
        finish: Finish,
        response: ProduceResponse | None,
        error: BaseException | None,
    ) -> None:
        if response is not None and not candidate.context.may_have_errors:
            self.routing.remember(client, candidate)
        finish(response, error)

    def _finish_fetch(
        self,
        client: Connection,
        candidate: IdleFetchCandidate,
        finish: Finish,
        response: FetchResponse | None,
        error: BaseException | None,
    ) -> None:
        if response is not None and not candidate.context.is_long:
            self.idle_fetches.note(client, candidate, response)
        finish(response, error)

    def _finish_single_fetch(
        self,
        client: Connection,
        finish: Finish,
        response: FetchResponse | None,
        error: BaseException | None,
    ) -> None:
        if response is not None:
            record_bytes = single_record_bytes(response)
            self.fetch_routing.note(client, record_bytes)
            self._large_fetches.note(client, record_bytes)
        finish(response, error)

    def _finish_sessionless_fetch(
        self,
        client: Connection,
        kept: SessionlessFetch | None,
        finish: Finish,
        response: FetchResponse | None,
        error: BaseException | None,
        *,
        is_single: bool,
    ) -> None:
        if response is not None:
            record_bytes = record_bytes_of(response)
            if is_single:
                self.fetch_routing.note(client, record_bytes)
            self._sessionless_fetches.note(client, kept, record_bytes)
        finish(response, error)

    def _begin_late(self, slot: Slot, frame: memoryview) -> None:
        """A fetch that has waited goes the way of all requests. Nobody else may suffer from it."""
        try:
            self._begin_request(slot, frame, 0)
        except Exception:
            client = slot.connection
            log.exception("a request failed; closing its connection", **client.log_fields())
            client.abort()
