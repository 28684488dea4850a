"""How a router stops: no client loses a request that waits, and few see a closed connection.

The supervisor stops a router when the other nodes lead what they can take over (ADR 9). Then:

    1. Requests that wait are answered. Coordinators unload their shards: JoinGroup, SyncGroup and
       heartbeats get NOT_COORDINATOR, which sends the client to the new coordinator. Long polls
       end.
    2. While another broker is active, the router goes on serving, until every connection that was
       active lately has been used again and no request has come for QUIET_S; for SERVE_S_MAX at
       most. A member that sends its next heartbeat learns that the coordinator has moved. To find
       the new one it asks any broker, also this one, over the connections that it has.
    3. It accepts no more connections and reads no more requests. Requests that other processes
       have not answered after FINISH_S fail: appends that wait for followers, and DeleteRecords,
       with NOT_LEADER_OR_FOLLOWER, commands to the controller with REQUEST_TIMED_OUT. Their
       outcome is unknown.
    4. Connections close when their responses are sent, or after DRAIN_TIMEOUT_S.

A router that another one of this node replaces leaves step 2 out: there is nobody else to turn to,
and the sooner the next one starts the better.

Invariant: step 4 aborts only connections of clients that do not read. Called by process.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from odradek.node.router.client_listeners import ClientListeners
from odradek.node.router.context import Services
from odradek.node.structured_log import get_logger
from odradek.node.wire.acceptor import drain, finish_requests
from odradek.node.wire.connection import ConnectionServer

log = get_logger(__name__)

QUIET_S: Final = 0.5
"""Longer than the first retry backoffs of clients: 100 ms in most, 200 to 300 ms in franz-go."""
SERVE_S_MAX: Final = 3.5
"""A little longer than the heartbeat interval of classic groups, 3 s in all clients."""
ACTIVE_MS_MAX: Final = 10_000
"""Since the last request of an active connection."""
FINISH_S: Final = 1.0
"""For requests that workers, the controller or other nodes still have to answer."""
DRAIN_TIMEOUT_S: Final = 5.0
"""How long clients may take to receive their last responses."""
_POLL_S: Final = 0.02


async def stop_gracefully(
    services: Services,
    socket_server: ConnectionServer,
    listeners: ClientListeners,
    fail_unanswered_requests: Callable[[], None],
    *,
    is_replaced: bool = False,
) -> None:
    """Take the steps of the module's docstring. Afterwards there are no connections."""
    services.answer_waiting_requests()
    if not is_replaced and has_other_broker(services):
        await _serve_until_quiet(socket_server)
    listeners.stop()
    services.fetch_purgatory.end_all()
    if not await finish_requests(socket_server, timeout_s=FINISH_S):
        fail_unanswered_requests()
    cut_off = await drain(socket_server, timeout_s=DRAIN_TIMEOUT_S)
    if cut_off:
        log.warning(
            "closed client connections that did not finish in time",
            count=cut_off,
            duration_ms=int(DRAIN_TIMEOUT_S * 1000),
        )


def has_other_broker(services: Services) -> bool:
    """Whether clients have another broker to go to."""
    return any(
        not broker.is_fenced and broker.broker_id != services.node_id
        for broker in services.image.brokers.values()
    )


async def _serve_until_quiet(socket_server: ConnectionServer) -> None:
    loop, connections = socket_server.loop, socket_server.connections
    request_count, quiet_since = socket_server.counters.requests, loop.time()
    end = quiet_since + SERVE_S_MAX
    unused = {
        connection.id: connection.request_count
        for connection in connections.values()
        if connection.idle_ms() <= ACTIVE_MS_MAX
    }
    while connections and loop.time() < end:
        await asyncio.sleep(_POLL_S)
        if socket_server.counters.requests != request_count:
            request_count, quiet_since = socket_server.counters.requests, loop.time()
        unused = {
            key: count
            for key, count in unused.items()
            if key in connections and connections[key].request_count == count
        }
        if not unused and loop.time() >= quiet_since + QUIET_S:
            break
