"""The input and the output of the planner: values only.

A partition with a reassignment in progress has its replicas as in the metadata (the target ones
first, then those being removed), and the adding and the removing ones.
"""

import msgspec


class RegisteredBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker.

    A fenced one keeps its replicas, because it may come back, and gets none. A draining one shall
    hold none in the end. A cordoned one gets no new ones.
    """

    node_id: int
    rack: str | None = None
    is_fenced: bool = False
    is_draining: bool = False
    is_cordoned: bool = False


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: `byte_count` is the size of one replica."""

    topic: str
    number: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int = -1
    byte_count: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class PartitionMove(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and its target replicas, the preferred leader first.

    Each of `adding` has to copy `byte_count` bytes. There are none if only the order changes, or if
    a reassignment in progress is redirected at no cost.
    """

    topic: str
    number: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    byte_count: int

    @property
    def copied_bytes(self) -> int:
        """The bytes that this move copies."""
        return self.byte_count * len(self.adding)


class UnmovablePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that has to move and cannot, and the reason."""

    topic: str
    number: int
    reason: str


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one broker: replicas, leaders among them, and the bytes of all."""

    node_id: int
    replicas: int
    leaders: int
    byte_count: int


class ReassignmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves in the order in which to start them, and the loads before and after.

    `needed_bytes` is what any plan has to copy that gives every broker the same bytes: the sum of
    what each has less than the average.
    """

    moves: tuple[PartitionMove, ...]
    unmovable: tuple[UnmovablePartition, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    needed_bytes: int

    @property
    def copied_bytes(self) -> int:
        """The bytes that all moves copy."""
        return sum(move.copied_bytes for move in self.moves)
