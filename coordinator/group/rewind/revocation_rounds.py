"""How the members of a classic group revoke the rewound partitions, rebalance by rebalance.

Members that keep partitions through a rebalance do not fetch committed offsets. So the rewound
partitions are left out of one generation and assigned again in the next one:

| Members | The leader's SyncGroup is stored |
|---|---|
| have no owned partitions (eager) | unchanged: the end of the rewind |
| own rewound partitions (KIP-429) | without these partitions, then another rebalance |
| cannot tell (subscriptions of version 0) | the same, until each was in such a generation |
| still own them after UNCHANGED_ROUNDS_MAX rebalances | unchanged; these members are removed |

A member with a subscription of version 0 was in a generation if it has sent a heartbeat in it:
kafka-python ignores the response of a SyncGroup that arrives between two polls, and joins again
without a heartbeat.

All of this is soft state: after a load the rounds start again. Called by `live_rewinder`.
"""

from typing import Final, NamedTuple

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.rewind import owned_partitions
from odradek.coordinator.group.rewind.owned_partitions import PartitionKeys
from odradek.coordinator.group.step import GroupStep
from odradek.protocol.messages.groups import HeartbeatRequest, SyncGroupRequest

REASON: Final = "live rewind"
UNCHANGED_ROUNDS_MAX: Final = 3
"""After so many rebalances without progress the members that keep partitions are removed."""


class _RoundState(NamedTuple):
    """The progress of the members. `without_field` are those that may own partitions without a
    field for them in their subscription. `reduced_generation_id` is the newest generation without
    the partitions, -1 if there was none."""

    without_field: frozenset[str]
    owners: frozenset[str] = frozenset()
    unchanged_count: int = 0
    reduced_generation_id: int = -1


class RevocationRounds:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rounds: dict[str, _RoundState] = {}
        self._reduced: set[str] = set()

    def forget(self, group_id: str) -> None:
        """A rewind starts or ends."""
        self._rounds.pop(group_id, None)
        self._reduced.discard(group_id)

    def has_reduced_assignment(self, group_id: str) -> bool:
        """Whether the newest generation is one without the partitions, and not all members have
        their assignment yet."""
        return group_id in self._reduced

    def before_sync(
        self, group: ClassicGroup, request: SyncGroupRequest, keys: PartitionKeys, step: GroupStep
    ) -> SyncGroupRequest:
        """The leader's assignments as they may be stored while these partitions are rewound."""
        group_id = group.group_id
        known = self._rounds.get(group_id)
        if known is None:
            known = _RoundState(owned_partitions.members_without_owned_field(group))
        without_field = frozenset(
            member for member in known.without_field if member in group.members
        )
        owners = without_field | owned_partitions.owners(group, keys)
        if not owners:
            self._reduced.discard(group_id)
            self._rounds[group_id] = known._replace(without_field=without_field, owners=owners)
            return request
        count = known.unchanged_count + 1 if owners >= known.owners else 0
        reduced = owned_partitions.without_partitions(group, request, keys)
        if reduced is not None and count <= UNCHANGED_ROUNDS_MAX:
            self._reduced.add(group_id)
            self._rounds[group_id] = _RoundState(without_field, owners, count, group.generation_id)
            return reduced
        self._rounds[group_id] = known._replace(without_field=without_field, owners=owners)
        # A removed member gets UNKNOWN_MEMBER_ID and joins as a new member.
        for member in [member for member in group.members if member.member_id in owners]:
            group.expire(member, f"{REASON}: it keeps partitions that are rewound", step)
        group.rebalance(step, REASON)
        return request

    def after_sync(self, group: ClassicGroup, step: GroupStep) -> None:
        """When all members have the assignment without the partitions, start the next rebalance."""
        group_id = group.group_id
        if group_id not in self._reduced:
            return
        if group.state is GroupState.STABLE and not group.pending_sync:
            self._reduced.discard(group_id)
            group.rebalance(step, REASON)

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """A member that sends a heartbeat of a generation has received its assignment there."""
        known = self._rounds.get(request.group_id)
        if known is not None and request.generation_id == known.reduced_generation_id:
            without_field = known.without_field - {request.member_id}
            self._rounds[request.group_id] = known._replace(without_field=without_field)
