"""The messages between the controllers of different nodes, over TCP.

A frame has two parts: a header that identifies the sender, the same bytes in every frame of a
process, and a msgpack list of messages. Raft's messages are the structs of cluster.raft. Every
struct has a tag. Fields are added only at the end, with defaults. A frame that cannot be decoded is
dropped as a whole, which Raft handles like a lost message."""

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
    """The sender. `directory_id` is that of its data folder, empty if the folder has none.
    `incarnation` is new with every start of the process. `store_count` is the number of stores that
    the node was formatted with: a partition is in the same store on all nodes. `member` is its
    member id in the quorum (cluster.raft.configuration), `host` and `port` are its peer address.
    `secrets` are the fingerprints of its cluster secrets, the one with which it listens first."""

    version: int
    cluster_id: str
    node_id: int
    directory_id: str
    incarnation: int
    store_count: int = 0
    member: int = 0
    host: str = ""
    port: int = 0
    secrets: tuple[str, ...] = ()


class ForwardRequest(msgspec.Struct, frozen=True, array_like=True, tag="Forward", gc=False):
    """A command for the active controller, as cluster.controller.commands encodes it."""

    request_id: int
    command: bytes
    timeout_ms: int


class ForwardResponse(msgspec.Struct, frozen=True, array_like=True, tag="Carried", gc=False):
    """The reply to a forwarded command. An image at `offset` or later has its effect.

    NOT_CONTROLLER: it was not executed here. Send it to the next active controller.
    """

    request_id: int
    error_code: int
    reply: bytes = b""
    error_message: str | None = None
    offset: int = 0


class QuorumStateRequest(msgspec.Struct, frozen=True, array_like=True, tag="AskQuorum", gc=False):
    """Get the state of the quorum from its leader."""

    request_id: int


class QuorumStateResponse(msgspec.Struct, frozen=True, array_like=True, tag="TellQuorum", gc=False):
    """The reply. Null if the receiver is not the leader."""

    request_id: int
    state: QuorumState | None


class MemberAddress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member and its peer address."""

    member: int
    host: str
    port: int


class PeerDirectoryUpdate(msgspec.Struct, frozen=True, array_like=True, tag="Acquaint", gc=False):
    """The members that the sender knows, for a newly connected peer. The addresses in their own
    headers take precedence."""

    members: tuple[MemberAddress, ...]


class PeerRejected(msgspec.Struct, frozen=True, array_like=True, tag="Refused", gc=False):
    """Why the receiver's messages are rejected. Sent back on the same connection.

    `is_replaced`: the quorum has no bootstrap voter of this id any more, or one with another data
    folder. The receiver may join again without a vote, as a replica with the id of its folder.
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
    | ControlMessage
)
