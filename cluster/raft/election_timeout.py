"""How long a member waits for a leader before it acts.

    member                                    waits
    ----------------------------------------------------------------------------------------------
    follower with a vote                      an election timeout, and up to another one by jitter
    pre-candidate                             between one heartbeat and two: a pre-vote has no
                                              effect on others, and fails if one of them has just
                                              had contact with the leader
    candidate                                 like a follower: a vote takes two syncs
    the only voter, without a leader          not at all
    without a vote, with a leader             an election timeout
    without a vote, without a leader          two heartbeats: then it asks for the leader

Called by `node`.
"""

from collections.abc import Callable

from odradek.cluster.raft.ready import Role
from odradek.cluster.raft.settings import RaftSettings


class ElectionTimeout:
    """The timeout of one member. Times are absolute milliseconds."""

    def __init__(self, settings: RaftSettings, jitter_ms: Callable[[], int], now_ms: int) -> None:
        self._settings = settings
        self._jitter_ms = jitter_ms
        self.last_contact_ms = now_ms
        """The time of the last message of a leader."""

    def has_recent_contact(self, now_ms: int) -> bool:
        """Whether there was a message of a leader within the least election timeout."""
        return self.last_contact_ms > now_ms - self._settings.election_timeout_ms

    def deadline_ms(
        self, now_ms: int, *, role: Role, can_campaign: bool, is_sole_voter: bool, has_leader: bool
    ) -> int:
        """The deadline of a wait that begins now."""
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
