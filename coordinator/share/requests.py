"""Requests to a shard of share states, and its effects.

The response of a request about a key is `ShareStateError` or what the request declares.
"""

from typing import NamedTuple, Self, TypeAlias

import msgspec

from odradek.coordinator.share.state_batches import Batches
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Request, Uuid, uuid_from_text, uuid_to_text


class ShareKey(NamedTuple):
    """A share partition: one partition as one share group reads it."""

    group_id: str
    topic_id: Uuid
    partition: int

    @property
    def text(self) -> str:
        """`group:topicId:partition`, as FindCoordinator has it; its hash decides on the shard."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `text`; a group id may contain colons. ValueError if it is invalid."""
        group_id, topic_id, partition = text.rsplit(":", 2)
        if not group_id.strip():
            raise ValueError(f"{text!r} names no group")
        return cls(group_id, uuid_from_text(topic_id), int(partition))


class ShareStateError(NamedTuple):
    """The error of a request."""

    code: ErrorCode
    message: str


class PersistedShareState(NamedTuple):
    """The durable state of a share partition. Start offset -1: not known yet."""

    state_epoch: int
    start_offset: int
    batches: Batches


class ShareStateSummary(NamedTuple):
    """The offsets and epochs of a share partition; start offset -1 if it was not initialized."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class ShareKeyRequest(msgspec.Struct, frozen=True, gc=False):
    """A request about a key."""

    key: ShareKey


class InitializeShareState(
    ShareKeyRequest, Request[ShareStateError | None], frozen=True, kw_only=True, gc=False
):
    """Start at `start_offset` (-1: the partition's leader decides) and replace a state of a lower
    state epoch. A second request with the same state epoch, and the same start offset or -1,
    changes nothing. Errors: FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION."""

    state_epoch: int
    start_offset: int


class ReadShareState(
    ShareKeyRequest, Request[PersistedShareState | ShareStateError], frozen=True, gc=False
):
    """Read the state, for the leader of `leader_epoch` (-1: for a reader that is not the leader);
    leaders of lower epochs are fenced from then on. Errors: INVALID_REQUEST if the state is not
    initialized, FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION."""

    leader_epoch: int


class WriteShareState(
    ShareKeyRequest, Request[ShareStateError | None], frozen=True, kw_only=True, gc=False
):
    """Write a change of the leader; start offset and count -1: unchanged. Errors: as for a read, or
    FENCED_STATE_EPOCH if the state was replaced: the leader must read it again."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


class DeleteShareState(ShareKeyRequest, Request[ShareStateError | None], frozen=True, gc=False):
    """Delete the state of the key; no error if there is none."""


class SummarizeShareState(
    ShareKeyRequest, Request[ShareStateSummary | ShareStateError], frozen=True, gc=False
):
    """Read the summary, from committed state."""


ShareStateRequest: TypeAlias = (
    InitializeShareState | ReadShareState | WriteShareState | DeleteShareState | SummarizeShareState
)

NO_STATE_SUMMARY = ShareStateSummary(0, 0, -1, -1)
"""Of a key that was never initialized."""


class ForgetTopicStates(msgspec.Struct, Request[None], frozen=True, gc=False):
    """These topics are deleted."""

    topic_ids: frozenset[Uuid]


class MeasureLog(NamedTuple):
    """Effect: send `Checkpoint` with the log end offset."""


class Checkpoint(msgspec.Struct, Request[None], frozen=True, gc=False):
    """Write all states again, at or after `end_offset`, so that the records before it are no longer
    needed."""

    end_offset: int


class DropLog(NamedTuple):
    """Effect: delete the records of the log before `end_offset`."""

    end_offset: int
