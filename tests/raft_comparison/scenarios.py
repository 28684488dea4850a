"""The scenarios, each written once and played by either cluster, and what comes of them.

Three members. A scenario ends with everybody running again, every link up, two more entries written
and time to settle; then an acknowledged entry counts as still there if a majority has it in its
log. Less than that is loss: Raft promises that a committed entry is in the log of every later
leader (5.4, Leader Completeness), and with two of three logs without it the next leader lacks it or
may lack it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from tests.raft_comparison.network import ComparisonNetwork, Kind, Letter

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
    """Members 1 to 3 of one implementation, on a network and a clock that scenarios move."""

    network: ComparisonNetwork
    acknowledged: list[str]
    """Commands of which the client was told that they are done, in that order."""
    led: set[tuple[int, int]]
    """(term, member) of everybody who has ever led."""

    @property
    def now_ms(self) -> int: ...

    def elapse(self, ms: int) -> None: ...

    def deliver(self, until: Callable[[], bool]) -> None:
        """Carry letters until there are none, or until it is so; no time passes."""

    def end_patience(self, member: int) -> None:
        """Its election timeout is over now."""

    def propose(self, member: int, command: str) -> None:
        """A client asks this member; whether anything comes of it shows in `acknowledged`."""

    def kill(self, member: int) -> None: ...

    def restart(self, member: int) -> None:
        """With what its disk has; nothing if it runs."""

    def leaders(self) -> list[int]: ...

    def log(self, member: int) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """What one cluster made of one scenario."""

    proposed_count: int
    acknowledged: tuple[str, ...]
    lost: tuple[str, ...]  # of those acknowledged
    double_vote_count: int
    leader_count: int  # in the term that had most of them
    term: int  # the greatest in which anybody led
    leaderless_ms: int  # at the end of the scenario, before anybody came back
    is_writable: bool  # whether more entries are acknowledged at the end


class Play:
    """A cluster in one scenario, with what is counted on the way."""

    def __init__(self, cluster: ComparedCluster) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self._proposed_count = 0

    def deliver(self) -> None:
        self.cluster.deliver(lambda: False)

    def elect(self, member: int) -> None:
        """It stands before anyone else does, and wins."""
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
        """One after the other, each when the one before is acknowledged: nothing unusual here."""
        for command in commands:
            self.propose(member, command)
            end_ms = self.cluster.now_ms + SETTLING_MS
            while command not in self.cluster.acknowledged and self.cluster.now_ms < end_ms:
                self.cluster.elapse(10)

    def end(self) -> ScenarioOutcome:
        """Everybody comes back; what is left."""
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
    """One heartbeat arrives after what was sent later, and its sender has died meanwhile.

    Member 3 is cut off and misses three entries; 1 and 2 have them, and the client was told so.
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
    """A member votes, restarts, and is asked again in the same term, by somebody else.

    1 and 3 do not reach each other; 2 reaches both. Clients write to whoever says that he leads.
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
    """The leader dies with ten acknowledged entries. No letter is lost or late."""
    play.elect(1)
    play.write(1, *(f"entry {number}" for number in range(1, 11)))
    play.cluster.kill(1)


def concurrent_proposals(play: Play) -> None:
    """Sixteen clients propose at once, and nothing goes wrong."""
    play.elect(1)
    play.propose(1, *(f"client {number}" for number in range(1, 17)))
    play.cluster.elapse(SETTLING_MS)


def concurrent_proposals_and_kill(play: Play) -> None:
    """Sixteen clients propose at once; the leader dies when the first of them has its answer."""
    play.elect(1)
    play.propose(1, *(f"client {number}" for number in range(1, 17)))
    play.cluster.deliver(lambda: bool(play.cluster.acknowledged))
    play.cluster.kill(1)


def _first_append(*, sender: int, to: int) -> Callable[[Letter], bool]:
    """Of one to the other, once."""
    seen: list[Letter] = []

    def is_it(letter: Letter) -> bool:
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
    """Play it to its end."""
    stage = Play(cluster)
    SCENARIOS[scenario](stage)
    return stage.end()
