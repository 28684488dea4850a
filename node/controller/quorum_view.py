"""How the quorum stands: told by its leader to whoever asks at any node.

A question that arrives at another node is put to the leader; without a leader, or without an answer
in time, the answer is that nobody knows.
"""

import time
from collections.abc import Callable

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
_ASK_AGAIN_MS = 100


class _PendingDescribe:
    __slots__ = ("ask_ms", "deadline_ms", "identity", "request_id")

    def __init__(self, identity: bytes, request_id: int, now_ms: int) -> None:
        self.identity = identity
        self.request_id = request_id
        self.ask_ms = now_ms
        self.deadline_ms = now_ms + ANSWER_TIMEOUT_MS


class QuorumView:
    """See the module's docstring. Times are of a clock that does not go back, in milliseconds."""

    def __init__(
        self,
        driver: RaftDriver,
        *,
        send: Callable[[int, ControlMessage], None],
        tell: Callable[[bytes, QuorumDescribed], None],
        wall_ms: Callable[[], int],
        headers: PeerHeaderLookup,
    ) -> None:
        self._driver = driver
        self._send = send
        self._tell = tell
        self._wall_ms = wall_ms
        self._headers = headers
        self._questions: dict[int, _PendingDescribe] = {}
        self._next_key = time.time_ns()

    def describe(self, identity: bytes, request_id: int, now_ms: int) -> None:
        """A process of this node asks."""
        self._next_key += 1
        self._questions[self._next_key] = _PendingDescribe(identity, request_id, now_ms)

    def asked(self, member: int, message: QuorumStateRequest) -> None:
        """Another node asks."""
        self._send(member, QuorumStateResponse(message.request_id, self.state()))

    def told(self, message: QuorumStateResponse) -> None:
        """The leader's answer, or that of somebody who leads no more."""
        if message.state is not None:
            self._finish(message.request_id, message.state)

    def settle(self, now_ms: int) -> None:
        """Answer what can be, ask what is due."""
        if not self._questions:
            return
        state = self.state()
        leader_id = self._driver.node.leader_id
        for key, question in list(self._questions.items()):
            if state is not None or question.deadline_ms <= now_ms:
                self._finish(key, state)
            elif leader_id is not None and question.ask_ms <= now_ms:
                question.ask_ms = now_ms + ANSWER_TIMEOUT_MS // 3
                self._send(leader_id, QuorumStateRequest(key))
            elif leader_id is None:
                question.ask_ms = now_ms + _ASK_AGAIN_MS

    def next_deadline_ms(self) -> int | None:
        """When `settle` has something to do, if nothing happens before."""
        return min(
            (min(q.deadline_ms, q.ask_ms) for q in self._questions.values()),
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
        standings = {node.own_id: self._standing(node.own_id, last_index, now_ms, now_ms)}
        for member, progress in leadership.peers.items():
            heard_ms = now_ms - self._driver.age_ms(progress.heard_ms)
            has_all = progress.match_index >= node.log.committed_index
            standings[member] = self._standing(
                member, progress.match_index, heard_ms, heard_ms if has_all else -1
            )
        voters = node.configuration.voter_ids
        return QuorumState(
            leader_id=node_id_of(node.own_id),
            term=node.term,
            high_watermark=node.log.committed_index,
            voters=tuple(standings[member] for member in voters if member in standings),
            observers=tuple(s for member, s in standings.items() if member not in voters),
        )

    def _standing(self, member: int, end: int, fetched_ms: int, caught_up_ms: int) -> QuorumReplica:
        header = self._headers.header_of(member)
        voter = self._driver.node.configuration.find(member)
        place: VoterContext | None = None
        if voter is not None:
            place = voter_context(voter)
        if place is None:
            place = VoterContext() if header is None else header_context(header)
        return QuorumReplica(
            node_id_of(member),
            end,
            fetched_ms,
            caught_up_ms,
            place.directory_id,
            place.host,
            place.port,
        )

    def _finish(self, key: int, state: QuorumState | None) -> None:
        question = self._questions.pop(key, None)
        if question is not None:
            self._tell(question.identity, QuorumDescribed(question.request_id, state))
