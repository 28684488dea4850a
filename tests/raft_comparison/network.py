"""The network of the comparison: the same one for both clusters, controlled by the scenarios.

Messages are delivered in the order in which they were sent, at once and without loss, unless a
scenario cuts members off or delays messages. They are the bytes that the implementation would send.

Votes are counted here, on the wire, so that both implementations are counted by the same rule.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The type of a Raft message."""

    VOTE = "vote"
    APPEND = "append"
    ANSWER = "answer"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Members vote for themselves as well: a candidate has voted in its term."""

    voter: int
    term: int
    candidate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightMessage:
    """A message in flight. `vote` is the vote that it reports, if any."""

    sender: int
    to: int
    kind: Kind
    content: bytes
    vote: Vote | None = None


class ComparisonNetwork:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.keeps_back: Callable[[InFlightMessage], bool] | None = None
        """Which messages do not arrive before `bring_late`."""
        self._waiting: deque[InFlightMessage] = deque()
        self._late: list[InFlightMessage] = []
        self._cuts: set[tuple[int, int]] = set()
        self._candidates: dict[tuple[int, int], set[int]] = defaultdict(set)

    def post(self, letter: InFlightMessage) -> None:
        """A member sends a message."""
        if letter.vote is not None:
            self._candidates[letter.vote.voter, letter.vote.term].add(letter.vote.candidate)
        if (letter.sender, letter.to) in self._cuts:
            return
        if self.keeps_back is not None and self.keeps_back(letter):
            self._late.append(letter)
        else:
            self._waiting.append(letter)

    def take(self) -> InFlightMessage | None:
        """The next message to arrive."""
        return self._waiting.popleft() if self._waiting else None

    def bring_late(self) -> int:
        """The delayed messages arrive next; returns their number."""
        late, self._late = self._late, []
        self.keeps_back = None
        self._waiting.extend(late)
        return len(late)

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Messages between these two are lost from now on, in both directions."""
        others = list(others)
        self._cuts |= {pair for a in some for b in others for pair in ((a, b), (b, a))}

    def heal(self) -> None:
        """All messages pass again."""
        self._cuts.clear()

    @property
    def double_vote_count(self) -> int:
        """The number of votes for a second candidate in one term."""
        return sum(len(candidates) - 1 for candidates in self._candidates.values())
