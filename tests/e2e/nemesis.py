"""Injects faults into a cluster under load, and heals them.

The connections of the three nodes of a `FaultyCluster` all go through a `NodeNetwork`, which can
cut them: between controllers, between workers, and from clients on two sides. A fault is a context
manager. Entering injects it and, where that is possible, checks that it has an effect; leaving
heals it. Then `recover` waits until the cluster is healthy, and `end` checks the clients' history.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek.node.local_cluster import ClusterLayout, LocalNode
from tests.e2e.checker import anomalies
from tests.e2e.cluster import WAIT_S, Cluster, cluster
from tests.e2e.network import CLIENTS, Gate, NodeNetwork, pids_of
from tests.e2e.workload import Workload
from tests.support.disks import SmallDisk
from tests.support.ports import free_pair, free_port
from tests.support.waiting import wait_until

TOPIC: Final = "orders"
PARTITIONS: Final = 6
PACE_S: Final = 0.016
CONTROLLERS, WORKERS, NEAR, FAR = "controllers", "workers", "near", "far"
"""Kinds of gates: to a node's controller, to its worker, or to its client listener of one side."""
FAR_WRITER: Final = 1
LAG_MS: Final = 3_000
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": str(LAG_MS),
    "log.level": "INFO",
}
AVAILABLE_S: Final = 120.0
"""Timeout for recovery on a slow machine: a client gives up a request to a frozen process only
after half a minute."""


@dataclass(slots=True)
class FaultyCluster:
    """See the module's docstring."""

    nodes: Cluster
    network: NodeNetwork
    workload: Workload
    random: random.Random
    clocks: Mapping[int, Path]
    """The settable clock of each node, where libfaketime is installed."""

    def pick(self) -> int:
        """A random node."""
        return self.random.choice(sorted(self.nodes.nodes))

    def leader(self) -> int:
        """The leader of the first partition."""
        return self.nodes.leader_of(TOPIC)

    def controller(self) -> int:
        return self.nodes.leader()

    def hold(self, seconds: float) -> None:
        """Keep a fault in force for a while."""
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, timeout_s=seconds + WAIT_S)

    def wait_until_fenced(self, node_id: int) -> None:
        """Wait until the other nodes have fenced this one."""
        others = self.nodes.others(node_id)
        self.nodes.wait_for_brokers(others[0], set(others))

    def recover(self) -> None:
        """Wait until every node serves, every replica is in sync and every client makes
        progress."""
        for node_id in self.nodes.nodes:
            self.nodes.wait_for_brokers(node_id, set(self.nodes.nodes))
        for topic in (TOPIC, "__consumer_offsets"):
            wait_until(
                lambda topic=topic: self.nodes.is_whole(topic),  # type: ignore[misc]  # a default
                timeout_s=WAIT_S,
                what=f"all replicas of {topic} are in sync",
            )
        self.workload.wait_for_progress(AVAILABLE_S)

    def inject(self, fault: "Fault") -> float:
        """Inject the fault, heal it and wait for recovery. Returns the longest time, in seconds, in
        which a partition acknowledged nothing to one of the writers."""

        def inject() -> None:
            with fault(self):
                pass
            self.recover()

        try:
            return self.workload.measure(inject)
        except AssertionError as error:
            error.add_note(f"{fault}, {self.network.describe()}")
            raise

    def end(self) -> None:
        """Stop the clients and check their history against the log."""
        self.workload.end()
        found = anomalies(self.workload.history)
        if self.workload.unacknowledged():
            found.append(f"{self.workload.unacknowledged()} records were never acknowledged")
        if found:
            raise AssertionError("\n".join(found))


Fault = Callable[[FaultyCluster], AbstractContextManager[None]]


# -- processes that die --------------------------------------------------------------------------


@contextmanager
def killed(field: FaultyCluster, node_id: int) -> Iterator[None]:
    """Power loss: a node is killed, and starts again after the others have taken over."""
    field.nodes[node_id].kill()
    try:
        field.wait_until_fenced(node_id)
        yield
    finally:
        field.nodes[node_id].start()


def kill_leader(field: FaultyCluster) -> AbstractContextManager[None]:
    return killed(field, field.leader())


def kill_controller(field: FaultyCluster) -> AbstractContextManager[None]:
    return killed(field, field.controller())


def kill_any(field: FaultyCluster) -> AbstractContextManager[None]:
    return killed(field, field.pick())


@contextmanager
def kill_processes(field: FaultyCluster) -> Iterator[None]:
    """One process of every node is killed; the supervisors replace them."""
    for node in field.nodes.nodes.values():
        node.kill_process(field.random.choice(sorted(node.processes)))
    yield
    for node in field.nodes.nodes.values():
        node.wait_until_ready()


# -- processes that freeze -----------------------------------------------------------------------


@contextmanager
def frozen(field: FaultyCluster, node_id: int, *names: str) -> Iterator[None]:
    """SIGSTOP to all processes of a node, or to some, for longer than any timeout. The others take
    over meanwhile."""
    node = field.nodes[node_id]
    pids = [node.processes[name] for name in names] or (pids_of({node_id: str(node.data)})[node_id])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        field.wait_until_fenced(node_id)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # somebody has lost patience
                os.kill(pid, signal.SIGCONT)


def freeze_leader(field: FaultyCluster) -> AbstractContextManager[None]:
    return frozen(field, field.leader())


def freeze_worker(field: FaultyCluster) -> AbstractContextManager[None]:
    return frozen(field, field.leader(), "worker-0")


def freeze_router(field: FaultyCluster) -> AbstractContextManager[None]:
    return frozen(field, field.leader(), "router-0")


def freeze_controller(field: FaultyCluster) -> AbstractContextManager[None]:
    return frozen(field, field.controller(), "controller")


@contextmanager
def freeze_all_routers(field: FaultyCluster) -> Iterator[None]:
    """No router responds for so long that no node may lead any more, as on a host that is paused.
    After they continue, no node acts on its old leadership."""
    nodes = field.nodes.nodes.values()
    pids = [node.processes["router-0"] for node in nodes]
    told = 'other nodes lead its partitions","child":"router-0"'
    before = [node.log().count(told) for node in nodes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: all(
                node.log().count(told) > count for node, count in zip(nodes, before, strict=True)
            ),
            timeout_s=WAIT_S,
            what="every node has lost patience with its router",
        )
        # The controllers then elect leaders.
        field.hold(1.0)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def slow_worker(field: FaultyCluster) -> Iterator[None]:
    """A worker runs for a tenth of the time, as with a slow disk: it is stopped and continued over
    and over."""
    node = field.nodes[field.leader()]
    pid = node.processes["worker-0"]
    try:
        for _ in range(20):
            os.kill(pid, signal.SIGSTOP)
            field.hold(0.27)
            os.kill(pid, signal.SIGCONT)
            field.hold(0.03)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# -- the network ---------------------------------------------------------------------------------


@contextmanager
def healed(field: FaultyCluster) -> Iterator[None]:
    try:
        yield
    finally:
        field.network.heal()


@contextmanager
def leader_without_followers(field: FaultyCluster) -> Iterator[None]:
    """Controllers reach the leader, followers do not. It accepts nothing that needs two replicas,
    and remains the leader."""
    leader = field.leader()
    with healed(field):
        field.network.part([leader], field.nodes.others(leader), WORKERS)
        wait_until(
            lambda: field.nodes.partitions(TOPIC)[0].isr_nodes == [leader],
            timeout_s=WAIT_S,
            what="its followers are out of sync",
        )
        yield


@contextmanager
def leader_deaf_to_a_follower(field: FaultyCluster) -> Iterator[None]:
    """One direction is cut: requests of one follower do not reach the leader. The other follower
    remains in sync."""
    leader = field.leader()
    follower = field.random.choice(field.nodes.others(leader))
    with healed(field):
        field.network.cut([follower], [leader], WORKERS)
        wait_until(
            lambda: follower not in field.nodes.partitions(TOPIC)[0].isr_nodes,
            timeout_s=WAIT_S,
            what="the follower is out of sync",
        )
        field.workload.wait_for_progress()
        yield


@contextmanager
def leader_without_controller(field: FaultyCluster) -> Iterator[None]:
    """Followers reach the leader, the controllers do not. It continues with old metadata while
    others are elected."""
    leader = field.leader()
    with healed(field):
        field.network.part([leader], field.nodes.others(leader), CONTROLLERS)
        field.wait_until_fenced(leader)
        yield


@contextmanager
def controller_without_others(field: FaultyCluster) -> Iterator[None]:
    """The active controller's node is cut off in both directions."""
    controller = field.controller()
    with healed(field):
        field.network.part([controller], field.nodes.others(controller))
        field.wait_until_fenced(controller)
        yield


@contextmanager
def controller_mute(field: FaultyCluster) -> Iterator[None]:
    """The active controller's node receives everything, but nothing that it sends arrives."""
    controller = field.controller()
    with healed(field):
        field.network.cut([controller], field.nodes.others(controller))
        field.wait_until_fenced(controller)
        yield


@contextmanager
def split(field: FaultyCluster) -> Iterator[None]:
    """One node and the clients of one side are cut off from the others. The majority goes on."""
    few = field.leader()
    many = field.nodes.others(few)
    with healed(field):
        field.network.part([few], many)
        field.network.reset([CLIENTS], [few], NEAR)
        field.network.reset([CLIENTS], many, FAR)
        field.wait_until_fenced(few)
        field.workload.wait_for_progress(AVAILABLE_S, without=[FAR_WRITER])
        yield


@contextmanager
def broken_connections(field: FaultyCluster) -> Iterator[None]:
    """The connections between two nodes are reset, for a while."""
    some = field.pick()
    other = field.random.choice(field.nodes.others(some))
    with healed(field):
        field.network.reset([some], [other])
        field.hold(1.0)
        yield


@contextmanager
def flapping_connections(field: FaultyCluster) -> Iterator[None]:
    """A connection that is cut and healed over and over."""
    some = field.pick()
    for _ in range(5):
        with healed(field):
            field.network.part([some], field.nodes.others(some))
            field.hold(field.random.random())
        field.hold(field.random.random() / 2)
    yield


@contextmanager
def slow_connections(field: FaultyCluster) -> Iterator[None]:
    """High latency from and to one node."""
    some = field.pick()
    others = field.nodes.others(some)
    with healed(field):
        field.network.delay([some], others, 0.2)
        field.network.delay(others, [some], 0.2)
        field.workload.wait_for_progress()
        yield


# -- disks ---------------------------------------------------------------------------------------


@contextmanager
def full_disk(field: FaultyCluster, *, disk: SmallDisk, node_id: int) -> Iterator[None]:
    """A node's disk is full. Other nodes lead its partitions. It cannot write that it is no longer
    the leader; so consumers may read from it until it can."""
    disk.fill()
    try:
        wait_until(
            lambda: all(p.leader_id != node_id for p in field.nodes.partitions(TOPIC, at=1)),
            timeout_s=WAIT_S,
            what=f"node {node_id} leads nothing",
        )
        field.workload.wait_for_progress(AVAILABLE_S, reads=False)
        yield
    finally:
        disk.empty()


# -- clocks --------------------------------------------------------------------------------------

FAKETIME: Final = tuple(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
"""The library libfaketime, where it is installed (Debian's package of that name)."""
HOUR_S: Final = 3_600


def clock_jumps(field: FaultyCluster, seconds: int) -> AbstractContextManager[None]:
    """A node's wall clock is set forward or back, and set right later. Its monotonic clock is
    unchanged."""
    return _set_clock(field, field.leader(), seconds)


@contextmanager
def _set_clock(field: FaultyCluster, node_id: int, seconds: int) -> Iterator[None]:
    clock = field.clocks[node_id]
    clock.write_text(f"{seconds:+d}")
    try:
        field.workload.wait_for_progress()
        field.hold(2.0)
        yield
    finally:
        clock.write_text("+0")


def clock_forward(field: FaultyCluster) -> AbstractContextManager[None]:
    return clock_jumps(field, HOUR_S)


def clock_back(field: FaultyCluster) -> AbstractContextManager[None]:
    return clock_jumps(field, -HOUR_S)


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        kill_leader,
        kill_controller,
        kill_any,
        kill_processes,
        freeze_leader,
        freeze_worker,
        freeze_router,
        freeze_controller,
        freeze_all_routers,
        slow_worker,
        leader_without_followers,
        leader_deaf_to_a_follower,
        leader_without_controller,
        controller_without_others,
        controller_mute,
        split,
        broken_connections,
        flapping_connections,
        slow_connections,
        clock_forward,
        clock_back,
    )
}
"""All faults by name."""
CLOCK_FAULTS: Final = ("clock_forward", "clock_back")
"""The faults that need settable clocks."""


# -- the battlefield -----------------------------------------------------------------------------


@contextmanager
def faulty_cluster(
    folder: Path,
    seed: int,
    *,
    has_clocks: bool = False,
    pace_s: float = PACE_S,
    is_steady: bool = False,
    prepare: Callable[[Cluster], None] = lambda _nodes: None,
) -> Iterator[FaultyCluster]:
    """A cluster under load. `prepare` is called before the start. Failure messages contain the
    seed."""
    layout = ClusterLayout(
        "cluster-of-the-test",
        tuple(LocalNode(n, free_port(), free_pair()) for n in range(3)),
    )
    with cluster(folder, layout=layout, settings=SETTINGS) as nodes, ExitStack() as stack:
        gates = [gate for node in layout.nodes for gate in _gates(nodes, node)]
        network = stack.enter_context(
            NodeNetwork(gates, {n: str(node.data) for n, node in nodes.nodes.items()})
        )
        prepare(nodes)
        clocks = _clocks(folder, nodes) if has_clocks else {}
        # Clients must not use a stopped node as bootstrap server.
        stack.callback(nodes.local.kill)
        nodes.start()
        nodes[0].create_topic(TOPIC, partitions=PARTITIONS)
        nodes.wait_until_whole(TOPIC)
        near, far = (
            ",".join(f"127.0.0.1:{gate.port}" for gate in gates if gate.kind == side)
            for side in (NEAR, FAR)
        )
        workload = Workload(
            near,
            TOPIC,
            PARTITIONS,
            aside=[far],
            pace_s=pace_s,
            is_steady=is_steady,
            is_patient=True,
        )
        try:
            workload.begin()
            field = FaultyCluster(nodes, network, workload, random.Random(seed), clocks)
            yield field
            field.end()
        except BaseException as error:
            error.add_note(f"TEST_SEED={seed}")
            raise


def _gates(nodes: Cluster, node: LocalNode) -> Iterable[Gate]:
    """The gates of a node, which announces their ports."""
    listen, near, far = free_pair(), free_port(), free_port()
    gates = [
        Gate(node.peer_port, listen, node.node_id, CONTROLLERS),
        Gate(node.peer_port + 1, listen + 1, node.node_id, WORKERS),
        Gate(free_port(), near, node.node_id, NEAR, CLIENTS),
        Gate(free_port(), far, node.node_id, FAR, CLIENTS),
    ]
    sides = {gate.kind.upper(): gate for gate in gates[2:]}
    bound = {name: gate.target_port for name, gate in sides.items()}
    told = {name: gate.port for name, gate in sides.items()}
    nodes[node.node_id].settings.update(
        {
            "peer.listen": f"127.0.0.1:{listen}",
            "listeners": _addresses({"PLAINTEXT": node.port, **bound}),
            "advertised.listeners": _addresses(told),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", *sides)
            ),
        }
    )
    return gates


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _clocks(folder: Path, nodes: Cluster) -> Mapping[int, Path]:
    """Start each node with its own clock, which a file sets."""
    clocks = {}
    for node_id, node in nodes.nodes.items():
        clock = clocks[node_id] = folder / f"clock-{node_id}"
        clock.write_text("+0")
        node.environment = {
            "LD_PRELOAD": str(FAKETIME[0]),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    return clocks
