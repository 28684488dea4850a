"""When the configuration may take a step, and who may stand for election meanwhile.

Single-server changes (thesis 4.1) are safe one after the other. Two conditions make them so: the
former step is committed, and the leader has committed an entry of its own term; without the second
two leaders could take different steps from the same configuration, each with a majority that does
not know of the other (Ongaro's correction of the thesis, raft-dev, 2015). Called by `node`.
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
    """What the leader of `term` is to append, or why it must not."""
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
    """Whether a member may be elected: it has a vote, or loses it by an entry that is not committed
    and may need this very member to become so (thesis 4.2.2).
    """
    return log.configuration.is_voter(member) or (
        log.configuration_index > log.committed_index and log.former_configuration.is_voter(member)
    )
