"""Invariants of a quorum after every event (figure 3 of the paper and its consequences).

The checker sees all hosts with their disks. It checks every event against all facts that it has
seen before, at a cost that depends on the event only.
"""

from collections.abc import Mapping

from odradek.cluster.raft.configuration import majority_of
from odradek.cluster.raft.messages import (
    AppendAccepted,
    Entry,
    Message,
    SnapshotReceived,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.ready import Ready, Role
from tests.simulation.raft_host import RaftHost
from tests.simulation.simulation import Violation


class RaftChecker:
    """See the module's docstring. It changes nothing."""

    def __init__(self, hosts: Mapping[int, RaftHost]) -> None:
        self._hosts = hosts
        self._leaders: dict[int, int] = {}
        self._leader_ends: dict[int, tuple[int, int, int]] = {}  # host: term, last index, its term
        self._entries: dict[tuple[int, int], tuple[int | None, bytes]] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._pre_votes: dict[tuple[int, int], set[int]] = {}
        self._electorates: dict[tuple[int, int], tuple[int, ...]] = {}
        self.committed: list[tuple[int, int]] = [(0, 0)]  # by index: term, committing term
        self._commit_ends: dict[int, int] = {}  # committing term: last index
        self._committed_at: dict[int, int] = {}  # host: how far it was seen
        self._digests: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
        self._waiting: dict[tuple[int, int], int] = {}  # index, term of proposals: host
        self.acknowledged: dict[int, int] = {}  # index: term
        self.acknowledged_index = 0
        self.install_count = 0

    # -- what clients do ---------------------------------------------------------------------------

    def proposed(self, host: RaftHost, index: int, term: int) -> None:
        """A client waits for this entry at this host."""
        self._waiting[index, term] = host.own_id

    # -- what hosts do -----------------------------------------------------------------------------

    def sent(self, host: RaftHost, message: Message) -> None:
        """Messages agree with the sender's disk, and with its earlier messages."""
        disk = host.disk.state
        match message:
            case VoteResponse(is_granted=True, is_pre_vote=False):
                self._voted(host, message.term, message.to)
            case VoteRequest(is_pre_vote=False):
                self._voted(host, message.term, host.own_id)
                if not message.is_transfer:
                    self._check_pre_vote(host, message.term)
            case VoteResponse(is_granted=True):
                if message.term <= disk.hard_state.term:
                    raise Violation(f"{host.own_id} grants a pre-vote for an old term")
                self._pre_votes.setdefault((message.to, message.term), set()).add(host.own_id)
            case AppendAccepted():
                # A host that has seen a greater term meanwhile may still send what was true before.
                mark = disk.snapshot
                is_covered = mark is not None and mark.index >= message.match_index
                if disk.last_index < message.match_index and not is_covered:
                    raise Violation(
                        f"{host.own_id} acknowledges {message.match_index} and has "
                        f"{disk.last_index} on its disk"
                    )
                self._check_term_durable(host, message.term)
            case SnapshotReceived():
                self._check_term_durable(host, message.term)
            case _:
                pass

    def _voted(self, host: RaftHost, term: int, candidate: int) -> None:
        hard_state = host.disk.state.hard_state
        is_durable = hard_state.term > term or (hard_state.term, hard_state.vote) == (
            term,
            candidate,
        )
        if not is_durable:
            raise Violation(f"{host.own_id} votes in term {term} before it is on its disk")
        if self._votes.setdefault((host.own_id, term), candidate) != candidate:
            raise Violation(f"{host.own_id} votes twice in term {term}")

    def _check_term_durable(self, host: RaftHost, term: int) -> None:
        if host.disk.state.hard_state.term < term:
            raise Violation(f"{host.own_id} answers in term {term} before it is on its disk")

    def _check_pre_vote(self, host: RaftHost, term: int) -> None:
        """Thesis 9.6: a candidate increments its term only after a majority has granted its
        pre-vote."""
        # Its requests may have waited for the disk, while another candidate was elected and the
        # voters changed. The voters at the time of the campaign count.
        voters = self._electorates.get((host.own_id, term), host.node.configuration.voter_ids)
        granted = self._pre_votes.get((host.own_id, term), set()) | {host.own_id}
        if len(granted & set(voters)) < majority_of(len(voters)):
            raise Violation(f"{host.own_id} campaigns in term {term} without a pre-vote")

    def persisting(self, host: RaftHost, ready: Ready) -> None:
        """Log matching: by induction, from each entry to the one before it."""
        hard_state, durable = ready.hard_state, host.disk.state.hard_state
        if hard_state is not None and hard_state.term < durable.term:
            raise Violation(f"{host.own_id} goes back to term {hard_state.term}")
        for entry in ready.entries:
            previous_term = host.node.log.term_at(entry.index - 1)
            fact = (previous_term, entry.data)
            known = self._entries.setdefault((entry.index, entry.term), fact)
            if known != fact:
                raise Violation(f"two logs differ at or before {entry.index} of term {entry.term}")

    def applied(self, host: RaftHost, entry: Entry) -> None:
        """State machine safety, and responses to clients."""
        self._check_state(host, entry.term)
        waiting = self._waiting.get((entry.index, entry.term))
        if waiting == host.own_id and entry.index not in self.acknowledged:
            self.acknowledged[entry.index] = entry.term
            self.acknowledged_index = max(self.acknowledged_index, entry.index)

    def installed(self, host: RaftHost) -> None:
        """A snapshot has the state that applying the entries leads to."""
        self.install_count += 1
        self._check_state(host, host.applied_term)

    def _check_state(self, host: RaftHost, term: int) -> None:
        state = (term, host.command_count, host.digest)
        if self._digests.setdefault(host.applied_index, state) != state:
            raise Violation(f"{host.own_id} has another state after {host.applied_index}")

    # -- after every event -------------------------------------------------------------------------

    def check(self, host_id: int) -> None:
        """Election safety, leader append-only, leader completeness, commits."""
        host = self._hosts[host_id]
        node = host.node
        if node.role is Role.CANDIDATE:
            self._electorates.setdefault((host_id, node.term), node.configuration.voter_ids)
        if node.role is Role.LEADER:
            self._check_leader(host)
        else:
            self._leader_ends.pop(host_id, None)
        seen = self._committed_at.get(host_id, 0)
        if node.log.committed_index != seen:
            self._check_commits(host)
            self._committed_at[host_id] = node.log.committed_index

    def _check_leader(self, host: RaftHost) -> None:
        node, log = host.node, host.node.log
        if self._leaders.setdefault(node.term, host.own_id) != host.own_id:
            raise Violation(
                f"{host.own_id} and {self._leaders[node.term]} both lead in term {node.term}"
            )
        former = self._leader_ends.get(host.own_id)
        if former is None or former[0] != node.term:
            self._check_completeness(host)
        elif log.last_index < former[1] or log.term_at(former[1]) not in (former[2], None):
            raise Violation(f"{host.own_id} leads and takes back entry {former[1]}")
        self._leader_ends[host.own_id] = (node.term, log.last_index, log.last_term)

    def _check_completeness(self, host: RaftHost) -> None:
        log, term = host.node.log, host.node.term
        last = max((end for at, end in self._commit_ends.items() if at < term), default=0)
        if last > log.previous_index and log.term_at(last) != self.committed[last][0]:
            raise Violation(
                f"{host.own_id} leads in term {term} without entry {last}, which was committed"
            )

    def _check_commits(self, host: RaftHost) -> None:
        node, log = host.node, host.node.log
        for index in range(len(self.committed), log.committed_index + 1):
            term = log.term_at(index)
            assert term is not None
            self.committed.append((term, node.term))
            self._commit_ends[node.term] = index
        start = max(self._committed_at.get(host.own_id, 0), log.previous_index)
        for index in range(start + 1, log.committed_index + 1):
            if log.term_at(index) != self.committed[index][0]:
                raise Violation(f"{host.own_id} commits another entry at {index}")
        if node.role is Role.LEADER and self._leader_ends[host.own_id][0] == node.term:
            self._check_majority(host)

    def _check_majority(self, host: RaftHost) -> None:
        """The entries that a leader has committed are on the disks of a majority of the voters."""
        log = host.node.log
        index, term = log.committed_index, log.term_at(log.committed_index)
        voters = host.node.configuration.voter_ids
        count = 0
        for voter in voters:
            disk = self._hosts[voter].disk.state
            mark = disk.snapshot
            count += disk.term_at(index) == term or (mark is not None and mark.index >= index)
        if count < majority_of(len(voters)):
            raise Violation(
                f"{host.own_id} commits {index}, which {count} of {len(voters)} voters have"
            )
