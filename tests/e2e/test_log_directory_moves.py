"""Replicas of three nodes move between log directories while they are written and read, lead and
follow, and while processes are killed (KIP-113): nothing is lost, and no replica leaves its ISR
because of a move."""

import json
from pathlib import Path
from typing import NamedTuple

from odradek.protocol.messages.cluster import DescribeLogDirsRequest, ElectLeadersRequest
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.partitions import TopicPartitions
from tests.e2e.checker import anomalies
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.test_log_directories import begin_move
from tests.e2e.test_rebalance import odradek
from tests.e2e.workload import Workload
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
MOVER = 1
"""The node whose replicas move. It leads two partitions and follows in four."""
ALL = list(range(PARTITIONS))
BROKER = 4
SLOW = 1
"""Bytes per second: after the first slice of a process no move copies anything, and so none ends
while records arrive."""


class Replica(NamedTuple):
    """What DescribeLogDirs says about a replica."""

    directory: str
    is_future: bool
    lag: int


def replicas(nodes: Cluster) -> dict[int, list[Replica]]:
    """The replicas of the mover by partition, present ones first."""
    found: dict[int, list[Replica]] = {}
    for result in nodes[MOVER].ask(DescribeLogDirsRequest(topics=None)).results:
        for topic in result.topics:
            for each in topic.partitions if topic.name == TOPIC else ():
                found.setdefault(each.partition_index, []).append(
                    Replica(Path(result.log_dir).name, each.is_future_key, each.offset_lag)
                )
    return {index: sorted(held, key=lambda each: each.is_future) for index, held in found.items()}


def futures(nodes: Cluster) -> list[int]:
    """The partitions with a future replica."""
    return sorted(index for index, held in replicas(nodes).items() if len(held) > 1)


def limit_moves(nodes: Cluster, rate: int | None) -> None:
    """Set or reset the rate of the mover."""
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    config = IncrementalAlterableConfig(
        name=key,
        config_operation=0 if rate is not None else 1,
        value=None if rate is None else str(rate),
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=BROKER, resource_name=str(MOVER), configs=[config]
    )
    (answer,) = nodes[MOVER].ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert not answer.error_code, answer.error_message


def lead(nodes: Cluster, leader: int, *partitions: int) -> None:
    """Let a node lead partitions, by the order of their replicas and an election."""
    order = [leader, (leader + 1) % 3, (leader + 2) % 3]
    nodes.wait_until_whole(TOPIC)
    nodes.reassign(TOPIC, dict.fromkeys(partitions, order))
    elected = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(name=TOPIC, partitions=list(partitions))]
    )
    nodes[nodes.any()].ask(elected)
    wait_until(
        lambda: all(nodes.leader_of(TOPIC, each) == leader for each in partitions),
        what=f"node {leader} leads {partitions}",
    )


def directories(nodes: Cluster) -> list[str]:
    """Where the mover's replicas are, by partition."""
    return [held[0].directory for _, held in sorted(replicas(nodes).items())]


def test_replicas_move_while_they_lead_and_follow_and_processes_are_killed(tmp_path: Path) -> None:
    with cluster(tmp_path, settings={"default.replication.factor": "3"}) as nodes:
        for node_id, node in nodes.nodes.items():
            node.settings["log.dirs"] = str(tmp_path / f"second-{node_id}")
        nodes.start()
        configs = {"min.insync.replicas": "2"}
        nodes.create_at(TOPIC, [[n % 3, (n + 1) % 3, (n + 2) % 3] for n in ALL], configs)
        workload = Workload(nodes.bootstrap_servers, TOPIC, PARTITIONS)
        workload.begin()
        paths = {"data": nodes[MOVER].data, "second-1": tmp_path / "second-1"}
        before = directories(nodes)
        other = {"data": "second-1", "second-1": "data"}
        wanted = [other[each] for each in before]

        def begin_all() -> None:
            for name, path in paths.items():
                partitions = [index for index in ALL if wanted[index] == name]
                assert begin_move(nodes[MOVER], path, *partitions) == [0] * len(partitions)

        limit_moves(nodes, SLOW)
        begin_all()
        lags = wait_until(
            lambda: [held[1].lag for held in replicas(nodes).values()], what="future replicas"
        )
        assert len(lags) == PARTITIONS
        wait_until(
            lambda: all(held[1].lag > 0 for held in replicas(nodes).values()),
            what="all of them lag behind",
        )
        workload.wait_for_progress()
        # On a busy machine a node may be fenced for a moment. Moves keep no replica out of its ISR.
        nodes.wait_until_whole(TOPIC)

        # Leadership comes and goes; one move is called off.
        lead(nodes, MOVER, 0, 3)
        lead(nodes, 2, 1)
        workload.wait_for_progress()
        nodes.wait_until_whole(TOPIC)
        assert futures(nodes) == ALL
        assert begin_move(nodes[MOVER], paths[before[5]], 5) == [0]
        assert futures(nodes) == [0, 1, 2, 3, 4]

        nodes[MOVER].kill_worker()
        nodes[MOVER].wait_until_ready()
        nodes.wait_until_whole(TOPIC)
        assert futures(nodes) == [0, 1, 2, 3, 4]
        nodes[MOVER].kill()
        workload.wait_for_progress(reads=False)
        nodes[MOVER].start()
        nodes.wait_until_whole(TOPIC)
        assert futures(nodes) == [0, 1, 2, 3, 4]

        limit_moves(nodes, None)
        wanted[5] = before[5]
        wait_until(lambda: directories(nodes) == wanted, what="all replicas have moved")
        assert futures(nodes) == []
        nodes.wait_until_whole(TOPIC)
        workload.wait_for_progress()

        # Back again, with a SIGKILL at about the time of the replacement.
        wanted = before
        begin_all()
        there = directories(nodes)
        wait_until(lambda: directories(nodes) != there, what="the first one is back")
        nodes[MOVER].kill_worker()
        nodes[MOVER].wait_until_ready()
        wait_until(lambda: directories(nodes) == before, what="all replicas are back")

        # All is read from the replicas that have moved.
        lead(nodes, MOVER, *ALL)
        workload.end()
        a_plan_moves_replicas_to_nodes_and_directories(nodes, tmp_path)
        assert anomalies(workload.history) == []
        assert "Traceback" not in nodes[MOVER].log()


def a_plan_moves_replicas_to_nodes_and_directories(nodes: Cluster, tmp_path: Path) -> None:
    """A plan of kafka-reassign-partitions: one replica is new on its node, the other one is not."""
    paths = {"data": str(nodes[MOVER].data), "second-1": str(tmp_path / "second-1")}
    other = paths["second-1" if directories(nodes)[1] == "data" else "data"]
    second = paths["second-1"]
    partitions = [
        {"topic": "new", "partition": 0, "replicas": [MOVER, 0], "log_dirs": [second, "any"]},
        {"topic": TOPIC, "partition": 1, "replicas": [1, 2, 0], "log_dirs": [other, "any", "any"]},
    ]
    nodes.create_at("new", [[2, 0]], {})
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    ran = odradek(nodes, "reassign", "start", "--plan", str(plan), "--yes", "-o", "json")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert (result["moved"], result["directory_moves"], result["failed"]) == (1, 2, {})
    assert paths[directories(nodes)[1]] == other
    wait_until(lambda: nodes.partitions("new")[0].replica_nodes == [MOVER, 0], what="new has moved")
    usage = nodes[MOVER].ask(DescribeLogDirsRequest(topics=None)).results
    held = [each.log_dir for each in usage for topic in each.topics if topic.name == "new"]
    assert held == [second]
