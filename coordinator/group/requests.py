"""Requests to a shard of groups that are not messages of the protocol.

Some APIs name several groups, which may be in several shards: the handlers send one of these for
each group. Others are internal to the router. Each declares the type of its response.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from odradek.coordinator.outcome import TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
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
    """One group of OffsetFetch; topics None means all.

    The topics have the names or ids that the client sent. Members of newer types of groups send
    their id and epoch; a request without them is an administrator's.
    """

    group_id: str
    topics: list[OffsetFetchRequestTopic] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class ConsumerHeartbeat(msgspec.Struct, Request[ConsumerGroupHeartbeatResponse], frozen=True):
    """ConsumerGroupHeartbeat.

    `regex_names` are the topics that match the request's regular expression, None if it has none.
    The router resolves expressions.
    """

    request: ConsumerGroupHeartbeatRequest
    regex_names: tuple[str, ...] | None = None


class DescribeConsumerGroup(msgspec.Struct, Request[ConsumerGroupDescribedGroup], frozen=True):
    """One group of ConsumerGroupDescribe."""

    group_id: str


class UpdateTopics(msgspec.Struct, Request[None], frozen=True):
    """Topics have changed (`names`, None: any), and regular expressions match `regexes` now.

    The shard already has the newest catalog and settings; with `has_new_rules` other groups may be
    ephemeral now.
    """

    names: frozenset[str] | None
    regexes: Mapping[str, tuple[str, ...]]
    has_new_rules: bool = False


class DescribeGroup(msgspec.Struct, Request[DescribedGroup], frozen=True):
    """One group of DescribeGroups."""

    group_id: str


class DeleteGroup(msgspec.Struct, Request[DeletableGroupResult], frozen=True):
    """One group of DeleteGroups."""

    group_id: str


class ExplainGroup(msgspec.Struct, Request[ExplainedGroup], frozen=True):
    """One group of ExplainGroup."""

    group_id: str
    with_events: bool = True


class DropTopicOffsets(msgspec.Struct, Request[None], frozen=True):
    """These topics, as (name, id), have been deleted: remove their committed offsets."""

    topics: tuple[tuple[str, Uuid], ...]


NO_GUARD: Final = -1


class VerificationRequired(msgspec.Struct, frozen=True):
    """The transaction coordinator must confirm the group; then repeat the commit with the guard."""

    guard: int


class CommitInTransaction(
    msgspec.Struct, Request[TxnOffsetCommitResponse | VerificationRequired], frozen=True
):
    """TxnOffsetCommit.

    `is_verified`: the transaction coordinator has added the group to the transaction, whose epoch
    is its own (V2). Otherwise it has confirmed the group after `guard` was issued.
    """

    request: TxnOffsetCommitRequest
    is_verified: bool
    guard: int = NO_GUARD


class EndProducerTransaction(msgspec.Struct, Request[ErrorCode], frozen=True):
    """A producer's transaction has ended. The response comes when the marker is committed. As in
    WriteTxnMarkers, `transaction_version` says whether each transaction has its own epoch (2); then
    the producer's next transaction is not ended by a second marker: INVALID_PRODUCER_EPOCH."""

    marker: TransactionMarker
    transaction_version: int
