"""The scenarios of the comparison, each written once and run by either cluster, and their results.

Three members. At the end of a scenario all members run, every link works, two more entries are
written, and there is time to settle. Then an acknowledged entry counts as still there if a majority
has it in its log. Otherwise it is lost: Raft promises that a committed entry is in the log of every
later leader (5.4, Leader Completeness), and with two of three logs without it the next leader may
lack it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from tests.raft_comparison.network import ComparisonNetwork, InFlightMessage, Kind

MEMBERS: Final = (1, 2, 3)
MAJORITY: Final = 2
# The timings are those of our default settings; raftos is configured to the same.
HEARTBEAT_MS: Final = 100
ELECTION_MS: Final = 500
SETTLING_MS: Final = 5_000
LEADERLESS_MS_MAX: Final = 60_000
# Two, because raftos may answer the first for an older entry that is applied only now.
LAST: Final = ("the last but one", "the last")


class ComparedCluster(Protocol):
    """Members 1 to 3 of one implementation, on a network and a clock that scenarios control."""

    network: ComparisonNetwork
    acknowledged: list[str]
    """Acknowledged commands, in order."""
    led: set[tuple[int, int]]
    """(term, member) of every leader so far."""

    @property
    def now_ms(self) -> int: ...

    def elapse(self, ms: int) -> None: ...

    def deliver(self, until: Callable[[], bool]) -> None:
        """Deliver messages until there are none, or until the condition holds; no time passes."""

    def end_patience(self, member: int) -> None:
        """Its election timeout is over."""

    def propose(self, member: int, command: str) -> None:
        """A client sends a proposal to this member; its result shows in `acknowledged`."""

    def kill(self, member: int) -> None: ...

    def restart(self, member: int) -> None:
        """Start it with its disk; no effect if it runs."""

    def leaders(self) -> list[int]: ...

    def log(self, member: int) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """The result of one cluster in one scenario."""

    proposed_count: int
    acknowledged: tuple[str, ...]
    lost: tuple[str, ...]  # of those acknowledged
    double_vote_count: int
    leader_count: int  # in the term that had most of them
    term: int  # the greatest in which anybody led
    leaderless_ms: int  # at the end of the scenario, before anybody came back
    is_writable: bool  # whether more entries are acknowledged at the end


class Play:
    """A cluster in one scenario, with its counters."""

    def __init__(self, cluster: ComparedCluster) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self._proposed_count = 0

    def deliver(self) -> None:
        self.cluster.deliver(lambda: False)

    def elect(self, member: int) -> None:
        """It campaigns before the others do, and wins."""
        self.cluster.end_patience(member)
        self.deliver()
        self.cluster.elapse(2 * HEARTBEAT_MS)
        assert self.cluster.leaders() == [member]

    def propose(self, member: int, *commands: str) -> None:
        """All of them at once."""
        for command in commands:
            self._proposed_count += 1
            self.cluster.propose(member, command)

    def write(self, member: int, *commands: str) -> None:
        """One after another, each after the acknowledgement of the one before."""
        for command in commands:
            self.propose(member, command)
            end_ms = self.cluster.now_ms + SETTLING_MS
            while command not in self.cluster.acknowledged and self.cluster.now_ms < end_ms:
                self.cluster.elapse(10)

    def end(self) -> ScenarioOutcome:
        """All members run again; returns the result."""
        cluster, proposed_count = self.cluster, self._proposed_count
        start_ms = cluster.now_ms
        while not cluster.leaders() and cluster.now_ms < start_ms + LEADERLESS_MS_MAX:
            cluster.elapse(10)
        leaderless_ms = cluster.now_ms - start_ms
        acknowledged = tuple(cluster.acknowledged)
        cluster.elapse(2 * HEARTBEAT_MS)
        for leader in cluster.leaders()[-1:]:
            self.write(leader, *LAST)
        is_writable = set(LAST) <= set(cluster.acknowledged)
        self.network.heal()
        for member in MEMBERS:
            cluster.restart(member)
        cluster.elapse(SETTLING_MS)
        logs = [cluster.log(member) for member in MEMBERS]
        leaders = Counter(term for term, _ in cluster.led)
        return ScenarioOutcome(
            proposed_count=proposed_count,
            acknowledged=acknowledged,
            lost=tuple(
                command
                for command in acknowledged
                if sum(command in log for log in logs) < MAJORITY
            ),
            double_vote_count=self.network.double_vote_count,
            leader_count=max(leaders.values()),
            term=max(leaders),
            leaderless_ms=leaderless_ms,
            is_writable=is_writable,
        )


def late_heartbeat(play: Play) -> None:
    """A heartbeat arrives after later messages, and its sender has been killed meanwhile.

    Member 3 is cut off and misses three entries; 1 and 2 have them, and the client has the
    acknowledgements.
    """
    play.elect(1)
    play.network.cut([3], [1, 2])
    play.network.keeps_back = _first_append(sender=1, to=2)
    play.cluster.elapse(2 * HEARTBEAT_MS)
    play.write(1, "a", "b", "c")
    play.cluster.kill(1)
    assert play.network.bring_late() == 1
    play.deliver()
    play.network.heal()


def restart_in_term(play: Play) -> None:
    """A member votes, restarts, and gets another vote request in the same term.

    1 and 3 do not reach each other; 2 reaches both. Clients write to every member that claims to be
    the leader.
    """
    play.network.cut([1], [3])
    play.network.keeps_back = lambda letter: letter.kind is Kind.APPEND
    play.cluster.end_patience(1)
    play.deliver()
    assert play.cluster.leaders() == [1]
    play.cluster.kill(2)
    play.cluster.restart(2)
    play.cluster.end_patience(3)
    play.deliver()
    play.network.bring_late()
    play.deliver()
    for leader in play.cluster.leaders():
        play.write(leader, f"told {leader}")
    play.cluster.elapse(2 * HEARTBEAT_MS)


def leader_killed(play: Play) -> None:
    """The leader is killed with ten acknowledged entries. No message is lost or late."""
    play.elect(1)
    play.write(1, *(f"entry {number}" for number in range(1, 11)))
    play.cluster.kill(1)


def concurrent_proposals(play: Play) -> None:
    """Sixteen clients propose at once, without any fault."""
    play.elect(1)
    play.propose(1, *(f"client {number}" for number in range(1, 17)))
    play.cluster.elapse(SETTLING_MS)


def concurrent_proposals_and_kill(play: Play) -> None:
    """Sixteen clients propose at once; the leader is killed after the first acknowledgement."""
    play.elect(1)
    play.propose(1, *(f"client {number}" for number in range(1, 17)))
    play.cluster.deliver(lambda: bool(play.cluster.acknowledged))
    play.cluster.kill(1)


def _first_append(*, sender: int, to: int) -> Callable[[InFlightMessage], bool]:
    """The first append of one to the other, once."""
    seen: list[InFlightMessage] = []

    def is_it(letter: InFlightMessage) -> bool:
        if seen or (letter.kind, letter.sender, letter.to) != (Kind.APPEND, sender, to):
            return False
        seen.append(letter)
        return True

    return is_it


SCENARIOS: Final[Mapping[str, Callable[[Play], None]]] = MappingProxyType(
    {
        "late heartbeat, leader killed": late_heartbeat,
        "restart in a term after voting": restart_in_term,
        "leader killed": leader_killed,
        "16 proposals at once": concurrent_proposals,
        "16 proposals at once, leader killed": concurrent_proposals_and_kill,
    }
)


def play(scenario: str, cluster: ComparedCluster) -> ScenarioOutcome:
    """Run it to its end."""
    stage = Play(cluster)
    SCENARIOS[scenario](stage)
    return stage.end()
