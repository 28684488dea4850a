"""What a plan is made from and what it says: values only.

A partition that is being reassigned is given with all three: its replicas as the metadata has them
(the wanted ones first, behind them those that shall go), what is being added and what removed.
"""

import msgspec


class RegisteredBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker.

    A fenced one keeps what it has and gets nothing, since it may come back; an emptied one shall
    hold nothing in the end; a closed one gets nothing new.
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
    """A partition and the replicas it shall have, the preferred leader first.

    `adding` are those that have to copy `byte_count` bytes each; there are none where only the
    order changes, or where a reassignment under way is directed elsewhere at no cost.
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
        """What travels for this move."""
        return self.byte_count * len(self.adding)


class UnmovablePartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that has to move and cannot, and why."""

    topic: str
    number: int
    reason: str


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one node holds: replicas, how many of them lead, and the bytes of all."""

    node_id: int
    replicas: int
    leaders: int
    byte_count: int


class ReassignmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves in the order in which to begin them, and what they lead to.

    `needed_bytes` is what has to travel to any assignment in which every node has exactly the
    same bytes: the sum of what each lacks of its share.
    """

    moves: tuple[PartitionMove, ...]
    unmovable: tuple[UnmovablePartition, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    needed_bytes: int

    @property
    def copied_bytes(self) -> int:
        """What travels for all moves."""
        return sum(move.copied_bytes for move in self.moves)
