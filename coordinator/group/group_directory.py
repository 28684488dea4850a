"""The groups of one shard, of all types: lookup, ListGroups and DescribeGroups.

A group exists if it has or had members, or if it has offsets, also pending ones. The directory has
the tables of the shard, except those of live rewinds, and changes nothing in them. Called by
`shard` and by everything that handles groups of all types.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
from odradek.coordinator.group.consumer.groups import ConsumerGroups
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.offsets.committed_offsets import CommittedOffsets
from odradek.coordinator.group.offsets.pending_offsets import PendingTransactionalOffsets
from odradek.coordinator.group.requests import DescribeConsumerGroup, DescribeGroup
from odradek.coordinator.group.share.groups import ShareGroups
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.groups import StreamsGroups
from odradek.coordinator.outcome import Command, Outcome, respond
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

DEAD: Final = "Dead"
"""The state of a group that does not exist, in DescribeGroups."""
_ERRORS_SINCE: Final = 6


class GroupDirectory:
    """See the module's docstring. `rewind_tombstones` returns the records that remove the rewinds
    of a group."""

    def __init__(
        self, timeline: Timeline, rewind_tombstones: Callable[[str], Sequence[GroupRecord]]
    ) -> None:
        self.classic = ClassicGroups(timeline)
        self.consumers = ConsumerGroups(timeline, self.classic.adopt, self.classic.unstored)
        self.shares = ShareGroups(timeline, self.group_type_of, rewind_tombstones)
        self.streams = StreamsGroups(timeline, self.group_type_of, self.classic)
        self.group_types: tuple[GroupType[Any], ...] = (self.consumers, self.shares, self.streams)
        self.offsets = CommittedOffsets(timeline)
        self.pending_offsets = PendingTransactionalOffsets(timeline)
        self.handlers: Mapping[type, Callable[[Command, Any, GroupStep], Outcome[GroupRecord]]] = {
            DescribeGroup: self.describe,
            DescribeConsumerGroup: self.describe_consumers,
            ListGroupsRequest: self.list_groups,
        }

    def group_ids(self) -> set[str]:
        """Every group that exists, except those that only have pending offsets."""
        ids = set(self.classic.live_groups)
        ids.update(group_id for group_id, _ in self.classic.generations.items())
        for group_type in self.group_types:
            ids.update(group_type.group_ids())
        ids.update(
            group_id for group_id in self.offsets.group_ids() if self.offsets.has_any(group_id)
        )
        return ids

    def topics_read(self, group_id: str) -> frozenset[str]:
        """The topics that the members of the group subscribe to."""
        group_type = self.modern_type_of(group_id)
        if group_type is not None:
            return group_type.topic_names(group_id)
        group = self.classic.group(group_id)
        return frozenset() if group is None else group.subscribed_topics() or frozenset()

    def exists(self, group_id: str) -> bool:
        """Whether there is such a group, of any type."""
        return (
            group_id in self.classic
            or self.modern_type_of(group_id) is not None
            or self.offsets.has_any(group_id)
            or self.pending_offsets.has_any(group_id)
        )

    def modern_type_of(self, group_id: str) -> GroupType[Any] | None:
        """The newer type that the group has; None if it is a classic group or does not exist."""
        return next((group_type for group_type in self.group_types if group_id in group_type), None)

    def group_type_of(self, group_id: str) -> str | None:
        """See GroupTypeOf."""
        group_type = self.modern_type_of(group_id)
        if group_type is not None:
            return group_type.name
        return GROUP_TYPE_CLASSIC if self.exists(group_id) else None

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members, of whatever type it is."""
        group = self.classic.live_groups.get(group_id)
        group_type = self.modern_type_of(group_id)
        return (group is None or group.is_empty) and (
            group_type is None or group_type.is_empty(group_id)
        )

    def describe(
        self, command: Command, request: DescribeGroup, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """One group of DescribeGroups: a classic group, or one with offsets only."""
        response = self._described(request.group_id, command.api_version)
        return respond(command, response, is_immediate=True)

    def _described(self, group_id: str, version: int) -> DescribedGroup:
        if self.modern_type_of(group_id) is not None:
            return _described_dead(group_id, version, f"Group {group_id} is not a classic group.")
        group = self.classic.live_groups.get(group_id)
        if group is not None:
            return _described_classic(group)
        if not self.exists(group_id):
            return _described_dead(group_id, version, f"Group {group_id} not found.")
        metadata = self.classic.generations.committed(group_id)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.EMPTY,
            protocol_type="" if metadata is None else metadata.protocol_type,
        )

    def describe_consumers(
        self, command: Command, request: DescribeConsumerGroup, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """One group of ConsumerGroupDescribe."""
        group_id = request.group_id
        group = self.consumers.get(group_id)
        if group is not None:
            return respond(command, self.consumers.describe(group, step))
        error = self.consumers.not_found(group_id, is_other_type=self.exists(group_id))
        unknown = ConsumerGroupDescribedGroup(
            group_id=group_id, error_code=error.code, error_message=error.message
        )
        return respond(command, unknown)

    def list_groups(
        self, command: Command, request: ListGroupsRequest, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """ListGroups. Its filters ignore case."""
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        groups = [
            group
            for group in self._listed()
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
        return respond(command, ListGroupsResponse(groups=groups), is_immediate=True)

    def _listed(self) -> Iterator[ListedGroup]:
        for group_id in self.group_ids():
            group_type = self.modern_type_of(group_id)
            if group_type is not None:
                yield group_type.listed(group_id)
                continue
            group = self.classic.live_groups.get(group_id)
            metadata = self.classic.generations.get(group_id)
            protocol_type = metadata.protocol_type if metadata is not None else ""
            if group is not None:
                protocol_type = group.protocol_type or ""
            yield ListedGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                group_state=GroupState.EMPTY if group is None else group.state,
                group_type=GROUP_TYPE_CLASSIC,
            )


def _described_classic(group: ClassicGroup) -> DescribedGroup:
    """A classic group. Only a Stable one shows metadata and assignments of its members."""
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members
        ],
    )


def _described_dead(group_id: str, version: int, message: str) -> DescribedGroup:
    """DescribeGroups of an id without a classic group: Dead, from v6 on an error (KIP-1043)."""
    unknown = DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= _ERRORS_SINCE:
        unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        unknown.error_message = message
    return unknown
