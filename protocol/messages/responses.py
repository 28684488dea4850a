"""What responses of several APIs have in common: the first fields, and the current leader of a
partition with its address (KIP-951)."""

from __future__ import annotations

from odradek.protocol.schema import int16, int32, string, struct


@struct
class ErrorCodeResponse:
    """A response with an error code for the whole request."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


@struct
class ErrorMessageResponse(ErrorCodeResponse):
    """A response with an error code and a message for the whole request."""

    error_message: str | None = string(nullable_since=0, default=None)


@struct
class LeaderIdAndEpoch:
    """The current leader, with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class NodeEndpoint:
    """The address of a broker on the client's listener; v1 of Metadata adds the rack."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None, since=1, ignorable=True)
