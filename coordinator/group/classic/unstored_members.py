"""Classic members that a coordinator knew and the log does not: what they are told after a move.

A classic group is stored when its leader has brought the assignments. Who was given an id before
that (KIP-394), waited for the others, or was even told a generation, is in no log: neither the
members of a group that forms nor newcomers of one that is there. Apache Kafka's next coordinator
answers UNKNOWN_MEMBER_ID, and they start over as somebody else. Here nobody is unknown because of
a move: they go on under the ids they have, as members that are stored do.

| They send | and are answered |
|---|---|
| JoinGroup | as with an id that was just given |
| SyncGroup, Heartbeat, OffsetCommit in a generation that was lost | REBALANCE_IN_PROGRESS: join |
| LeaveGroup | NONE: they are gone |

Who may be one is told by four things. The log was loaded less than REJOIN_WINDOW_MS ago. The id is
one that a coordinator gives this client, so that a stranger's stays unknown. Nothing was heard of
it here since the load: of others it is known what became of them. And where a generation is named,
it is later than what the log held, so that who was removed before the move stays so. JoinGroup
names none: who had left may come in again in that time, as a new member that owns nothing. That
does no harm: ids are drawn once, so that it is nobody else, and the group's limits count for it
too.

An instance id that the group knows belongs to who has it: another id of it is fenced as ever
(KIP-345). TxnOffsetCommit comes from a producer, which knows a generation only when it was stored.
Held by `classic.groups`; `consumer.groups` asks too, for a group that was a classic one before.
"""

import re
from collections.abc import Iterable
from typing import Final, Protocol

from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.protocol.errors import ErrorCode

REJOIN_WINDOW_MS: Final = 60_000
"""For so long after a load: twice as long as clients wait for an answer that does not come."""
_UUID: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class IdentifiedRequest(Protocol):
    """Who a request says that it comes from."""

    @property
    def member_id(self) -> str: ...

    @property
    def group_instance_id(self) -> str | None: ...


class IdentifiedGroupRequest(IdentifiedRequest, Protocol):
    """The same, of which group."""

    @property
    def group_id(self) -> str: ...


class UnstoredMembers:
    """See the module's docstring. Before the log is loaded nobody is one."""

    __slots__ = ("_generations", "_known", "_until_ms")

    def __init__(self) -> None:
        self._until_ms = 0
        # By group, as loaded: later ones were lost.
        self._generations: dict[str, int] = {}
        # Ids of which this coordinator has heard, whatever has become of them.
        self._known: set[str] = set()

    def on_loaded(self, stored: Iterable[tuple[str, GroupMetadata]], now_ms: int) -> None:
        """From now on members may come that are not in these generations."""
        self._until_ms = now_ms + REJOIN_WINDOW_MS
        for group_id, metadata in stored:
            self._generations[group_id] = metadata.generation_id
            self._known.update(member.member_id for member in metadata.members)

    def note(self, member_ids: Iterable[str], now_ms: int) -> None:
        """These are known here from now on, also when they have gone."""
        if self._is_in_window(now_ms):
            self._known.update(member_ids)

    def may_include(self, identity: IdentifiedRequest, client_id: str, now_ms: int) -> bool:
        """Whether it may be one, if its group does not know it, nor its instance id."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        prefix = client_id if instance_id is None else instance_id
        return (
            self._is_in_window(now_ms)
            and member_id not in self._known
            and member_id.startswith(prefix)
            and _UUID.fullmatch(member_id, len(prefix)) is not None
        )

    def accept_leave(self, identity: IdentifiedRequest, client_id: str, now_ms: int) -> bool:
        """Whether it may have been one; it is none from now on."""
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
        """What to tell who is refused: nobody is unknown for having been in a lost generation."""
        if (
            error is ErrorCode.UNKNOWN_MEMBER_ID
            and generation_id > self._generations.get(identity.group_id, 0)
            and self.may_include(identity, client_id, now_ms)
        ):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def _is_in_window(self, now_ms: int) -> bool:
        if now_ms < self._until_ms:
            return True
        self._known.clear()
        self._generations.clear()
        return False
