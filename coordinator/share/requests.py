"""What a shard of share states is asked, and what it asks for.

A request about a key is answered by `ShareStateError`, or by what is said at it.
"""

from typing import NamedTuple, Self, TypeAlias

import msgspec

from odradek.coordinator.share.state_batches import Batches
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Request, Uuid, uuid_from_text, uuid_to_text


class ShareKey(NamedTuple):
    """A share-partition: what one share group knows of one partition."""

    group_id: str
    topic_id: Uuid
    partition: int

    @property
    def text(self) -> str:
        """`group:topicId:partition`, as FindCoordinator has it; its hash decides on the shard."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `text`; a group's id may have colons. ValueError if it is none."""
        group_id, topic_id, partition = text.rsplit(":", 2)
        if not group_id.strip():
            raise ValueError(f"{text!r} names no group")
        return cls(group_id, uuid_from_text(topic_id), int(partition))


class ShareStateError(NamedTuple):
    """Why a request was not carried out."""

    code: ErrorCode
    message: str


class PersistedShareState(NamedTuple):
    """The durable state of a share-partition. Start offset -1: not decided yet."""

    state_epoch: int
    start_offset: int
    batches: Batches


class ShareStateSummary(NamedTuple):
    """Where a share-partition stands; start offset -1 if nobody has begun with it."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class InitializeShareState(msgspec.Struct, Request[ShareStateError | None], frozen=True, gc=False):
    """Begin at `start_offset` (-1: its leader decides), in place of whatever there is of a lower
    state epoch. Answered by None."""

    key: ShareKey
    state_epoch: int
    start_offset: int


class ReadShareState(
    msgspec.Struct, Request[PersistedShareState | ShareStateError], frozen=True, gc=False
):
    """All that is known, for the leader of `leader_epoch` (-1: for somebody who only looks);
    leaders of lower epochs are fenced from then on. Answered by `PersistedShareState`."""

    key: ShareKey
    leader_epoch: int


class WriteShareState(msgspec.Struct, Request[ShareStateError | None], frozen=True, gc=False):
    """What a leader has decided; start offset and count -1: unchanged. Answered by None."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


class DeleteShareState(msgspec.Struct, Request[ShareStateError | None], frozen=True, gc=False):
    """Forget the key, known or not. Answered by None."""

    key: ShareKey


class SummarizeShareState(
    msgspec.Struct, Request[ShareStateSummary | ShareStateError], frozen=True, gc=False
):
    """Answered by `ShareStateSummary`, from committed state."""

    key: ShareKey


ShareStateRequest: TypeAlias = (
    InitializeShareState | ReadShareState | WriteShareState | DeleteShareState | SummarizeShareState
)
"""What is asked about a key."""

NO_STATE_SUMMARY = ShareStateSummary(0, 0, -1, -1)
"""Of a key that was never initialised."""


class ForgetTopicStates(msgspec.Struct, Request[None], frozen=True, gc=False):
    """These topics are no more."""

    topic_ids: frozenset[Uuid]


class MeasureLog(NamedTuple):
    """Instruction to the shell: say with `Checkpoint` how far the log goes now."""


class Checkpoint(msgspec.Struct, Request[None], frozen=True, gc=False):
    """Write everything that is known once more, behind `end_offset`, so that what lies before it
    is not needed any more. Answered by None."""

    end_offset: int


class DropLog(NamedTuple):
    """Instruction to the shell: nobody needs the log before `end_offset` any more."""

    end_offset: int
