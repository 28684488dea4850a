"""Nodes are restarted in turn under load, as for an upgrade: no client has a failed request.

Three replicas, min.insync.replicas 2, an idempotent producer and a group of readers, all with their
defaults. Each node is told to stop (SIGTERM), started again, and waited for until its replicas are
in sync everywhere. A node that stops lets others lead first, so that what clients see is a leader
that has moved, and never one that is gone.
"""

import time
from pathlib import Path

import pytest

from node.cli.asker import Asker
from node.cli.client import split_address
from node.local_cluster import LocalCluster
from protocol.messages.cluster import ElectLeadersRequest, ElectLeadersResponse
from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.test_failover import (
    PARTITIONS,
    READERS,
    WAIT_S,
    Scene,
    active_controller,
    cluster,
)
from tests.support.waiting import wait_until


def restart(scene: Scene, node_id: int) -> tuple[float, float, float]:
    """Stop a node and start it again; how long it took to stop, and the longest gaps of a producer
    while it stopped and while it came back."""
    node = scene.nodes.nodes[node_id]
    begin = time.monotonic()
    node.stop()
    stopped = time.monotonic()
    scene.wait_for_progress()
    node.start()
    scene.wait_until_whole()
    scene.wait_for_progress()
    end = time.monotonic()
    gaps = scene.writer.longest_gap_s(begin, stopped), scene.writer.longest_gap_s(stopped, end)
    return stopped - begin, *gaps


def elect_preferred_leaders(nodes: LocalCluster) -> None:
    """What the controller does by itself every five minutes."""
    address = next(iter(nodes.nodes.values())).bootstrap_servers
    with Asker(*split_address(address), 10.0) as asker:
        request = ElectLeadersRequest(election_type=0, topic_partitions=None)
        assert asker.ask(request, ElectLeadersResponse).error_code == 0


@pytest.mark.slow
def test_no_client_has_a_failed_request_when_nodes_are_restarted_in_turn(
    tmp_path: Path, report: Report
) -> None:
    with cluster(tmp_path) as nodes:
        scene = Scene(nodes)
        wait_until(
            lambda: all(
                len(reader.partitions) == PARTITIONS // READERS for reader in scene.readers
            ),
            timeout_s=WAIT_S,
            what="the group has come to rest",
        )
        assignments = [reader.assignments for reader in scene.readers]
        first = active_controller(nodes)
        for node_id in (first, *(n for n in nodes.nodes if n != first)):
            stop_s, stopping_s, starting_s = restart(scene, node_id)
            report(
                f"node {node_id}: longest gap of a producer {stopping_s:.2f} s while it stopped"
                f" (for {stop_s:.2f} s), {starting_s:.2f} s while it came back"
            )
        begin = time.monotonic()
        elect_preferred_leaders(nodes)
        scene.wait_for_progress()
        gap_s = scene.writer.longest_gap_s(begin, time.monotonic())
        report(f"leaders go back: longest gap {gap_s:.2f} s")
        scene.end()
        assert anomalies(scene.history) == []
        assert [reader.assignments for reader in scene.readers] == assignments, "no rebalance"
