"""Dispatches the messages and connection events of the other members of the quorum.

Raft's messages go to the driver, commands to command_forwarding, DescribeQuorum to quorum_view,
connection events to the failure detector. Called by the process in every turn.
"""

from collections.abc import Callable, Container

from odradek.cluster.raft.configuration import is_bootstrap_voter, node_id_of
from odradek.cluster.raft.messages import (
    AppendRequest,
    FollowRequest,
    Message,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
)
from odradek.node.bus.peer_messages import (
    ForwardRequest,
    ForwardResponse,
    PeerDirectoryUpdate,
    PeerHeader,
    PeerMessage,
    QuorumStateRequest,
    QuorumStateResponse,
)
from odradek.node.config import NodeConfig
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.peer_directory import EXPIRY_MS, PeerDirectory
from odradek.node.controller.quorum_view import QuorumView
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

WARN_AGAIN_MS = 5_000
_OF_LEADERS = (AppendRequest, SnapshotChunk, VoteRequest, TimeoutNow)
"""Sent by leaders and candidates only."""


class PeerDispatch:
    """See the module's docstring. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        config: NodeConfig,
        directory: PeerDirectory,
        driver: RaftDriver,
        forwarding: CommandForwarding,
        quorum: QuorumView,
        failure_detector: FailureDetector,
        *,
        report_unreachable: Callable[[tuple[int, ...]], None],
        suspect: Callable[[int, int], None],
    ) -> None:
        """`report_unreachable` sends the unreachable nodes to the processes of this node; `suspect`
        reports a node whose controller process has ended, and when, to the active controller."""
        self._config = config
        self._peer_directory = directory
        self._driver = driver
        self._forwarding = forwarding
        self._quorum = quorum
        self._failure_detector = failure_detector
        self._report_unreachable = report_unreachable
        self._suspect = suspect
        self._own_id = driver.node.own_id
        self._forget_ms = 0
        self._warn_again_ms = 0

    @property
    def is_replaced(self) -> bool:
        """Whether this bootstrap voter lost its vote, or its data folder was replaced, so that it
        has to restart as an observer.

        While there is a leader, only the leader's rejection counts: other members may be outdated.
        Never for a node that bootstrapped a cluster of its own: an operator has to decide.
        """
        bus, driver = self._peer_directory.bus, self._driver
        if bus is None or not bus.replaced_by or not is_bootstrap_voter(self._own_id):
            return False
        if driver.node.leader_id not in {None, *bus.replaced_by}:
            return False
        return not driver.is_sole_voter or driver.node.log.last_index == 0

    def dispatch(self, brokers: Container[int], now_ms: int) -> None:
        """Handle connection events, messages and deadlines. `brokers` are the registered nodes."""
        self._failure_detector.campaign_if_due(now_ms)
        bus = self._peer_directory.bus
        if bus is None:
            return
        for member in bus.poll_events():
            self._peer_directory.announce(member)
            self._failure_detector.peer_reconnected(member)
            self._forwarding.member_reconnected(member, now_ms)
        self._failure_detector.report_unreachable(bus.disconnected_since, self._report_unreachable)
        for member in bus.take_stopped():
            suspect = self._failure_detector.peer_exited(member, now_ms)
            if suspect is not None:
                self._suspect(suspect, now_ms)
        for header, messages in bus.receive():
            self._peer_directory.record_header(header, now_ms)
            for message in messages:
                self._take(header, message, now_ms)
        if now_ms >= self._forget_ms:
            self._forget_ms = now_ms + EXPIRY_MS // 3
            self._peer_directory.expire(brokers, now_ms)

    def _take(self, header: PeerHeader, message: PeerMessage, now_ms: int) -> None:
        if isinstance(message, ForwardRequest):
            self._forwarding.submit_forwarded(header.member, header.incarnation, message, now_ms)
        elif isinstance(message, ForwardResponse):
            self._forwarding.on_response(message, now_ms)
        elif isinstance(message, QuorumStateRequest):
            self._quorum.on_request(header.member, message)
        elif isinstance(message, QuorumStateResponse):
            self._quorum.on_response(message)
        elif isinstance(message, PeerDirectoryUpdate):
            self._peer_directory.add_reported(message, now_ms)
        elif message.sender == header.member:
            self._step(message, now_ms)

    def _step(self, message: Message, now_ms: int) -> None:
        if self._driver.is_sole_voter and isinstance(message, _OF_LEADERS):
            # No node can lead without the vote of the only voter: the sender's log is that of a
            # quorum that this disk had before it was wiped.
            if now_ms >= self._warn_again_ms:
                self._warn_again_ms = now_ms + WARN_AGAIN_MS
                log.error(
                    "a node has other voters for this cluster id, but this node bootstrapped"
                    " a single-node cluster",
                    peer_node=node_id_of(message.sender),
                    path=self._config.data,
                    action="if the disk of this node was wiped: stop it, remove the path and"
                    " set join",
                )
            return
        if isinstance(message, FollowRequest):
            # It may need the addresses of the other members.
            self._peer_directory.send_directory(message.sender)
        self._driver.step(message)
