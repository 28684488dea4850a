"""The network of the comparison: the same one for both clusters, moved by hand.

Letters are carried in the order in which they were posted, at once, and without loss, except where
a scenario says otherwise: it cuts members off, or keeps letters back to bring them late. Nothing is
aliased: what travels is the bytes that the implementation would send.

Votes are counted here, on the wire, so that both are counted by the same rule.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What of Raft a letter is."""

    VOTE = "vote"
    APPEND = "append"
    ANSWER = "answer"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Members vote for themselves as well: whoever asks for votes in a term has voted in it."""

    voter: int
    term: int
    candidate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message on its way. `vote` is the vote it tells of, if it does."""

    sender: int
    to: int
    kind: Kind
    content: bytes
    vote: Vote | None = None


class ComparisonNetwork:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.keeps_back: Callable[[Letter], bool] | None = None
        """Which letters do not arrive before `bring_late`."""
        self._waiting: deque[Letter] = deque()
        self._late: list[Letter] = []
        self._cuts: set[tuple[int, int]] = set()
        self._candidates: dict[tuple[int, int], set[int]] = defaultdict(set)

    def post(self, letter: Letter) -> None:
        """Somebody has sent it."""
        if letter.vote is not None:
            self._candidates[letter.vote.voter, letter.vote.term].add(letter.vote.candidate)
        if (letter.sender, letter.to) in self._cuts:
            return
        if self.keeps_back is not None and self.keeps_back(letter):
            self._late.append(letter)
        else:
            self._waiting.append(letter)

    def take(self) -> Letter | None:
        """The next one to arrive."""
        return self._waiting.popleft() if self._waiting else None

    def bring_late(self) -> int:
        """What was kept back arrives next; how many there were."""
        late, self._late = self._late, []
        self.keeps_back = None
        self._waiting.extend(late)
        return len(late)

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """What one sends the other from now on is lost, in either direction."""
        others = list(others)
        self._cuts |= {pair for a in some for b in others for pair in ((a, b), (b, a))}

    def heal(self) -> None:
        """Everything passes again."""
        self._cuts.clear()

    @property
    def double_vote_count(self) -> int:
        """How often somebody voted for a second candidate in one term."""
        return sum(len(candidates) - 1 for candidates in self._candidates.values())
