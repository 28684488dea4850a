"""The conditions of a configuration change, and who may campaign meanwhile.

Single-server changes (thesis 4.1) are safe if the previous one is committed and the leader has
committed an entry of its own term. Without the second condition two leaders could change the same
configuration differently, with majorities that do not overlap (Ongaro's correction of the thesis,
raft-dev, 2015). Called by `node`.
"""

from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    MembershipChange,
    ProposalRefusal,
    apply_change,
)
from odradek.cluster.raft.leadership import Leadership
from odradek.cluster.raft.log import RaftLog


def next_configuration(
    log: RaftLog, leadership: Leadership, term: int, change: MembershipChange, now_ms: int
) -> Configuration | ProposalRefusal:
    """The configuration for the leader of `term` to append, or why it must not."""
    if log.configuration_index > log.committed_index:
        return ProposalRefusal.CHANGE_IN_PROGRESS
    if log.term_at(log.committed_index) != term:
        return ProposalRefusal.TERM_NOT_COMMITTED
    configuration = apply_change(log.configuration, change)
    if isinstance(change, AddVoter) and isinstance(configuration, Configuration):
        is_near = leadership.is_caught_up(change.voter.member_id, now_ms)
        return configuration if is_near else ProposalRefusal.NOT_CAUGHT_UP
    return configuration


def can_campaign(log: RaftLog, member: int) -> bool:
    """Whether a member may be elected: it is a voter, or is removed by an uncommitted entry, which
    may need this member to become committed (thesis 4.2.2)."""
    return log.configuration.is_voter(member) or (
        log.configuration_index > log.committed_index and log.former_configuration.is_voter(member)
    )
