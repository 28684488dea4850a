"""A network that delays, drops, duplicates, reorders and cuts, by its settings and at random.

Messages with shorter delays overtake others. A link is one direction between two hosts; if it is
cut, the other direction stays open, as in real faults.
"""

from collections.abc import Iterable
from random import Random

_SLOW_SHARE = 0.02
_SLOW_FACTOR = 20


class Network:
    """Decides when and how often a message arrives."""

    __slots__ = (
        "_cut",
        "_random",
        "delay_ms_max",
        "delay_ms_min",
        "double_share",
        "drop_share",
        "late_copy_share",
    )

    def __init__(self, random: Random) -> None:
        self._random = random
        self._cut: set[tuple[int, int]] = set()
        self.delay_ms_min = 1
        self.delay_ms_max = 5
        self.drop_share = 0.0
        self.double_share = 0.0
        self.late_copy_share = 0.0
        """The share of messages on connections that arrive again later: the connection was replaced
        meanwhile, and what was in the old one is executed after what came with the new one."""

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """Nothing passes in this direction any more, except what is in flight."""
        receivers = list(receivers)
        self._cut |= {(sender, to) for sender in senders for to in receivers if sender != to}

    def split(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Nothing passes between the two, in either direction."""
        some, others = list(some), list(others)
        self.cut(some, others)
        self.cut(others, some)

    def heal(self) -> None:
        """Everything passes, unless it is dropped at random."""
        self._cut.clear()

    def is_cut(self, sender: int, to: int) -> bool:
        return (sender, to) in self._cut

    def delays_ms(self, sender: int, to: int) -> list[int]:
        """The delay of each copy of a message; none if it is lost."""
        random = self._random
        if (sender, to) in self._cut or random.random() < self.drop_share:
            return []
        delays = [self._delay_ms()]
        if random.random() < self.double_share:
            delays.append(self._delay_ms())
        return delays

    def delay_of_a_stream_ms(self) -> int:
        """The delay of a message on a connection, without that of the messages before it."""
        return self._delay_ms()

    def _delay_ms(self) -> int:
        random = self._random
        delay_ms = self.delay_ms_min + int(
            random.random() * (self.delay_ms_max - self.delay_ms_min + 1)
        )
        return delay_ms * _SLOW_FACTOR if random.random() < _SLOW_SHARE else delay_ms
