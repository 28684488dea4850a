"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete of one shard.

Offsets belong to no type of group: the current type of the group validates the request. A live
rewind fences commits, and a commit may be handled as a rewind.

In transactions (TxnOffsetCommit), members of the group are fenced as in OffsetCommit (KIP-447), but
a rebalance is no reason to refuse a commit. A producer whose transaction is not known to this shard
may only commit when the transaction coordinator has confirmed that the group takes part in the
transaction (KIP-890). The confirmation has the guard that was issued before it was requested: if a
transaction of that producer has ended since, it must be verified again. Called by `shard`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.offsets.committed_offsets import refused_commit
from odradek.coordinator.group.requests import (
    NO_GUARD,
    CommitInTransaction,
    DropTopicOffsets,
    EndProducerTransaction,
    FetchOffsets,
    VerificationRequired,
)
from odradek.coordinator.group.rewind.live_rewinder import LiveRewinder
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import (
    Command,
    Outcome,
    ShardReply,
    Timer,
    TransactionalRecord,
    respond,
)
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.coordinator.transaction.transaction_metadata import EPOCH_BUMPS_SINCE
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.transactions import TxnOffsetCommitRequest

_NEWEST_COMMIT: Final = APIS[ApiKey.OFFSET_COMMIT].max_version
_MEMBER_EPOCHS_SINCE: Final = 6

_Outcome: TypeAlias = Outcome[GroupRecord]
OffsetHandler: TypeAlias = Callable[[Command, Any, GroupStep], _Outcome]


class OffsetCommands:
    """See the module's docstring."""

    def __init__(self, directory: GroupDirectory, rewinder: LiveRewinder) -> None:
        self._directory = directory
        self._modern_type_of = directory.modern_type_of
        self._classic = directory.classic
        self._shares = directory.shares
        self._offsets = directory.offsets
        self._pending_offsets = directory.pending_offsets
        self._rewinder = rewinder
        self.handlers: Mapping[type, OffsetHandler] = {
            OffsetCommitRequest: self.commit,
            FetchOffsets: self.fetch,
            CommitInTransaction: self.commit_in_transaction,
            EndProducerTransaction: self.end_transaction,
            OffsetDeleteRequest: self.delete,
            DropTopicOffsets: self.forget_topics,
        }

    def commit(self, command: Command, request: OffsetCommitRequest, step: GroupStep) -> _Outcome:
        """OffsetCommit, by a member or, in a group without members, by any client."""
        member_id = request.member_id
        generation_id = request.generation_id_or_member_epoch
        # A simple group has offsets only, and no object.
        group = self._classic.group(request.group_id)
        group_type = self._modern_type_of(request.group_id)
        if len(request.group_id) > TEXT_LENGTH_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        elif group_type is not None:
            error = group_type.commit_error(request, command.api_version)
        elif group is not None:
            error = group.commit_error(member_id, request.group_instance_id, generation_id)
            if error is ErrorCode.ILLEGAL_GENERATION and self._classic.is_lost_generation(
                group, generation_id, step.now_ms
            ):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        elif generation_id < 0:
            error = ErrorCode.NONE
        else:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        error = self._classic.unstored.answer(
            error, request, generation_id, command.client_id, step.now_ms
        )
        if (
            error is ErrorCode.UNKNOWN_MEMBER_ID
            and group is None
            and group_type is None
            and not self._offsets.has_any(request.group_id)
        ):
            is_new = command.api_version >= 9
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.UNKNOWN_MEMBER_ID and self._rewinder.by_commit(
            command, request, step
        ):
            return step.build()
        if error is ErrorCode.NONE:
            error = self._rewinder.commit_error(request)
        if error is not ErrorCode.NONE:
            return respond(command, refused_commit(request, error))
        records, response = self._offsets.commit(request, step.now_ms, step.settings)
        timers: tuple[Timer, ...] = ()
        member = None if group is None else group.members.get(member_id)
        if member is not None:
            key = ("session", request.group_id, member_id)
            timers = (Timer(key, step.now_ms + member.session_timeout_ms),)
        return Outcome(
            records=records, replies=(ShardReply(command.request_id, response),), timers=timers
        )

    def fetch(self, command: Command, request: FetchOffsets, step: GroupStep) -> _Outcome:
        """One group of OffsetFetch."""
        # Classic groups do not validate the member.
        group_id = request.group_id
        group_type = self._modern_type_of(group_id)
        # A share group has no committed offsets, which is no error, as in Kafka.
        if group_type is not None and group_type is not self._shares:
            error = group_type.fetch_error(group_id, request.member_id, request.member_epoch)
            if error is not ErrorCode.NONE:
                refused = OffsetFetchResponseGroup(group_id=group_id, error_code=error)
                return respond(command, refused)
        is_unstable = self._pending_offsets.is_unstable if request.require_stable else None
        response = self._offsets.fetch(group_id, request.topics, is_unstable)
        return respond(command, response, is_immediate=True)

    def commit_in_transaction(
        self, command: Command, asked: CommitInTransaction, step: GroupStep
    ) -> _Outcome:
        """TxnOffsetCommit: the offsets are pending until the marker."""
        request = asked.request
        group_type = self._modern_type_of(request.group_id)
        if group_type is None:
            error = _membership_error(
                self._classic.group(request.group_id),
                request,
                has_offsets=self._offsets.has_any(request.group_id),
            )
        else:
            error = _modern_error(group_type, request, command.api_version)
        if error is ErrorCode.NONE:
            error = self._rewinder.commit_error(request)
        if not 0 < len(request.group_id) <= TEXT_LENGTH_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        if error is not ErrorCode.NONE:
            return respond(command, refused_commit(request, error))
        pending = self._pending_offsets
        ended_count = pending.ended_count(request.producer_id)
        is_known = asked.is_verified or (
            pending.open_epoch(request.producer_id) == request.producer_epoch
            if asked.guard == NO_GUARD
            # An open transaction may be the next one.
            else asked.guard == ended_count
        )
        if not is_known:
            return respond(command, VerificationRequired(ended_count))
        records, response = self._offsets.commit(request, step.now_ms, step.settings)
        producer_id, producer_epoch = request.producer_id, request.producer_epoch
        return Outcome(
            records=tuple(
                TransactionalRecord(producer_id, producer_epoch, record) for record in records
            ),
            replies=(ShardReply(command.request_id, response),),
        )

    def end_transaction(
        self, command: Command, request: EndProducerTransaction, step: GroupStep
    ) -> _Outcome:
        """A transaction marker in this partition."""
        marker = request.marker
        if (
            request.transaction_version >= EPOCH_BUMPS_SINCE
            and self._pending_offsets.open_epoch(marker.producer_id) >= marker.producer_epoch
        ):
            # A late marker: the producer's next transaction has begun.
            return respond(command, ErrorCode.INVALID_PRODUCER_EPOCH)
        reply = ShardReply(command.request_id, ErrorCode.NONE)
        return Outcome(records=(marker,), replies=(reply,))

    def delete(self, command: Command, request: OffsetDeleteRequest, step: GroupStep) -> _Outcome:
        """OffsetDelete: topics that no member subscribes to."""
        group = self._classic.group(request.group_id)
        is_share_group = request.group_id in self._shares
        if is_share_group or not request.group_id or not self._directory.exists(request.group_id):
            is_named = bool(request.group_id)
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_named else ErrorCode.INVALID_GROUP_ID
            return respond(command, OffsetDeleteResponse(error_code=error))
        subscribed: frozenset[str] | None = frozenset()
        group_type = self._modern_type_of(request.group_id)
        if group_type is not None:
            subscribed = group_type.topic_names(request.group_id)
        if group is not None and not group.is_empty:
            if not group.uses_consumer_protocol:
                error = ErrorCode.NON_EMPTY_GROUP
                return respond(command, OffsetDeleteResponse(error_code=error))
            subscribed = group.subscribed_topics()
        records, response = self._offsets.delete(request, subscribed)
        return Outcome(records=records, replies=(ShardReply(command.request_id, response),))

    def forget_topics(
        self, command: Command, request: DropTopicOffsets, step: GroupStep
    ) -> _Outcome:
        """Topics have been deleted: remove their offsets."""
        records: list[GroupRecord] = []
        for group_id in list(self._offsets.group_ids()):
            for name, topic_id in request.topics:
                records += self._offsets.tombstones_of_topic(group_id, name, topic_id)
        records += self._shares.forget_topics([topic_id for _, topic_id in request.topics])
        reply = ShardReply(command.request_id, None)
        return Outcome(records=tuple(records), replies=(reply,), is_atomic=False)


def _membership_error(
    group: ClassicGroup | None, request: TxnOffsetCommitRequest, *, has_offsets: bool
) -> ErrorCode:
    """The error of a transactional commit to a classic group. Without a `group` there are only
    offsets, or nothing: a group without members."""
    generation_id = request.generation_id_or_member_epoch
    member_id, instance_id = request.member_id, request.group_instance_id
    if generation_id < 0 and not member_id and instance_id is None:
        # A producer without group metadata.
        return ErrorCode.NONE
    if group is None:
        if generation_id < 0:
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
    error = group.commit_error(member_id, instance_id, generation_id)
    return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error


def _modern_error(
    known: GroupType[Any], request: TxnOffsetCommitRequest, version: int
) -> ErrorCode:
    """The same for a newer type of group. As in OffsetCommit, an older epoch is valid for
    partitions that the member has owned since then (KIP-1251). Producers before v6 have no member
    epochs."""
    epoch, member_id = request.generation_id_or_member_epoch, request.member_id
    if epoch < 0 and not member_id and request.group_instance_id is None:
        return known.fetch_error(request.group_id, None, epoch)
    error = known.commit_error(request, _NEWEST_COMMIT)
    if error is ErrorCode.STALE_MEMBER_EPOCH and version < _MEMBER_EPOCHS_SINCE:
        return ErrorCode.ILLEGAL_GENERATION
    return error
