"""All groups of one newer type in a shard: their records, timers and events.

All state of such a group is stored in the log. After loading, members continue where they were,
each with a full session timeout. The timers of all types:

| Timer | Set | When it expires |
|---|---|---|
| session | by every heartbeat | the member is removed |
| revocation | when a member must revoke partitions or tasks | it is removed if it still must |
| assignment | when a target assignment is delayed | the target assignment is made |

Subclassed by `consumer.groups`, `share.groups` and `streams.groups`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from odradek.coordinator.group.deleted_groups import drop_deleted
from odradek.coordinator.group.events import EventKind
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import EventHistory
from odradek.coordinator.group.modern.group import AnyGroup
from odradek.coordinator.group.modern.heartbeats import schedule_session_timeout
from odradek.coordinator.group.modern.records import EpochRecord, MemberState, ModernRecord
from odradek.coordinator.group.requests import CommitRequest, UpdateTopics
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import TopicCatalog
from odradek.coordinator.outcome import Command, TimerKey
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    DescribedAssignment,
    DescribedTopicPartitions,
    ListedGroup,
)
from odradek.protocol.types import Uuid

_MEMBERS: Final = "members"
_MEMBER_COMMITS_SINCE: Final = 9
"""The first version of OffsetCommit that has a member epoch."""

GroupTypeHandler: TypeAlias = Callable[[Command, Any, GroupStep], None]
"""Handles a request within a step: adds records, timers and the reply. The second argument is the
command's request."""

GroupTypeOf: TypeAlias = Callable[[str], str | None]
"""The type of the group with this id ("classic", "consumer", ...); None if there is no such group.
A group that has only offsets is a classic group."""

G = TypeVar("G", bound=AnyGroup)


def described_assignment(
    partitions: Mapping[Uuid, Collection[int]], topics: TopicCatalog
) -> DescribedAssignment:
    """Partitions with the names of their topics; deleted topics are omitted, as in Kafka."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes)
            for topic_id, name, indexes in topics.named(partitions)
        ]
    )


def with_error_response(
    handle: GroupTypeHandler, make_response: Callable[..., object]
) -> GroupTypeHandler:
    """The handler; if it raises ApiError, nothing is written and the response has the error."""

    def decide(command: Command, request: object, step: GroupStep) -> None:
        try:
            handle(command, request, step)
        except ApiError as error:
            step.records.clear()
            step.timers.clear()
            response = make_response(error_code=error.code, error_message=error.message)
            step.reply(command.request_id, response)

    return decide


class GroupType(ABC, Generic[G]):
    """See the module's docstring. A `group_id` is that of a group that exists."""

    is_kept_empty = False
    """Whether an Empty group is kept until a client deletes it: its positions are not offsets that
    expire."""

    def __init__(self, timeline: Timeline, group_class: type[G]) -> None:
        self.name = group_class.group_type
        """As ListGroups has it."""
        self.record_types: tuple[type, ...] = tuple(group_class.records)
        """The classes of the records that `replay` takes."""
        self.timer_kinds = group_class.timers.kinds()
        """The first parts of the keys of its timers; no other type has them."""
        self.handlers: Mapping[type, GroupTypeHandler] = {}
        """The requests that only this type of group handles."""
        self._timeline = timeline
        self._new_group = group_class
        self._groups: dict[str, G] = {}
        # Deleted groups, whose objects are kept until the deletion is committed.
        self._ended: dict[str, None] = {}
        self._counts: TimelineTable[str, int] = TimelineTable(timeline)
        self.events = EventHistory()

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: ModernRecord) -> None:
        """Apply the record to its group."""
        group_id = record.group_id
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._new_group(group_id, self._timeline)
        before = group.member_count
        group.replay(record)
        if group.member_count != before:
            self._counts.put(_MEMBERS, self.member_count + group.member_count - before)
        if not group.exists:
            self._ended[group_id] = None
        for dropped_id in drop_deleted(self._groups, self._ended) if self._ended else ():
            self._on_dropped(dropped_id)
        if isinstance(record, EpochRecord) and record.value is None:
            self.events.forget(group_id)

    def _on_dropped(self, group_id: str) -> None:
        """The group's object has been dropped: drop what belongs to it, too."""

    def on_loaded(self, step: GroupStep) -> None:
        """The log has been replayed: set timers, and repeat the effects that are not complete.

        Every member gets a full session timeout: its last heartbeat is not known.
        """
        for group in self:
            self._schedule_timers(group, step)
            if not group.is_empty:
                self.events.add(group.group_id, step.now_ms, EventKind.LOADED, "")

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """The tables have been reverted. Timers that were changed meanwhile are set again."""
        for group_id in group_ids:
            group = self.get(group_id)
            if group is not None:
                self._schedule_timers(group, step)
            else:
                # The group's first records were not written: its object may be dropped.
                self._ended[group_id] = None
                self._on_dropped(group_id)

    @staticmethod
    def _schedule_timers(group: G, step: GroupStep) -> None:
        for member_id, member in group.members():
            schedule_session_timeout(group, member_id, member, step)
            is_revoking = group.current(member_id).state is MemberState.UNREVOKED
            if is_revoking and not group.is_classic(member):
                key = group.member_key(group.timers.revocation, member_id)
                step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
        if group.epoch > group.target_epoch:
            step.set_timer(group.assignment_key(), step.now_ms)

    # -- finding groups ---------------------------------------------------------------------------

    def get(self, group_id: str) -> G | None:
        """The group of that id, if it exists."""
        group = self._groups.get(group_id)
        return group if group is not None and group.exists else None

    def __contains__(self, group_id: object) -> bool:
        group = self._groups.get(group_id) if isinstance(group_id, str) else None
        return group is not None and group.exists

    def __iter__(self) -> Iterator[G]:
        return (group for group in self._groups.values() if group.exists)

    @property
    def member_count(self) -> int:
        """How many members send heartbeats here."""
        return self._counts.get(_MEMBERS) or 0

    def group_ids(self) -> Iterator[str]:
        """All groups of this type."""
        return (group.group_id for group in self)

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members."""
        return self._groups[group_id].is_empty

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """The records that remove the group, but for its offsets."""
        return self._groups[group_id].tombstones()

    def listed(self, group_id: str) -> ListedGroup:
        """The group for ListGroups. Kafka lists the type as the protocol type, too."""
        return ListedGroup(
            group_id=group_id,
            protocol_type=self.name,
            group_state=self._groups[group_id].state,
            group_type=self.name,
        )

    @abstractmethod
    def topic_names(self, group_id: str) -> frozenset[str]:
        """The topics that its members subscribe to: their offsets do not expire."""

    def not_found(self, group_id: str, *, is_other_type: bool) -> ApiError:
        """There is no group of this type and id."""
        what = f"is not a {self.name} group" if is_other_type else "not found"
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")

    # -- timers and topics ------------------------------------------------------------------------

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of this type has expired."""
        group = self.get(key[1])
        if group is None:
            return
        timers = group.timers
        if key[0] == timers.assignment:
            if group.epoch > group.target_epoch:
                self._assign(group, step)
                self._note(group, step, "it was due")
        elif key[0] == timers.own:
            self._fire_own(group, step)
        elif group.member(key[2]) is not None:
            why = self._why_removed(group, key[0], key[2], step)
            if why is not None:
                self._remove(group, [key[2]], step)
                self._note(group, step, f"{key[2]} {why}", is_expired=True)

    def _why_removed(self, group: G, timer: str, member_id: str, step: GroupStep) -> str | None:
        """Why an expired timer of a member removes the member; None if it does not."""
        member = group.member(member_id)
        assert member is not None
        if timer == group.timers.session:
            return f"no heartbeat for {group.session_timeout_ms(member, step.settings)} ms"
        if group.current(member_id).state is not MemberState.UNREVOKED or group.is_classic(member):
            return None
        return f"did not give up its {group.unit} within {member.rebalance_timeout_ms} ms"

    @abstractmethod
    def _assign(self, group: G, step: GroupStep) -> None:
        """Make the target assignment of the group's epoch."""

    @abstractmethod
    def _remove(self, group: G, member_ids: Collection[str], step: GroupStep) -> None:
        """Remove members that have left or have expired."""

    def _fire_own(self, group: G, step: GroupStep) -> None:
        """The timer of groups that only this type has."""

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """Start an epoch in every group whose topics have changed in the catalog."""
        for group in self:
            if not group.is_empty:
                before = len(step.records)
                self._update_topics(group, request, step)
                self._note(group, step, "topics have changed", after=before)

    @abstractmethod
    def _update_topics(self, group: G, request: UpdateTopics, step: GroupStep) -> None:
        """Start an epoch in a group with members if its topics have changed."""

    def _note(
        self,
        group: G,
        step: GroupStep,
        why: str,
        *,
        after: int = 0,
        is_expired: bool = False,
    ) -> None:
        """Add the group's events of this step's records, without the first `after`."""
        if len(step.records) > after:
            records = step.records[after:]
            self.events.add_records(group, records, step.now_ms, why, is_expired=is_expired)

    # -- offsets ----------------------------------------------------------------------------------

    def commit_error(self, request: CommitRequest, version: int) -> ErrorCode:
        """Whether the client may commit these offsets to the group, in a transaction or not.

        A member may be an epoch behind when its commit arrives. The commit is then valid for
        partitions that were assigned to the member in that epoch or before (KIP-1251).
        """
        group = self._groups[request.group_id]
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        if epoch < 0 and group.is_empty:
            return ErrorCode.NONE
        member = group.member(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_classic = group.is_classic(member)
        if not is_classic and version < _MEMBER_COMMITS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.current(member_id)
        if epoch == current.member_epoch:
            return ErrorCode.NONE
        if is_classic:
            return ErrorCode.ILLEGAL_GENERATION
        if epoch < 0 or epoch > current.member_epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        for topic in request.topics:
            owned_since = group.owned_since(member_id, topic)
            for partition in topic.partitions:
                if not 0 <= owned_since.get(partition.partition_index, -1) <= epoch:
                    return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether the client may fetch offsets. Administrators send no member id, and epoch -1."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        group = self._groups[group_id]
        member = group.member(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.current(member_id or "").member_epoch == member_epoch:
            return ErrorCode.NONE
        is_classic = group.is_classic(member)
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
