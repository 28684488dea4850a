"""Ephemeral groups: deleted, with their offsets, some time after the last member has left.

Every record of an ephemeral group sets a timer that checks the group, so that no other transition
has to know of this:

| Event | The group | Its expiration |
|---|---|---|
| a record was written or loaded | has members | is cancelled |
| a record was written or loaded | is Empty, and has had members | is set to ttl ms from now |
| expiration | has members | is cancelled |
| expiration | is Empty, with pending members | is postponed |
| expiration | is Empty | deletes the group, like DeleteGroups |

So every change of an Empty group restarts the time, also an offset reset or a move of the
coordinator. A static member counts until its session ends. A group that never had a member does not
expire. Called by `shard`, which has the timers.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from odradek.coordinator.group.administration.group_cleanup import GroupCleanup
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord, group_ids_of
from odradek.coordinator.group.policies import GroupPolicies
from odradek.coordinator.group.share.groups import STATE_RETRY_MS
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Outcome, Timer, TimerKey

CHECK: Final = "ephemeral-check"
EXPIRATION: Final = "ephemeral-expiration"
EPHEMERAL_TIMERS: Final = frozenset({CHECK, EXPIRATION})
_RECHECK_MS: Final = 1_000
"""Between two checks of a group with pending members."""


class EphemeralGroupExpired(msgspec.Struct, frozen=True, gc=False):
    """Effect: an ephemeral group has expired. The host logs and counts it."""

    group_id: str
    ttl_ms: int


class EphemeralGroups:
    """See the module's docstring."""

    __slots__ = ("_cleanup", "_directory")

    def __init__(self, directory: GroupDirectory, cleanup: GroupCleanup) -> None:
        self._directory = directory
        self._cleanup = cleanup

    @staticmethod
    def with_check_timers(
        outcome: Outcome[GroupRecord], policies: GroupPolicies, now_ms: int
    ) -> Outcome[GroupRecord]:
        """The outcome, with a check of each ephemeral group that it has records of."""
        timers = [
            Timer((CHECK, group_id), now_ms)
            for group_id in group_ids_of(outcome.records)
            if policies.ttl_ms(group_id) is not None
        ]
        if not timers:
            return outcome
        return msgspec.structs.replace(outcome, timers=(*outcome.timers, *timers))

    @staticmethod
    def schedule_checks(group_ids: Iterable[str], step: GroupStep) -> None:
        """Set the timers of these groups: ephemeral ones are checked, others do not expire."""
        for group_id in group_ids:
            if step.settings.policies.ttl_ms(group_id) is None:
                step.cancel_timer((EXPIRATION, group_id))
            else:
                step.set_timer((CHECK, group_id), step.now_ms)

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of this module: the group may have expired."""
        policies = step.settings.policies
        timer = self._next_timer(key, policies, step.now_ms)
        if timer is not None:
            step.timers.append(timer)
            return
        group_id = key[1]
        if self._directory.shares.maybe_delete_states(group_id, step):
            step.set_timer(key, step.now_ms + STATE_RETRY_MS)
            return
        self._cleanup.end(group_id, step)
        step.send(EphemeralGroupExpired(group_id, policies.ttl_ms(group_id) or 0))

    def _next_timer(self, key: TimerKey, policies: GroupPolicies, now_ms: int) -> Timer | None:
        """The next timer of the group, None if it has expired."""
        kind, group_id = key
        end = (EXPIRATION, group_id)
        ttl_ms = policies.ttl_ms(group_id)
        directory = self._directory
        is_modern = directory.modern_type_of(group_id) is not None
        has_had_members = is_modern or group_id in directory.classic
        if ttl_ms is None or not has_had_members or not directory.is_empty(group_id):
            return Timer(end, None)
        group = directory.classic.live_groups.get(group_id)
        if group is not None and group.pending and not is_modern:
            return Timer(end, now_ms + max(ttl_ms, _RECHECK_MS))
        if kind == CHECK and ttl_ms > 0:
            return Timer(end, now_ms + ttl_ms)
        return None
