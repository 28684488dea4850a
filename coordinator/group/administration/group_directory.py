"""Which groups a shard has, and how they appear to DescribeGroups and ListGroups.

A group exists if it has members or had some, or if it has offsets, pending ones included. The
directory holds the tables of the shard for this package; nothing is changed here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from odradek.coordinator.group.administration.responses import (
    described,
    described_dead,
    matches_filters,
    no_consumer_group,
)
from odradek.coordinator.group.classic.group import GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
from odradek.coordinator.group.consumer.groups import ConsumerGroups
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.offsets.committed_offsets import CommittedOffsets
from odradek.coordinator.group.offsets.pending_offsets import PendingTransactionalOffsets
from odradek.coordinator.group.requests import DescribeConsumerGroup, DescribeGroup
from odradek.coordinator.group.rewind.rewind_tables import RewindTables
from odradek.coordinator.group.share.groups import ShareGroups
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.groups import StreamsGroups
from odradek.coordinator.outcome import Command, Outcome, respond
from odradek.protocol.messages.groups import (
    DescribedGroup,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


@dataclass(eq=False)
class GroupDirectory:
    """See the module's docstring."""

    classic: ClassicGroups
    consumers: ConsumerGroups
    shares: ShareGroups
    streams: StreamsGroups
    offsets: CommittedOffsets
    pending_offsets: PendingTransactionalOffsets
    rewinds: RewindTables

    def __post_init__(self) -> None:
        self._group_types: tuple[GroupType[Any], ...] = (
            self.consumers,
            self.shares,
            self.streams,
        )
        self.handlers: Mapping[type, Callable[[Command, Any, GroupStep], Outcome[GroupRecord]]] = {
            DescribeGroup: self.describe,
            DescribeConsumerGroup: self.describe_consumers,
            ListGroupsRequest: self.list_groups,
        }

    def group_ids(self) -> set[str]:
        """Every group that exists, except those that only have pending offsets."""
        ids = set(self.classic.live_groups)
        ids.update(group_id for group_id, _ in self.classic.generations.items())
        for group_type in self._group_types:
            ids.update(group_type.group_ids())
        ids.update(
            group_id for group_id in self.offsets.group_ids() if self.offsets.has_any(group_id)
        )
        return ids

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
        return next(
            (group_type for group_type in self._group_types if group_id in group_type), None
        )

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
            return described_dead(group_id, version, f"Group {group_id} is not a classic group.")
        group = self.classic.live_groups.get(group_id)
        if group is not None:
            return described(group)
        if not self.exists(group_id):
            return described_dead(group_id, version, f"Group {group_id} not found.")
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
        if group is None:
            return respond(command, no_consumer_group(group_id, exists=self.exists(group_id)))
        return respond(command, self.consumers.describe(group, step))

    def list_groups(
        self, command: Command, request: ListGroupsRequest, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """ListGroups."""
        groups = [group for group in self._listed() if matches_filters(group, request)]
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
