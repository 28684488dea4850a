"""What of the brokers is killed: a process of the only node, that node, or one of three nodes.

Of three nodes it is the one with a role at the moment of the kill: it leads a partition, or is the
coordinator of the job's group or of its transactions. It stays away until `recover`, so that the
job has to go on with the other two.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.e2e.cluster import Cluster
from tests.support.waiting import wait_until

RECOVERY_S: Final = 60.0
_GROUP, _TRANSACTION = 0, 1
"""Kinds of keys of FindCoordinator."""


class BrokerVictims(Protocol):
    """A cluster that loses and regains a part of itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """What `kill` takes."""

    @property
    def goes_on_without(self) -> bool:
        """Whether jobs go on while it is away."""

    @property
    def bootstrap_servers(self) -> str:
        """For clients."""

    def kill(self, name: str) -> None:
        """SIGKILL."""

    def recover(self) -> None:
        """Bring back what was killed, and wait until all is as before."""


class PartsOfNode:
    """The only node, and its processes."""

    names: tuple[str, ...] = ("worker-0", "router-0", "node")
    goes_on_without = False

    def __init__(self, node: EmbeddedBroker) -> None:
        self._node = node

    @property
    def bootstrap_servers(self) -> str:
        return self._node.bootstrap_servers

    def kill(self, name: str) -> None:
        if name == "node":
            self._node.kill()
        else:
            self._node.kill_process(name)

    def recover(self) -> None:
        if self._node.is_running:
            self._node.wait_until_ready()
        else:
            self._node.start()


@dataclass(frozen=True, slots=True)
class Roles:
    """What the job uses of the cluster."""

    topic: str
    group: str
    transactional_id: str


class NodesByRole:
    """One of three nodes."""

    names: tuple[str, ...] = (
        "leader",
        "coordinator of the group",
        "coordinator of transactions",
    )
    goes_on_without = True

    def __init__(self, cluster: Cluster, roles: Roles) -> None:
        self._cluster = cluster
        self._roles = roles
        self._killed: list[int] = []

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def kill(self, name: str) -> None:
        match name:
            case "leader":
                node = self._cluster.leader_of(self._roles.topic)
            case "coordinator of the group":
                node = self._coordinator(self._roles.group, _GROUP)
            case _:
                node = self._coordinator(self._roles.transactional_id, _TRANSACTION)
        self._cluster[node].kill()
        self._killed.append(node)

    def recover(self) -> None:
        if self._killed:
            self._cluster.start(*self._killed)
            self._killed.clear()
        at = self._cluster.any()
        for topic in self._cluster.topics(at):
            self._cluster.wait_until_whole(topic)

    def _coordinator(self, key: str, kind: int) -> int:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

        def found() -> list[int]:
            (answer,) = self._cluster[self._cluster.any()].ask(request).coordinators
            return [] if answer.error_code else [answer.node_id]

        return wait_until(found, timeout_s=RECOVERY_S, what=f"{key} has a coordinator")[0]
