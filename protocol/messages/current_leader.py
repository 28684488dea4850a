"""The current leader of a partition and where it listens (KIP-951), in Produce, Fetch, ShareFetch
and ShareAcknowledge."""

from __future__ import annotations

from odradek.protocol.schema import int32, string, struct


@struct
class LeaderIdAndEpoch:
    """The current leader, with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class NodeEndpoint:
    """Where to reach a leader that the response names."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None, since=1, ignorable=True)
