"""DescribeQuorum: the state of the quorum, as its leader sees it, for requests at any node.

A node that does not lead requests it from the leader. Without a leader, or without a response
within ANSWER_TIMEOUT_MS, the answer is empty.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from odradek.cluster.raft.configuration import node_id_of
from odradek.node.bus.messages import QuorumDescribed, QuorumReplica, QuorumState
from odradek.node.bus.peer_messages import ControlMessage, QuorumStateRequest, QuorumStateResponse
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.controller.voter_changes import (
    PeerHeaderLookup,
    VoterContext,
    header_context,
    voter_context,
)

ANSWER_TIMEOUT_MS = 1_500
_RETRY_MS = 100


@dataclass(slots=True)
class _PendingDescribe:
    identity: bytes
    request_id: int
    send_ms: int
    deadline_ms: int


class QuorumView:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        driver: RaftDriver,
        *,
        send: Callable[[int, ControlMessage], None],
        respond: Callable[[bytes, QuorumDescribed], None],
        wall_ms: Callable[[], int],
        headers: PeerHeaderLookup,
    ) -> None:
        self._driver = driver
        self._send = send
        self._respond = respond
        self._wall_ms = wall_ms
        self._headers = headers
        self._pending: dict[int, _PendingDescribe] = {}
        self._next_key = time.time_ns()

    def describe(self, identity: bytes, request_id: int, now_ms: int) -> None:
        """A request of a process of this node."""
        self._next_key += 1
        self._pending[self._next_key] = _PendingDescribe(
            identity, request_id, now_ms, now_ms + ANSWER_TIMEOUT_MS
        )

    def on_request(self, member: int, message: QuorumStateRequest) -> None:
        """A request of another node."""
        self._send(member, QuorumStateResponse(message.request_id, self.state()))

    def on_response(self, message: QuorumStateResponse) -> None:
        """The response of the leader, or of a former one."""
        if message.state is not None:
            self._finish(message.request_id, message.state)

    def settle(self, now_ms: int) -> None:
        """Answer the requests that can be answered; forward the others to the leader."""
        if not self._pending:
            return
        state = self.state()
        leader_id = self._driver.node.leader_id
        for key, pending in list(self._pending.items()):
            if state is not None or pending.deadline_ms <= now_ms:
                self._finish(key, state)
            elif leader_id is not None and pending.send_ms <= now_ms:
                pending.send_ms = now_ms + ANSWER_TIMEOUT_MS // 3
                self._send(leader_id, QuorumStateRequest(key))
            elif leader_id is None:
                pending.send_ms = now_ms + _RETRY_MS

    def next_deadline_ms(self) -> int | None:
        """When `settle` has something to do, if nothing happens before."""
        return min(
            (min(q.deadline_ms, q.send_ms) for q in self._pending.values()),
            default=None,
        )

    def state(self) -> QuorumState | None:
        """The quorum, if this member leads it."""
        node = self._driver.node
        leadership = node.leadership
        if leadership is None:
            return None
        now_ms = self._wall_ms()
        last_index = node.log.last_index
        replicas = {node.own_id: self._replica(node.own_id, last_index, now_ms, now_ms)}
        for member, progress in leadership.peers.items():
            fetched_ms = now_ms - self._driver.age_ms(progress.last_contact_ms)
            has_all = progress.match_index >= node.log.committed_index
            replicas[member] = self._replica(
                member, progress.match_index, fetched_ms, fetched_ms if has_all else -1
            )
        voters = node.configuration.voter_ids
        return QuorumState(
            leader_id=node_id_of(node.own_id),
            term=node.term,
            high_watermark=node.log.committed_index,
            voters=tuple(replicas[member] for member in voters if member in replicas),
            observers=tuple(s for member, s in replicas.items() if member not in voters),
        )

    def _replica(self, member: int, end: int, fetched_ms: int, caught_up_ms: int) -> QuorumReplica:
        header = self._headers.header_of(member)
        voter = self._driver.node.configuration.find(member)
        context = None if voter is None else voter_context(voter)
        if context is None:
            context = VoterContext() if header is None else header_context(header)
        return QuorumReplica(
            node_id_of(member),
            end,
            fetched_ms,
            caught_up_ms,
            context.directory_id,
            context.host,
            context.port,
        )

    def _finish(self, key: int, state: QuorumState | None) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            self._respond(pending.identity, QuorumDescribed(pending.request_id, state))
