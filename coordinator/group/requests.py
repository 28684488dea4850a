"""Requests to a shard that are no messages of the wire.

Some APIs name several groups at once, which may live in several shards; the handlers ask for one
group at a time with these. Others are the router's own. Each says what it is answered with. Called
by the handlers, and understood by `shard`.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from odradek.coordinator.outcome import TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
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
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from odradek.protocol.types import Request, Uuid

CommitRequest: TypeAlias = OffsetCommitRequest | TxnOffsetCommitRequest
"""A commit, alone or in a transaction: both have the fields of members and of partitions."""
CommitTopic: TypeAlias = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic


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
