"""Requests to a shard that are no messages of the wire.

Some APIs name several groups at once, which may live in several shards; the handlers ask for one
group at a time with these. Others are the router's own. Each says what it is answered with. Called
by the handlers, and understood by `shard`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from odradek.coordinator.group.rewind.records import OffsetMove, OffsetSnapshot, Rewind, UndoPoint
from odradek.coordinator.group.streams.records import InternalTopic
from odradek.coordinator.outcome import TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DescribedGroup,
)
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupHeartbeatResponse,
)
from odradek.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from odradek.protocol.types import Request, Uuid


class FetchOffsets(msgspec.Struct, Request[OffsetFetchResponseGroup], frozen=True):
    """One group of OffsetFetch; topics None means all. Answered with an OffsetFetchResponseGroup.

    The topics carry both names and ids, whichever of them the client sent. A member of a consumer
    group says who it is; whoever does not asks as an administrator.
    """

    group_id: str
    topics: list[OffsetFetchRequestTopics] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class ConsumerHeartbeat(msgspec.Struct, Request[ConsumerGroupHeartbeatResponse], frozen=True):
    """ConsumerGroupHeartbeat. Answered with a ConsumerGroupHeartbeatResponse.

    `regex_names` are the topics that the request's expression stands for, None if it brings none:
    a shard matches no expressions.
    """

    request: ConsumerGroupHeartbeatRequest
    regex_names: tuple[str, ...] | None = None


class DescribeConsumerGroup(msgspec.Struct, Request[ConsumerGroupDescribedGroup], frozen=True):
    """One group of ConsumerGroupDescribe. Answered with a ConsumerGroupDescribedGroup."""

    group_id: str


class StreamsHeartbeatResult(msgspec.Struct, frozen=True):
    """What StreamsGroupHeartbeat is answered with. The topics of `missing` are to be made, if the
    member may: it will be told that they are missing until they are there."""

    response: StreamsGroupHeartbeatResponse
    missing: tuple[InternalTopic, ...] = ()


class DescribeStreamsGroup(msgspec.Struct, Request[StreamsGroupDescribedGroup], frozen=True):
    """One group of StreamsGroupDescribe. Answered with a DescribedGroup of that API."""

    group_id: str
    with_description: bool = False


class UpdateTopics(msgspec.Struct, Request[None], frozen=True):
    """Topics have changed (`names`, None: any may have), and expressions stand for these now.

    The shard's catalog is the newest already, and so are its settings; `has_new_rules` says that
    other groups may be ephemeral now. Answered with None.
    """

    names: frozenset[str] | None
    regexes: Mapping[str, tuple[str, ...]]
    has_new_rules: bool = False


class DescribeGroup(msgspec.Struct, Request[DescribedGroup], frozen=True):
    """One group of DescribeGroups. Answered with a DescribedGroup."""

    group_id: str


class DeleteGroup(msgspec.Struct, Request[DeletableGroupResult], frozen=True):
    """One group of DeleteGroups. Answered with a DeletableGroupResult."""

    group_id: str


class ExplainGroup(msgspec.Struct, Request[ExplainedGroup], frozen=True):
    """What a group does, and why. Answered with an ExplainedGroup."""

    group_id: str
    with_events: bool = True


class DropTopicOffsets(msgspec.Struct, Request[None], frozen=True):
    """These topics, as (name, id), have been deleted: drop what was committed on them."""

    topics: tuple[tuple[str, Uuid], ...]


class VerificationRequired(msgspec.Struct, frozen=True):
    """Ask the transaction's coordinator, and come again with the guard."""

    guard: int


class CommitInTransaction(
    msgspec.Struct, Request[TxnOffsetCommitResponse | VerificationRequired], frozen=True
):
    """TxnOffsetCommit; answered by its response, or by `VerificationRequired`.

    `is_verified`: the transaction's coordinator has added the group to it in an epoch that no other
    transaction has. Otherwise it has confirmed that the group takes part after `guard` was given.
    """

    request: TxnOffsetCommitRequest
    is_verified: bool
    guard: int = -1


class EndProducerTransaction(msgspec.Struct, Request[ErrorCode], frozen=True):
    """A producer's transaction has ended. Answered with an ErrorCode once the marker is
    committed."""

    marker: TransactionMarker


class RewindPosition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where one partition shall go on, within [start_offset, end_offset] of its log.

    At `offset` (NO_OFFSET: it shall have none), or `shift` records from where it is committed.
    """

    topic: str
    topic_id: Uuid
    partition: int
    start_offset: int
    end_offset: int
    offset: int | None = None
    shift: int = 0
    previous: int = -1
    """Where a share group is, which has no committed offsets."""
    leader_epoch: int = -1
    metadata: str = ""


CANCEL: Final = -1


class RewindGroup(msgspec.Struct, Request["RewindResult"], frozen=True, kw_only=True):
    """Let a group go on elsewhere. Answered with Rewound, when it does or `timeout_ms` are over.

    The same `rewind_id` again is the same rewind. `undoes`: the number of the undo point whose
    offsets these are, 0 if they are others; WITHDRAW for giving up a rewind that is under way.
    """

    group_id: str
    rewind_id: Uuid
    positions: tuple[RewindPosition, ...]
    is_dry_run: bool = False
    undoes: int = 0
    timeout_ms: int = 30_000


class RewindResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rewind. With an error nothing was done, unless that is REQUEST_TIMED_OUT:
    then it goes on. `refused` are the partitions that are to blame."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    moves: tuple[OffsetMove, ...] = ()
    refused: tuple[tuple[str, int, ErrorCode], ...] = ()


class DescribeRewinds(msgspec.Struct, Request["RewindHistory | None"], frozen=True):
    """What of a group can be undone or returned to. Answered with a RewindHistory, or with None if
    there is no such group."""

    group_id: str


class RewindHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Undo points by number, snapshots by name, and the rewind that is under way. `known_ids` are
    those of the last ones, whatever came of them, and of that one."""

    pending: Rewind | None
    known_ids: frozenset[Uuid]
    group_type: str
    undo_points: Mapping[int, UndoPoint]
    snapshots: Mapping[str, OffsetSnapshot]


class TakeSnapshot(msgspec.Struct, Request[RewindResult], frozen=True):
    """Remember a group's offsets under a name. Answered with a Rewound that has them.

    `share_starts`: where a share group begins, which has no committed offsets but is known to the
    share coordinator. They are passed over for groups of other kinds.
    """

    group_id: str
    name: str
    share_starts: tuple[OffsetMove, ...] = ()


class DropSnapshot(msgspec.Struct, Request[RewindResult], frozen=True):
    """Forget a snapshot. Answered with a Rewound without moves."""

    group_id: str
    name: str
