"""Reads that wait for proof that their leader still leads (thesis 6.4).

A read may be answered from the state at the commit index of the moment it was asked for, once a
majority has answered a request that was sent after that moment. Requests carry the number of the
round they prove; reads that arrive together share one. Nothing may be read before the leader has
committed an entry of its own term: only then does it know what is committed. Called by
`leadership`.
"""

from collections import deque

import msgspec


class ReadState(msgspec.Struct, frozen=True, gc=False):
    """The read `context` may be answered from the state after applying entry `index`.

    `index` is None when leadership was lost before that could be proved: ask the new leader.
    """

    context: int
    index: int | None


class ReadRounds:
    """The reads of one leader in one term."""

    __slots__ = ("_asked", "_waiting", "round")

    def __init__(self) -> None:
        self.round = 0
        """The last round that was begun; every request that is sent carries it."""
        self._asked: list[int] = []
        self._waiting: deque[tuple[int, int, int]] = deque()  # round, index, context

    @property
    def is_waiting(self) -> bool:
        """Whether a round is not proved yet."""
        return bool(self._waiting)

    def ask(self, context: int) -> None:
        """A read has arrived."""
        self._asked.append(context)

    def begin(self, commit_index: int) -> None:
        """Give the reads that have arrived a round of their own, if there are any.

        To be called just before requests are sent, when the leader has committed in its term.
        """
        if self._asked:
            self.round += 1
            self._waiting.extend((self.round, commit_index, context) for context in self._asked)
            self._asked = []

    def proved(self, acked_round: int) -> list[ReadState]:
        """A majority has answered requests of round `acked_round` or later."""
        released: list[ReadState] = []
        while self._waiting and self._waiting[0][0] <= acked_round:
            _, index, context = self._waiting.popleft()
            released.append(ReadState(context, index))
        return released

    def abandon(self) -> list[ReadState]:
        """Leadership is over: every read is refused."""
        refused = [ReadState(context, None) for _, _, context in self._waiting]
        refused += [ReadState(context, None) for context in self._asked]
        self._waiting.clear()
        self._asked = []
        return refused
