"""What the controllers of different nodes say to each other, over TCP.

A frame is two parts: a header that says who speaks, the same bytes in every frame of a process,
and a msgpack list of messages. Raft's own messages travel as cluster.raft has them. Every struct
has a tag and may only grow at its end, with defaults; a frame that a release does not understand
is dropped as a whole, which Raft takes for a loss.
"""

from typing import TypeAlias

import msgspec

from cluster.raft.messages import (
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
from node.bus.messages import QuorumState

PEER_VERSION = 1


class PeerHeader(msgspec.Struct, frozen=True, array_like=True):
    """Who speaks. `directory_id` is that of its data folder, empty if the folder has none;
    `incarnation` is new with every start of the process. `store_count` is how many stores the node
    was formatted with: workers find a partition on another node by the place it has on theirs."""

    version: int
    cluster_id: str
    node_id: int
    directory_id: str
    incarnation: int
    store_count: int = 0


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A command for the active controller, as cluster.controller.commands encodes it."""

    request_id: int
    command: bytes
    timeout_ms: int


class Carried(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What became of a command that was forwarded; it shows in an image from `offset` on.

    NOT_CONTROLLER says that it was not carried out here and is worth sending to the next one.
    """

    request_id: int
    error_code: int
    reply: bytes = b""
    error_message: str | None = None
    offset: int = 0


class AskQuorum(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """How does the quorum stand? A question for its leader."""

    request_id: int


class TellQuorum(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The answer; null from somebody who does not lead."""

    request_id: int
    state: QuorumState | None


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Nothing that you say is listened to, and why. Comes back on the connection it is about."""

    reason: str


ControlMessage: TypeAlias = Forward | Carried | AskQuorum | TellQuorum
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
    | Forward
    | Carried
    | AskQuorum
    | TellQuorum
)
