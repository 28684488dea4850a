"""Members of classic groups that a previous coordinator knew and that are not in the log.

A classic group is stored with the leader's SyncGroup. Members that got an id before that (KIP-394),
that were waiting in JoinGroup, or that got a generation, are in no record. Apache Kafka's next
coordinator returns UNKNOWN_MEMBER_ID, and they join as new members. Here such members keep their
ids after a move of the coordinator, like stored ones.

| Request | Response |
|---|---|
| JoinGroup | as with an id that was just given |
| SyncGroup, Heartbeat, OffsetCommit in a generation that was lost | REBALANCE_IN_PROGRESS: join |
| LeaveGroup | NONE: they have left |

Stored members may have been in a lost generation as well. They get REBALANCE_IN_PROGRESS, too, and
not ILLEGAL_GENERATION, upon which clients give their partitions up as lost.

A member may be one under four conditions. The log was loaded less than REJOIN_WINDOW_MS ago. The id
has the form that a coordinator generates for this client. The id was not used here since the load.
And if the request has a generation, it is later than the loaded one, so that members that were
removed before the move stay removed. JoinGroup has no generation: a member that had left may join
again in that time, as a new member without partitions. That does no harm: generated ids are unique,
and the limits of the group apply.

An instance id of the group belongs to its member: another id is fenced (KIP-345). TxnOffsetCommit
comes from a producer, which knows stored generations only. Owned by `classic.groups`;
`consumer.groups` uses it for groups that were classic before.
"""

import re
from collections.abc import Iterable
from typing import Final, Protocol

from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.protocol.errors import ErrorCode

REJOIN_WINDOW_MS: Final = 60_000
"""The time after a load: twice the request timeout of clients."""
_UUID: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class IdentifiedRequest(Protocol):
    """A request with the identity of a member."""

    member_id: str
    group_instance_id: str | None


class IdentifiedGroupRequest(IdentifiedRequest, Protocol):
    """The same, with the group."""

    group_id: str


class UnstoredMembers:
    """See the module's docstring. There are none before the log is loaded."""

    __slots__ = ("_generations", "_known", "_until_ms")

    def __init__(self) -> None:
        self._until_ms = 0
        # By group, as loaded: later ones were lost.
        self._generations: dict[str, int] = {}
        # Ids that were used here since the load, of current and of former members.
        self._known: set[str] = set()

    def on_loaded(self, stored: Iterable[tuple[str, GroupMetadata]], now_ms: int) -> None:
        """Start the window for members that are not in these generations."""
        self._until_ms = now_ms + REJOIN_WINDOW_MS
        for group_id, metadata in stored:
            self._generations[group_id] = metadata.generation_id
            self._known.update(member.member_id for member in metadata.members)

    def note(self, member_ids: Iterable[str], now_ms: int) -> None:
        """These ids have been used here since the load."""
        if self._is_in_window(now_ms):
            self._known.update(member_ids)

    def may_include(self, identity: IdentifiedRequest, client_id: str, now_ms: int) -> bool:
        """Whether it may be an unstored member, if its group knows neither id."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        prefix = client_id if instance_id is None else instance_id
        return (
            self._is_in_window(now_ms)
            and member_id not in self._known
            and member_id.startswith(prefix)
            and _UUID.fullmatch(member_id, len(prefix)) is not None
        )

    def accept_leave(self, identity: IdentifiedRequest, client_id: str, now_ms: int) -> bool:
        """Whether it may have been an unstored member; from now on it is not."""
        is_one = self.may_include(identity, client_id, now_ms)
        if is_one:
            self._known.add(identity.member_id)
        return is_one

    def answer(
        self,
        error: ErrorCode,
        identity: IdentifiedGroupRequest,
        generation_id: int,
        client_id: str,
        now_ms: int,
    ) -> ErrorCode:
        """The error, with REBALANCE_IN_PROGRESS instead of UNKNOWN_MEMBER_ID for unstored
        members."""
        if (
            error is ErrorCode.UNKNOWN_MEMBER_ID
            and generation_id > self._generations.get(identity.group_id, 0)
            and self.may_include(identity, client_id, now_ms)
        ):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def is_lost_generation(
        self, group_id: str, generation_id: int, newest_generation_id: int, now_ms: int
    ) -> bool:
        """Whether a known member of the group may have been in this generation at the previous
        coordinator: it is later than the group's newest here."""
        return (
            generation_id > newest_generation_id
            and group_id in self._generations
            and self._is_in_window(now_ms)
        )

    def _is_in_window(self, now_ms: int) -> bool:
        if now_ms < self._until_ms:
            return True
        self._known.clear()
        self._generations.clear()
        return False
