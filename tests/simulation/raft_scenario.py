"""A quorum with clients, faults and operators, and its obligations after the faults.

Clients propose to the host that they believe to be the leader, sometimes to one that believes so
itself. Faults crash, pause and cut off hosts; operators add and remove voters, transfer leadership
and take snapshots. At the end everything is healed: then the quorum has to elect a leader and
commit again, and every host must reach the same state, which has every acknowledged entry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    MembershipChange,
    RemoveVoter,
    Voter,
    configuration_of,
)
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import Proposal, Role
from odradek.cluster.raft.settings import RaftSettings
from tests.simulation.raft_checker import RaftChecker
from tests.simulation.raft_host import RaftHost
from tests.simulation.simulation import Simulation, SimulationFailure, Violation

SETTINGS = RaftSettings(
    election_timeout_ms=200,
    heartbeat_ms=50,
    append_bytes_max=200,
    window_requests_max=4,
    window_bytes_max=600,
    apply_bytes_max=400,
    snapshot_chunk_bytes=20,
    observer_silence_ms=1_000,
)
_HEALING_MS = 10_000
_HEALING_STEP_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTrouble:
    """The faults of a quorum and their mean intervals; 0 is never."""

    voter_count: int = 3
    observer_count: int = 1
    duration_ms: int = 8_000
    propose_interval_ms: int = 40
    crash_interval_ms: int = 1_500
    down_ms_max: int = 1_000
    cut_interval_ms: int = 900
    stop_interval_ms: int = 3_000
    slow_disk_interval_ms: int = 3_000
    snapshot_interval_ms: int = 800
    membership_interval_ms: int = 1_500
    transfer_interval_ms: int = 2_500
    wipe_interval_ms: int = 0
    is_wiped_as_itself: bool = False
    """Whether a host with a new disk returns under its old id, which is forbidden."""
    leader_share: float = 0.3
    """The share of faults that hit a leader."""
    delay_ms_max: int = 5
    drop_share: float = 0.03
    double_share: float = 0.03
    settings: RaftSettings = field(default=SETTINGS)
    core: type[RaftNode] = RaftNode


_ONE_AT_A_TIME = msgspec.structs.replace(SETTINGS, append_bytes_max=1, window_requests_max=1)

PROFILES: Final[tuple[QuorumTrouble, ...]] = (
    QuorumTrouble(),
    QuorumTrouble(voter_count=5, observer_count=0),
    # Leaders are cut off right after their election, and requests with one entry each arrive much
    # later: the ingredients of the paper's figure 8.
    QuorumTrouble(
        voter_count=5,
        observer_count=0,
        settings=_ONE_AT_A_TIME,
        propose_interval_ms=15,
        crash_interval_ms=300,
        cut_interval_ms=150,
        stop_interval_ms=0,
        slow_disk_interval_ms=0,
        snapshot_interval_ms=0,
        membership_interval_ms=0,
        transfer_interval_ms=0,
        drop_share=0.05,
        delay_ms_max=100,
        leader_share=0.9,
    ),
    # All hosts crash and restart at once, while votes are in flight.
    QuorumTrouble(
        voter_count=5,
        observer_count=0,
        crash_interval_ms=120,
        down_ms_max=30,
        cut_interval_ms=0,
        stop_interval_ms=0,
        slow_disk_interval_ms=0,
        snapshot_interval_ms=0,
        membership_interval_ms=0,
        delay_ms_max=120,
        leader_share=0.5,
    ),
    # Disks are lost, and their hosts are replaced.
    QuorumTrouble(
        voter_count=3, observer_count=2, wipe_interval_ms=1_000, membership_interval_ms=200
    ),
    # A quorum that grows from one voter and shrinks again.
    QuorumTrouble(voter_count=1, observer_count=3, membership_interval_ms=400),
    QuorumTrouble(
        voter_count=3, observer_count=2, membership_interval_ms=150, transfer_interval_ms=600
    ),
    # All followers are behind the first entry of the leader's log.
    QuorumTrouble(
        propose_interval_ms=20,
        snapshot_interval_ms=150,
        crash_interval_ms=800,
        drop_share=0.15,
        double_share=0.15,
        delay_ms_max=30,
    ),
)
"""Seed n has the faults of profile n modulo their number."""
FIGURE_8, RESTARTS, WIPES, GROWTH, MEMBERSHIP, SNAPSHOTS = PROFILES[2:]


class RaftScenario:
    """One run of one seed."""

    def __init__(self, seed: int, trouble: QuorumTrouble) -> None:
        self.simulation = Simulation(seed)
        self.trouble = trouble
        self.hosts: dict[int, RaftHost] = {}
        self.checker = RaftChecker(self.hosts)
        self._random = self.simulation.random
        self._is_over = False
        self._request_count = 0
        self._last_proposal: Proposal | None = None
        self._gone: set[int] = set()
        self.simulation.checks.append(self.checker.check)
        voters = range(1, trouble.voter_count + 1)
        for own_id in range(1, trouble.voter_count + trouble.observer_count + 1):
            self._add(own_id, configuration_of(voters) if own_id in voters else Configuration())

    def _add(self, own_id: int, bootstrap: Configuration) -> None:
        host = RaftHost(
            self.simulation,
            own_id,
            bootstrap,
            self.trouble.settings,
            self.checker,
            core=self.trouble.core,
        )
        self.hosts[own_id] = host
        self.simulation.add_host(own_id, host)

    @property
    def present(self) -> dict[int, RaftHost]:
        """The hosts that were never wiped, running or not."""
        return {own_id: host for own_id, host in self.hosts.items() if own_id not in self._gone}

    def run(self) -> None:
        """Faults, then healing. Raises SimulationFailure with the seed."""
        self.begin()
        self.simulation.run(self.trouble.duration_ms)
        self._heal()

    def begin(self) -> None:
        """Start; from now on faults are injected."""
        trouble, simulation = self.trouble, self.simulation
        simulation.network.delay_ms_max = trouble.delay_ms_max
        simulation.network.drop_share = trouble.drop_share
        simulation.network.double_share = trouble.double_share
        for interval_ms, what in (
            (trouble.propose_interval_ms, self._propose),
            (trouble.crash_interval_ms, self._crash),
            (trouble.cut_interval_ms, self._cut),
            (trouble.stop_interval_ms, self._stop),
            (trouble.slow_disk_interval_ms, self._slow_disk),
            (trouble.snapshot_interval_ms, self._snapshot),
            (trouble.membership_interval_ms, self._change_membership),
            (trouble.transfer_interval_ms, self._transfer),
            (trouble.wipe_interval_ms, self._wipe),
        ):
            if interval_ms:
                self._repeat(interval_ms, what)

    def _repeat(self, interval_ms: int, what: Callable[[], None]) -> None:
        def happen() -> None:
            if not self._is_over:
                what()
                self.simulation.after(self._random.randrange(1, 2 * interval_ms), happen)

        self.simulation.after(self._random.randrange(2 * interval_ms), happen)

    # -- clients -----------------------------------------------------------------------------------

    def _somebody(self) -> int | None:
        """A host for a request: mostly a leader."""
        running = [own_id for own_id in self.present if self.simulation.is_running(own_id)]
        leading = [own_id for own_id in running if self.hosts[own_id].node.role is Role.LEADER]
        some = leading if leading and self._random.random() < 0.95 else running
        return self._random.choice(some) if some else None

    def _ask(self, own_id: int, question: Callable[[RaftNode], None]) -> None:
        host = self.hosts[own_id]
        self.simulation.after_on(own_id, 0, lambda: host.ask(question))

    def _propose(self) -> None:
        own_id = self._somebody()
        if own_id is None:
            return
        host = self.hosts[own_id]

        def propose(node: RaftNode) -> None:
            for _ in range(self._random.choice((1, 1, 1, 2, 5))):
                self._request_count += 1
                data = b"%d" % self._request_count + b"." * self._random.randrange(60)
                proposal = node.propose(data)
                if isinstance(proposal, Proposal):
                    self.checker.proposed(host, proposal.index, proposal.term)

        self._ask(own_id, propose)

    # -- faults ------------------------------------------------------------------------------------

    def _victim(self) -> int:
        ids = list(self.present)
        leading = [own_id for own_id in ids if self.hosts[own_id].node.role is Role.LEADER]
        is_leader = leading and self._random.random() < self.trouble.leader_share
        return self._random.choice(leading if is_leader else ids)

    def _crash(self) -> None:
        simulation = self.simulation
        own_id = self._victim()
        if simulation.is_running(own_id):
            simulation.crash(own_id)
            down_ms = self._random.randrange(1, self.trouble.down_ms_max)
            simulation.after(down_ms, lambda: self._start(own_id))

    def _start(self, own_id: int) -> None:
        if not self.simulation.is_running(own_id) and own_id not in self._gone:
            self.simulation.start(own_id)

    def _wipe(self) -> None:
        """A voter loses its disk and returns with an empty one, under a new id. One at a time,
        and only when all hosts agree on the voters: Raft tolerates the loss of a minority."""
        configurations = {host.node.configuration.voter_ids for host in self.present.values()}
        if len(configurations) > 1 or self._random.random() > 0.8:
            return
        voters = configurations.pop()
        if len(voters) < 3 or self._gone & set(voters):
            return
        own_id = self._random.choice(voters)
        if not self.simulation.is_running(own_id):
            return
        self.simulation.crash(own_id)
        if self.trouble.is_wiped_as_itself:
            self.hosts[own_id].wipe()
            self.simulation.start(own_id)
            return
        self._gone.add(own_id)
        new_id = max(self.hosts) + 1
        self.simulation.note(f"{own_id} has lost its disk and comes back as {new_id}")
        self._add(new_id, Configuration())

    def _cut(self) -> None:
        simulation, victim = self.simulation, self._victim()
        ids = [own_id for own_id in self.present if own_id != victim]
        self._random.shuffle(ids)
        count = self._random.randrange(len(ids))
        some, others = [victim, *ids[:count]], ids[count:]
        if self._random.random() < 0.3:
            simulation.note(f"nothing passes from {some} to {others}")
            simulation.network.cut(some, others)
        else:
            simulation.note(f"nothing passes between {some} and {others}")
            simulation.network.split(some, others)
        simulation.after(self._random.randrange(1, 1_200), simulation.network.heal)

    def _stop(self) -> None:
        own_id = self._victim()
        if self.simulation.is_running(own_id):
            self.simulation.stop(own_id, self._random.randrange(1, 800))

    def _slow_disk(self) -> None:
        host = self.hosts[self._random.choice(list(self.present))]
        host.disk.sync_ms_max = self._random.choice((0, 2, 10, 100, 400))

    # -- operators ---------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        own_id = self._random.choice(list(self.present))
        if self.simulation.is_running(own_id):
            host, kept = self.hosts[own_id], self._random.choice((0, 0, 3, 20))
            self.simulation.after_on(own_id, 0, lambda: host.take_snapshot(kept))

    def _change_membership(self) -> None:
        own_id, member = self._somebody(), self._random.choice(list(self.present))
        if own_id is None:
            return

        def change(node: RaftNode) -> None:
            is_voter = node.configuration.is_voter(member)
            step: MembershipChange = RemoveVoter(member) if is_voter else AddVoter(Voter(member))
            lost = self._lost_voters()
            if lost and is_voter:
                # An operator removes voters that will not return, and no others.
                step = RemoveVoter(lost[0])
            elif is_voter and len(node.configuration.voters) <= 2 and self._random.random() < 0.7:
                return
            proposal = node.propose_membership_change(step, self.simulation.now_ms)
            if isinstance(proposal, Proposal):
                voters = node.configuration.voter_ids
                self.simulation.note(f"{own_id} makes {voters} the voters at {proposal.index}")

        self._ask(own_id, change)

    def _lost_voters(self) -> list[int]:
        """Voters in any host's configuration that will not return."""
        seen = [host.node.configuration for host in self.present.values()]
        return [gone for gone in sorted(self._gone) if any(c.is_voter(gone) for c in seen)]

    def _transfer(self) -> None:
        own_id, to = self._somebody(), self._random.choice(list(self.present))
        if own_id is None:
            return
        now_ms = self.simulation.now_ms
        if self._random.random() < 0.2:
            self._ask(own_id, lambda node: (node.resign(now_ms), None)[1])
        else:
            self._ask(own_id, lambda node: (node.transfer_leadership(to, now_ms), None)[1])

    # -- the end -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        """End every fault, and wait up to ten seconds until the quorum is healthy."""
        simulation = self.simulation
        self._is_over = True
        simulation.note("everything is healed")
        simulation.network.heal()
        simulation.network.delay_ms_max = 5
        simulation.network.drop_share = simulation.network.double_share = 0.0
        for own_id, host in self.present.items():
            host.disk.sync_ms_max = 4
            if not simulation.is_running(own_id):
                simulation.start(own_id)
        target = 0
        for _ in range(_HEALING_MS // _HEALING_STEP_MS):
            simulation.run(_HEALING_STEP_MS)
            if target and all(host.applied_index >= target for host in self.present.values()):
                break
            target = target or self._commit_once_more()
        else:
            states = {
                own_id: (str(host.node.role), host.node.term, host.applied_index)
                for own_id, host in self.present.items()
            }
            error = Violation(f"not whole again after {_HEALING_MS} ms: {target=} {states}")
            raise SimulationFailure(simulation.report(error))
        for index, term in self.checker.acknowledged.items():
            if self.checker.committed[index][0] != term:
                error = Violation(f"entry {index} was acknowledged in term {term} and is lost")
                raise SimulationFailure(simulation.report(error))

    def _commit_once_more(self) -> int:
        """Propose an entry to the newest leader; returns its index once it is committed, or 0."""
        proposed = self._last_proposal
        if proposed is not None:
            index, term = proposed.index, proposed.term
            committed = self.checker.committed
            if index < len(committed) and committed[index][0] == term:
                return index
        leaders = [host for host in self.present.values() if host.node.role is Role.LEADER]
        if leaders:
            leader = max(leaders, key=lambda host: host.node.term)

            def propose(node: RaftNode) -> None:
                proposal = node.propose(b"the last")
                self._last_proposal = proposal if isinstance(proposal, Proposal) else None

            self._ask(leader.own_id, propose)
        return 0
