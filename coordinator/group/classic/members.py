"""The members of a classic group: leader, common protocols, and joined members.

Counts are maintained with every change, so that a join costs the same in a group of a thousand
members. Invariants: `leader_id` is a member if there is any; a group instance id belongs to one
member; a member has at most one parked JoinGroup and one parked SyncGroup. Called by `group`.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import msgspec

from odradek.coordinator.group.classic.records import MemberMetadata
from odradek.coordinator.outcome import Command
from odradek.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)
from odradek.protocol.types import NO_TIMESTAMP

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's protocols with their metadata, in its order of preference."""


def protocols_of(protocols: Sequence[JoinGroupRequestProtocol]) -> Protocols:
    """The request's list as a value."""
    return tuple((protocol.name, protocol.metadata) for protocol in protocols)


class ClassicGroupMember(msgspec.Struct, kw_only=True, eq=False):
    """One member. `join_command` and `sync_request_id` are set while a request of it is parked."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_command: Command | None = None
    sync_request_id: int | None = None
    is_new: bool = False
    """It has not been in a generation yet: its session timer is the limit of that wait."""
    joined_at_ms: int = NO_TIMESTAMP
    synced_at_ms: int = NO_TIMESTAMP

    @classmethod
    def of_request(
        cls, member_id: str, command: Command, request: JoinGroupRequest
    ) -> "ClassicGroupMember":
        """A member from its JoinGroup."""
        return cls(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=command.client_id,
            client_host=command.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_of(command, request),
            protocols=protocols_of(request.protocols),
        )

    @classmethod
    def of_metadata(cls, stored: MemberMetadata, protocol_name: str | None) -> "ClassicGroupMember":
        """A member from its record, with the selected protocol only."""
        return cls(
            member_id=stored.member_id,
            group_instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols=((protocol_name or "", stored.subscription),),
            assignment=stored.assignment,
        )

    @property
    def is_joining(self) -> bool:
        """Whether it has a parked JoinGroup: it has joined the next generation."""
        return self.join_command is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it has a parked request, which counts as a heartbeat."""
        return self.join_command is not None or self.sync_request_id is not None

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """Its metadata for one of its protocols; empty for others."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def to_metadata(self, protocol_name: str | None) -> MemberMetadata:
        """The member's record."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata_for(protocol_name),
            assignment=self.assignment,
        )


def rebalance_timeout_of(command: Command, request: JoinGroupRequest) -> int:
    """The rebalance timeout; the session timeout for v0, and if there is none."""
    is_given = command.api_version >= 1 and request.rebalance_timeout_ms >= 0
    return request.rebalance_timeout_ms if is_given else request.session_timeout_ms


class ClassicMembers:
    """The members of one group, in the order in which they joined."""

    __slots__ = ("_members", "_static", "_supporters", "joining_count", "leader_id")

    def __init__(self) -> None:
        self._members: dict[str, ClassicGroupMember] = {}
        self._static: dict[str, str] = {}
        self._supporters: dict[str, int] = {}
        self.leader_id: str | None = None
        self.joining_count = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicGroupMember | None:
        """The member of this id."""
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        """The member id of the instance id."""
        return self._static.get(group_instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has joined the next generation."""
        return self.joining_count >= len(self._members)

    # -- coming and going -------------------------------------------------------------------------

    def add(self, member: ClassicGroupMember) -> None:
        """Add a member; the first one is the leader."""
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        self._count_protocols(member, 1)
        self.joining_count += member.is_joining
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member, and replace it as leader. The caller completes its parked requests."""
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        self._count_protocols(member, -1)
        self.joining_count -= member.is_joining
        instance_id = member.group_instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        return member

    def rename(self, member: ClassicGroupMember, new_member_id: str) -> None:
        """Change the id of a restarted static member; order, leader and assignment stay."""
        old_id = member.member_id
        # Members keep their order.
        self._members = {
            (new_member_id if known == old_id else known): value
            for known, value in self._members.items()
        }
        member.member_id = new_member_id
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = new_member_id
        if self.leader_id == old_id:
            self.leader_id = new_member_id

    def update(
        self, member: ClassicGroupMember, command: Command, request: JoinGroupRequest
    ) -> None:
        """Update a member from its new JoinGroup."""
        self._count_protocols(member, -1)
        member.protocols = protocols_of(request.protocols)
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_of(command, request)
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id = command.client_id
        member.client_host = command.client_host

    # -- joining ----------------------------------------------------------------------------------

    def park_join(self, member: ClassicGroupMember, command: Command | None) -> Command | None:
        """Park a JoinGroup, or None to remove it; returns the one that was parked before."""
        parked = member.join_command
        self.joining_count += (command is not None) - (parked is not None)
        member.join_command = command
        return parked

    def elect_joined_leader(self) -> bool:
        """Elect a joined member as leader, the old one if possible. False if there is none."""
        leader = self._members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.is_joining:
            return True
        for member in self:
            if member.is_joining:
                self.leader_id = member.member_id
                return True
        return False

    # -- protocols --------------------------------------------------------------------------------

    def has_common(self, names: Collection[str]) -> bool:
        """Whether every member supports one of these protocols."""
        count = len(self._members)
        return any(self._supporters.get(name, 0) == count for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes: each member votes for the first of its protocols that
        all members support. Of equals wins the one with the first vote.
        """
        count = len(self._members)
        votes: dict[str, int] = {}
        for member in self:
            for name, _ in member.protocols:
                if self._supporters.get(name, 0) == count:
                    votes[name] = votes.get(name, 0) + 1
                    break
        assert votes, "members were admitted without a common protocol"
        return max(votes, key=votes.__getitem__)

    def for_leader(self, protocol_name: str | None) -> list[JoinGroupResponseMember]:
        """The members for the leader's JoinGroup response."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata_for(protocol_name),
            )
            for member in self
        ]

    def _count_protocols(self, member: ClassicGroupMember, step: int) -> None:
        for name in {name for name, _ in member.protocols}:
            count = self._supporters.get(name, 0) + step
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]
