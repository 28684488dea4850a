"""All groups of one shard: finds the group a request means and lets it decide.

What the log holds lives in two tables, the groups' newest generations and their committed offsets,
and only `replay` changes them. What it does not hold (who waits, who is due, what happened lately)
lives in `ClassicGroup` objects, which are made when somebody joins or when a stored group with
members is loaded. An Empty group needs no object. A group exists if it has an object, a generation
or offsets.

Invariant: an object's group is Stable or Empty only in the generation that the tables hold. Called
by coordinator.runtime, with one shard per partition of `__consumer_offsets`.
"""

from collections.abc import Callable
from typing import Final

from coordinator.group import records as formats
from coordinator.group import transactional_commits as transactional
from coordinator.group.answers import (
    answer,
    expiry_of,
    is_wanted,
    no_group,
    read,
    refused_commit,
)
from coordinator.group.assigning import ConsumerStep
from coordinator.group.classic import ClassicGroup, Step, join_error
from coordinator.group.consumer_groups import CONSUMER_TIMERS, ConsumerGroups
from coordinator.group.directory import Directory
from coordinator.group.heartbeats import check
from coordinator.group.joining import join
from coordinator.group.leaving import leave, leave_unknown_group
from coordinator.group.migration import tombstones
from coordinator.group.offsets import Offsets
from coordinator.group.pending_offsets import PendingOffsets
from coordinator.group.records import (
    TEXT_LETTERS_MAX,
    GroupMetadata,
    GroupRecord,
    GroupStored,
    OffsetCommitted,
    OwnRecord,
)
from coordinator.group.requests import (
    CommitInTransaction,
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    EndProducerTransaction,
    ExplainGroup,
    FetchOffsets,
    FollowTopics,
    ForgetTopics,
    Heartbeat,
)
from coordinator.group.settings import GroupSettings
from coordinator.group.topics import NO_TOPICS, TopicCatalog
from coordinator.outcome import (
    Command,
    InTransaction,
    Marker,
    Outcome,
    Reply,
    Timer,
    TimerKey,
)
from coordinator.timeline import Timeline, TimelineTable
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchResponseGroup,
)
from protocol.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_EXPIRY_KEY: Final[TimerKey] = ("expiry",)
_EXPIRY_SLICE_COUNT: Final = 2_000
"""Offsets looked at in one go; about a millisecond."""

_Handler = Callable[[Command, int], Outcome[GroupRecord]]


class GroupShard:
    """The groups of one shard. `settings` may be replaced at any time."""

    def __init__(self, settings: GroupSettings, topics: TopicCatalog = NO_TOPICS) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.generations: TimelineTable[str, GroupMetadata] = TimelineTable(self.timeline)
        self.offsets = Offsets(self.timeline)
        self.consumers = ConsumerGroups(self.timeline, self._adopt)
        # Replaced by the shell whenever they change, as settings are.
        self.topics = topics
        self.crowd_count = 1
        self.pending_offsets = PendingOffsets(self.timeline)
        self._groups: dict[str, ClassicGroup] = {}
        self._directory = Directory(
            self._groups, self.generations, self.consumers, self.offsets, self.pending_offsets
        )
        # Deleted groups whose deletion may still be taken back, with the position before it.
        self._buried: dict[str, tuple[int, ClassicGroup]] = {}
        self._to_check: list[str] = []
        self._handlers: dict[type, _Handler] = {
            HeartbeatRequest: self._heartbeat,
            OffsetCommitRequest: self._commit,
            FetchOffsets: self._fetch,
            CommitInTransaction: self._commit_in_transaction,
            EndProducerTransaction: self._end_transaction,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            LeaveGroupRequest: self._leave,
            DescribeGroup: self._describe,
            ListGroupsRequest: self._list,
            DeleteGroup: self._delete,
            OffsetDeleteRequest: self._delete_offsets,
            ForgetTopics: self._forget_topics,
            ExplainGroup: self._explain,
            Heartbeat: self._consumer_heartbeat,
            DescribeConsumerGroup: self._describe_consumer,
            FollowTopics: self._follow_topics,
        }

    # -- what the runtime asks of a shard ---------------------------------------------------------

    def encode(self, record: OwnRecord) -> tuple[bytes, bytes | None]:
        """Kafka's formats."""
        return formats.encode(record)

    def decode(self, key: bytes, value: bytes | None) -> OwnRecord | None:
        """Kafka's formats; records of other kinds of groups are left alone."""
        return formats.decode(key, value)

    def handle(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        """Decide a request."""
        return self._handlers[type(command.request)](command, now_ms)

    def replay(self, record: GroupRecord) -> None:
        """Change the tables as the record says."""
        if isinstance(record, GroupStored):
            if record.metadata is None:
                self.generations.remove(record.group_id)
            else:
                self.generations.put(record.group_id, record.metadata)
        elif isinstance(record, OffsetCommitted):
            self.offsets.replay(record)
            self.pending_offsets.supersede(record)
        elif isinstance(record, InTransaction):
            self.pending_offsets.add(record)
        elif isinstance(record, Marker):
            for real in self.pending_offsets.end(record):
                self.offsets.replay(real)
        else:
            self.consumers.replay(record)

    def on_loaded(self, now_ms: int) -> Outcome[GroupRecord]:
        """Groups with members go on where they were, every member with a whole session."""
        step = self._step(now_ms)
        for group_id, metadata in self.generations.items():
            if metadata.members:
                group = ClassicGroup.of_metadata(group_id, metadata)
                self._groups[group_id] = group
                group.on_loaded(step)
        self.consumers.on_loaded(step)
        step.set_timer(_EXPIRY_KEY, now_ms + self.settings.retention_check_interval_ms)
        return step.seal()

    def fire(self, key: TimerKey, now_ms: int) -> Outcome[GroupRecord]:
        """A member's, a group's or the shard's time has come."""
        step = self._step(now_ms)
        if key == _EXPIRY_KEY:
            self._expire(step)
            return step.seal(is_atomic=False)
        if key[0] in CONSUMER_TIMERS:
            self.consumers.fire(key, step)
            return step.seal()
        group = self._groups.get(key[1])
        if group is None:
            return Outcome()
        match key[0]:
            case "session":
                group.on_session_timer(key[2], step)
            case "join":
                group.on_join_timer(step)
            case "sync":
                group.on_sync_timer(step)
            case "store":
                group.on_store_timer(step)
            case kind:
                raise AssertionError(f"a timer of an unknown kind: {kind}")
        self._drop_if_ghost(group, step)
        return step.seal()

    def on_append_failed(
        self, records: tuple[GroupRecord, ...], now_ms: int
    ) -> Outcome[GroupRecord]:
        """The tables are back where they were; groups that were ahead of them must agree anew."""
        step = self._step(now_ms)
        newest = {
            record.group_id: record.metadata
            for record in records
            if isinstance(record, GroupStored)
        }
        group_ids = dict.fromkeys(
            record.group_id for record in records if not isinstance(record, InTransaction | Marker)
        )
        for group_id in group_ids:
            group = self._groups.get(group_id)
            lost = newest.get(group_id)
            # Whether it went on to another generation meanwhile shows before a grave is opened.
            is_ahead = (
                group is not None and lost is not None and lost.generation_id == group.generation_id
            )
            self._dig_up(group_id)
            if group is not None and group_id in self.consumers:
                # It was to become a classic group, and has not.
                self._groups.pop(group_id, None)
                for member in group.roster:
                    group.answer_parked(member, ErrorCode.COORDINATOR_NOT_AVAILABLE, step)
            elif group is not None and is_ahead:
                group.on_append_failed(step)
        self.consumers.on_append_failed(group_ids, step)
        return step.seal()

    # -- finding groups ---------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup | None:
        """The group's object; made from its stored generation if it has none yet."""
        group = self._groups.get(group_id)
        if group is None:
            metadata = self.generations.get(group_id)
            if metadata is not None:
                group = ClassicGroup.of_metadata(group_id, metadata)
                self._groups[group_id] = group
        return group

    def _drop_if_ghost(self, group: ClassicGroup, step: Step) -> None:
        """Forget a group that was announced and never came to be."""
        is_stored = group.group_id in self.generations or bool(step.records)
        if group.is_empty and not group.pending and not is_stored:
            self._groups.pop(group.group_id, None)

    def _step(self, now_ms: int) -> ConsumerStep:
        return ConsumerStep(now_ms, self.settings, self.topics, self.crowd_count)

    def _adopt(self, group: ClassicGroup) -> None:
        self._groups[group.group_id] = group

    # -- membership -------------------------------------------------------------------------------

    def _join(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, JoinGroupRequest)
        settings = self.settings
        error = ErrorCode.NONE
        group = self.group(request.group_id)
        consumers = self.consumers.get(request.group_id)
        if not request.group_id or len(request.group_id) > TEXT_LETTERS_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        elif not (
            settings.session_timeout_min_ms
            <= request.session_timeout_ms
            <= settings.session_timeout_max_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif group is None and request.member_id and (consumers is None or consumers.is_empty):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            return answer(command, join_error(command, error, request.member_id))
        step = self._step(now_ms)
        if consumers is not None and not consumers.is_empty:
            self.consumers.join(consumers, command, request, step)
            return step.seal()
        if consumers is not None:
            # Nothing is left of it but its offsets, which any group may go on from.
            step.records += tombstones(consumers)
        if group is None:
            group = self._groups[request.group_id] = ClassicGroup(request.group_id)
        join(group, command, request, step)
        self._drop_if_ghost(group, step)
        return step.seal()

    def _sync(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, SyncGroupRequest)
        consumers = self.consumers.get(request.group_id)
        step = self._step(now_ms)
        if consumers is not None:
            self.consumers.sync(consumers, command, request, step)
            return step.seal()
        group = self._groups.get(request.group_id)
        if not request.group_id or group is None:
            return answer(command, SyncGroupResponse(error_code=no_group(request.group_id)))
        group.sync(command, request, step)
        return step.seal()

    def _heartbeat(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, HeartbeatRequest)
        consumers = self.consumers.get(request.group_id)
        step = self._step(now_ms)
        if consumers is not None:
            self.consumers.classic_heartbeat(consumers, command, request, step)
            return step.seal()
        group = self._groups.get(request.group_id)
        if group is None or not request.group_id:
            return answer(command, HeartbeatResponse(error_code=no_group(request.group_id)))
        member_id = request.member_id
        error = group.heartbeat_error(member_id, request.group_instance_id, request.generation_id)
        reply = Reply(command.request_id, HeartbeatResponse(error_code=error), is_immediate=True)
        member = group.roster.get(member_id)
        if member is None or error not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return Outcome(replies=(reply,))
        timer = Timer(("session", request.group_id, member_id), now_ms + member.session_timeout_ms)
        return Outcome(replies=(reply,), timers=(timer,))

    def _leave(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, LeaveGroupRequest)
        consumers = self.consumers.get(request.group_id)
        step = self._step(now_ms)
        if consumers is not None:
            self.consumers.leave(consumers, command, request, step)
            return step.seal()
        group = self._groups.get(request.group_id)
        if not request.group_id:
            return answer(command, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        if group is None:
            return answer(command, leave_unknown_group(command, request))
        leave(group, command, request, step)
        self._drop_if_ghost(group, step)
        return step.seal()

    # -- consumer groups --------------------------------------------------------------------------

    def _consumer_heartbeat(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, Heartbeat)
        beat = request.request
        step = self._step(now_ms)
        try:
            check(beat, command.api_version, self.settings.consumer_assignors)
            group = self.consumers.get(beat.group_id)
            if group is None:
                group = self.consumers.become(self.group(beat.group_id), beat, step)
            self.consumers.heartbeat(group, command, request, step)
        except ApiError as error:
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
            return answer(command, response)
        if beat.group_id in self._groups and beat.group_id not in self.consumers:
            self._end_classic(beat.group_id, step)
        return step.seal()

    def _end_classic(self, group_id: str, step: ConsumerStep) -> None:
        """The classic group has become a consumer group: who waits must join that."""
        self._groups[group_id].abandon(step)
        self._bury(group_id, step)

    def _follow_topics(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        step = self._step(now_ms)
        assert isinstance(command.request, FollowTopics)
        self.consumers.follow_topics(command.request, step)
        step.reply(command.request_id, None)
        return step.seal(is_atomic=False)

    # -- offsets ----------------------------------------------------------------------------------

    def _commit(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, OffsetCommitRequest)
        member_id = request.member_id
        generation_id = request.generation_id_or_member_epoch
        # Offsets alone make no object: a simple group is one that has nothing else.
        group = self.group(request.group_id)
        consumers = self.consumers.get(request.group_id)
        if len(request.group_id) > TEXT_LETTERS_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        elif consumers is not None:
            error = self.consumers.commit_error(consumers, request, command.api_version)
        elif group is not None:
            error = group.commit_error(member_id, request.group_instance_id, generation_id)
        elif generation_id < 0:
            error = ErrorCode.NONE
        elif self.offsets.has_any(request.group_id):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif command.api_version >= 9:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is not ErrorCode.NONE:
            return answer(command, refused_commit(request, error))
        records, response = self.offsets.commit(request, now_ms, self.settings)
        timers: tuple[Timer, ...] = ()
        member = None if group is None else group.roster.get(member_id)
        if member is not None:
            key = ("session", request.group_id, member_id)
            timers = (Timer(key, now_ms + member.session_timeout_ms),)
        return Outcome(
            records=records, replies=(Reply(command.request_id, response),), timers=timers
        )

    def _fetch(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, FetchOffsets)
        # Classic groups do not check who asks.
        consumers = self.consumers.get(request.group_id)
        if consumers is not None:
            error = self.consumers.fetch_error(consumers, request.member_id, request.member_epoch)
            if error is not ErrorCode.NONE:
                refused = OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)
                return answer(command, refused)
        if not request.require_stable:
            return read(command, self.offsets.fetch(request.group_id, request.topics))
        is_unstable = self.pending_offsets.is_unstable
        return read(command, self.offsets.fetch(request.group_id, request.topics, is_unstable))

    def _commit_in_transaction(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        asked = command.request
        assert isinstance(asked, CommitInTransaction)
        request = asked.request
        consumers = self.consumers.get(request.group_id)
        if consumers is None:
            error = transactional.membership_error(self.group(request.group_id), request)
        else:
            member_id, epoch = request.member_id or None, request.generation_id_or_member_epoch
            error = self.consumers.fetch_error(consumers, member_id, epoch)
        if len(request.group_id) > TEXT_LETTERS_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        if error is not ErrorCode.NONE:
            return transactional.refused(command, request, error)
        pending = self.pending_offsets
        is_open = pending.is_open(request.producer_id, request.producer_epoch)
        ended_count = pending.ended_count(request.producer_id)
        if transactional.needs_verification(asked, is_open=is_open, ended_count=ended_count):
            return transactional.unverified(command, ended_count)
        return transactional.commit(command, request, now_ms, self.settings)

    def _end_transaction(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, EndProducerTransaction)
        reply = Reply(command.request_id, ErrorCode.NONE)
        return Outcome(records=(request.marker,), replies=(reply,))

    def _delete_offsets(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, OffsetDeleteRequest)
        group = self.group(request.group_id)
        if not request.group_id or not self._directory.exists(request.group_id):
            is_named = bool(request.group_id)
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_named else ErrorCode.INVALID_GROUP_ID
            return answer(command, OffsetDeleteResponse(error_code=error))
        subscribed: frozenset[str] | None = frozenset()
        consumers = self.consumers.get(request.group_id)
        if consumers is not None:
            subscribed = frozenset(consumers.topic_names())
        if group is not None and not group.is_empty:
            if not group.uses_consumer_protocol:
                error = ErrorCode.NON_EMPTY_GROUP
                return answer(command, OffsetDeleteResponse(error_code=error))
            subscribed = group.subscribed_topics()
        records, response = self.offsets.delete(request, subscribed)
        return Outcome(records=records, replies=(Reply(command.request_id, response),))

    def _forget_topics(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, ForgetTopics)
        records: list[GroupRecord] = []
        for group_id in list(self.offsets.group_ids()):
            for name, topic_id in request.topics:
                records += self.offsets.tombstones_of_topic(group_id, name, topic_id)
        reply = Reply(command.request_id, None)
        return Outcome(records=tuple(records), replies=(reply,), is_atomic=False)

    def _expire(self, step: Step) -> None:
        """Look at some groups; the rest follows at once, or the next round after a while."""
        if not self._to_check:
            self._to_check = list(self._directory.group_ids())
        budget = _EXPIRY_SLICE_COUNT
        while self._to_check and budget > 0:
            group_id = self._to_check.pop()
            budget -= 1 + self.offsets.count(group_id)
            self._expire_group(group_id, step)
        pause_ms = 1 if self._to_check else self.settings.retention_check_interval_ms
        step.set_timer(_EXPIRY_KEY, step.now_ms + pause_ms)

    def _expire_group(self, group_id: str, step: Step) -> None:
        group = self._groups.get(group_id)
        consumers = self.consumers.get(group_id)
        expiry = expiry_of(group, self.generations.get(group_id), consumers)
        expired = self.offsets.expired(
            group_id, expiry, step.now_ms, self.settings.offsets_retention_ms
        )
        step.records += expired
        self.offsets.drop_blank(group_id)
        is_bare = len(expired) == self.offsets.count(group_id) and not self.pending_offsets.has_any(
            group_id
        )
        if consumers is not None:
            if is_bare and consumers.is_empty:
                step.records += tombstones(consumers)
            return
        if is_bare and (group is None or (group.is_empty and not group.pending)):
            self._bury(group_id, step)

    def _bury(self, group_id: str, step: Step) -> None:
        """Drop a group without members."""
        committed = self.timeline.committed
        self._buried = {
            known: buried for known, buried in self._buried.items() if buried[0] >= committed
        }
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._buried[group_id] = (self.timeline.position, group)
        if group_id in self.generations:
            step.records.append(GroupStored(group_id, None))

    def _dig_up(self, group_id: str) -> None:
        """Take back a deletion that was not written, in no earlier generation."""
        position, buried = self._buried.pop(group_id, (-1, None))
        if buried is not None and position >= self.timeline.committed:
            group = self._groups.setdefault(group_id, buried)
            group.generation_id = max(group.generation_id, buried.generation_id)

    # -- administration ---------------------------------------------------------------------------

    def _describe(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, DescribeGroup)
        return read(command, self._directory.describe(request.group_id, command.api_version))

    def _describe_consumer(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, DescribeConsumerGroup)
        step = self._step(now_ms)
        return answer(command, self._directory.describe_consumers(request.group_id, step))

    def _list(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, ListGroupsRequest)
        groups = [listed for listed in self._directory.listed() if is_wanted(listed, request)]
        return read(command, ListGroupsResponse(groups=groups))

    def _delete(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, DeleteGroup)
        # The empty group id is no error here: old clients could commit offsets under it.
        group_id = request.group_id
        group = self._groups.get(group_id)
        consumers = self.consumers.get(group_id)
        error = ErrorCode.NONE
        if not self._directory.exists(group_id):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif (group is not None and not group.is_empty) or (
            consumers is not None and not consumers.is_empty
        ):
            error = ErrorCode.NON_EMPTY_GROUP
        step = self._step(now_ms)
        if error is ErrorCode.NONE:
            step.records += self.offsets.tombstones(group_id)
            if consumers is not None:
                step.records += tombstones(consumers)
            step.records += (
                OffsetCommitted(*key, None) for key in self.pending_offsets.keys_of(group_id)
            )
            if group is not None:
                for member_id in list(group.pending):
                    group.forget_pending(member_id, step)
            self._bury(group_id, step)
        message = None if error is ErrorCode.NONE else error.message
        step.reply(
            command.request_id,
            DeletableGroupResult(group_id=group_id, error_code=error, error_message=message),
        )
        return step.seal(is_atomic=False)

    def _explain(self, command: Command, now_ms: int) -> Outcome[GroupRecord]:
        request = command.request
        assert isinstance(request, ExplainGroup)
        group = self._groups.get(request.group_id)
        return read(command, () if group is None else group.events.newest())
