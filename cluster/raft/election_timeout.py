"""How long a member waits before it does something about not hearing a leader.

    who                                       waits
    ----------------------------------------------------------------------------------------------
    follower with a vote                      an election timeout, and up to another one by jitter
    pre-candidate                             between one heartbeat and two: a rehearsal disturbs
                                              nobody, and fails if another has heard the leader a
                                              moment later
    candidate                                 as a follower: a vote takes two syncs
    the only voter, if nobody leads           not at all
    without a vote, led by somebody           an election timeout
    without a vote, led by nobody             two heartbeats: it may be fed by whoever leads next

Called by `node`.
"""

from collections.abc import Callable

from odradek.cluster.raft.ready import Role
from odradek.cluster.raft.settings import RaftSettings


class ElectionTimeout:
    """The patience of one member. Times are absolute milliseconds."""

    __slots__ = ("_jitter_ms", "_settings", "heard_ms")

    def __init__(self, settings: RaftSettings, jitter_ms: Callable[[], int], now_ms: int) -> None:
        self._settings = settings
        self._jitter_ms = jitter_ms
        self.heard_ms = now_ms
        """When a leader was heard last."""

    def has_recent_contact(self, now_ms: int) -> bool:
        """Whether a leader was heard within the least election timeout."""
        return self.heard_ms > now_ms - self._settings.election_timeout_ms

    def deadline_ms(
        self, now_ms: int, *, role: Role, can_campaign: bool, is_sole_voter: bool, has_leader: bool
    ) -> int:
        """When a wait ends that begins now, for who the member is now."""
        settings = self._settings
        timeout_ms = settings.election_timeout_ms
        if can_campaign and is_sole_voter and not has_leader and role is not Role.CANDIDATE:
            timeout_ms = 0
        elif can_campaign:
            timeout_ms += max(0, min(self._jitter_ms(), timeout_ms))
            if role is Role.PRE_CANDIDATE:
                timeout_ms = timeout_ms * settings.heartbeat_ms // settings.election_timeout_ms
        elif not has_leader:
            timeout_ms = settings.heartbeat_ms * 2
        return now_ms + timeout_ms
