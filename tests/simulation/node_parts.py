"""The settings of a simulated node, and the channels between its processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.settings import RaftSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.transaction.settings import TransactionSettings
from tests.simulation.simulation import Simulation

_SLOW_MS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of all nodes of a cluster."""

    raft: RaftSettings
    static: Mapping[str, str]
    group: GroupSettings
    transaction: TransactionSettings = field(default_factory=TransactionSettings)
    lag_max_ms: int = 1_000
    has_elr: bool = True
    core: type[RaftNode] = RaftNode


class Channel:
    """From one process of a node to another: in order, and a little later; with probability
    `slow_share` by up to half a second."""

    __slots__ = ("_due_ms", "_host_id", "_simulation", "_slow_share", "is_closed")

    def __init__(self, simulation: Simulation, host_id: int, slow_share: float) -> None:
        self._simulation = simulation
        self._host_id = host_id
        self._due_ms = 0
        self._slow_share = slow_share
        self.is_closed = False

    def hold_up(self, for_ms: int) -> None:
        """Nothing arrives for a while."""
        self._due_ms = max(self._due_ms, self._simulation.now_ms + for_ms)

    def put(self, action: Callable[[], None]) -> None:
        simulation = self._simulation
        lot = simulation.random.random()
        delay_ms = 0 if lot < 0.9 else 1
        if lot > 1 - self._slow_share:
            delay_ms = simulation.random.randrange(_SLOW_MS_MAX)
        self._due_ms = due_ms = max(self._due_ms, simulation.now_ms + delay_ms)
        simulation.after_on(
            self._host_id, due_ms - simulation.now_ms, lambda: None if self.is_closed else action()
        )
