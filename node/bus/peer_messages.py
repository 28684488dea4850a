"""The messages between the controllers of different nodes, over TCP.

A frame has two parts: a header that identifies the sender, the same bytes in every frame of a
process, and a msgpack list of messages. Raft's own messages travel as cluster.raft has them. Every
struct has a tag and may only grow at its end, with defaults; a frame that a release does not
understand is dropped as a whole, which Raft takes for a loss."""

from typing import TypeAlias

import msgspec

from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    FollowRequest,
    LeaderHint,
    SnapshotChunk,
    SnapshotReceived,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from odradek.node.bus.messages import QuorumState

PEER_VERSION = 2


class PeerHeader(msgspec.Struct, frozen=True, array_like=True):
    """The sender. `directory_id` is that of its data folder, empty if the folder has none;
    `incarnation` is new with every start of the process. `store_count` is how many stores the node
    was formatted with: workers find a partition on another node by the place it has on theirs.
    `member` is its replica of the metadata, as the quorum knows it (cluster.raft.configuration),
    and `host` and `port` are where it listens for the others."""

    version: int
    cluster_id: str
    node_id: int
    directory_id: str
    incarnation: int
    store_count: int = 0
    member: int = 0
    host: str = ""
    port: int = 0


class ForwardRequest(msgspec.Struct, frozen=True, array_like=True, tag="Forward", gc=False):
    """A command for the active controller, as cluster.controller.commands encodes it."""

    request_id: int
    command: bytes
    timeout_ms: int


class ForwardResponse(msgspec.Struct, frozen=True, array_like=True, tag="Carried", gc=False):
    """What became of a command that was forwarded; it shows in an image from `offset` on.

    NOT_CONTROLLER says that it was not carried out here and is worth sending to the next one.
    """

    request_id: int
    error_code: int
    reply: bytes = b""
    error_message: str | None = None
    offset: int = 0


class QuorumStateRequest(msgspec.Struct, frozen=True, array_like=True, tag="AskQuorum", gc=False):
    """Ask the leader for the state of the quorum."""

    request_id: int


class QuorumStateResponse(msgspec.Struct, frozen=True, array_like=True, tag="TellQuorum", gc=False):
    """The answer. Null if the receiver is not the leader."""

    request_id: int
    state: QuorumState | None


class MemberAddress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member and its peer address."""

    member: int
    host: str
    port: int


class PeerDirectoryUpdate(msgspec.Struct, frozen=True, array_like=True, tag="Acquaint", gc=False):
    """The members that the sender knows, for a newly connected peer. Their own addresses, from
    their headers, take precedence."""

    members: tuple[MemberAddress, ...]


class PeerRejected(msgspec.Struct, frozen=True, array_like=True, tag="Refused", gc=False):
    """The receiver's messages are rejected, and why. Sent back on the same connection.

    `is_replaced`: the quorum has no founder of this id any more, or one with another data folder;
    who says so may come back as a replica that names its folder, and without a vote.
    """

    reason: str
    is_replaced: bool = False


ControlMessage: TypeAlias = (
    ForwardRequest
    | ForwardResponse
    | QuorumStateRequest
    | QuorumStateResponse
    | PeerDirectoryUpdate
)
PeerMessage: TypeAlias = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendAccepted
    | AppendRejected
    | SnapshotChunk
    | SnapshotReceived
    | TimeoutNow
    | FollowRequest
    | LeaderHint
    | ForwardRequest
    | ForwardResponse
    | QuorumStateRequest
    | QuorumStateResponse
    | PeerDirectoryUpdate
)
