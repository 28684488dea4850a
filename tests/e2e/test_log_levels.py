"""Log levels of single modules, changed while three nodes run (KIP-412): on all processes of one
node at once, and on no other node. And what a real node says of a client that is refused again and
again.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.e2e.cluster import SMALL, Cluster, running_cluster
from tests.support.waiting import wait_until

BROKER_LOGGER = 8
WORKER, SHARDS = "odradek.node.worker", "odradek.node.router.shards"
CLOSED, LOADED = "the stores are closed", "a shard is loaded"


def entries(nodes: Cluster, at: int) -> list[dict[str, Any]]:
    """The lines of a node's log that are JSON; what `serve` prints on stdout is there, too."""
    return [json.loads(line) for line in nodes[at].log().splitlines() if line.startswith("{")]


def said(nodes: Cluster, at: int, event: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(nodes, at) if entry["event"] == event]


def levels(nodes: Cluster, of: int, *names: str) -> list[str | None]:
    """The levels of a node's loggers, as that node describes them."""
    resource = DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name=str(of), configuration_keys=list(names)
    )
    [result] = nodes[of].ask(DescribeConfigsRequest(resources=[resource])).results
    assert result.error_code == ErrorCode.NONE
    return [config.value for config in sorted(result.configs, key=lambda each: each.name)]


@pytest.mark.slow
def test_levels_of_modules_change_on_all_processes_of_one_of_three_nodes(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings={**SMALL, "log.level": "INFO"}) as nodes:
        changed, other = 1, 2
        resource = IncrementalAlterConfigsResource(
            resource_type=BROKER_LOGGER,
            resource_name=str(changed),
            configs=[
                IncrementalAlterableConfig(name=WORKER, config_operation=0, value="ERROR"),
                IncrementalAlterableConfig(name=SHARDS, config_operation=0, value="DEBUG"),
            ],
        )
        answer = nodes[changed].ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert [each.error_code for each in answer.responses] == [ErrorCode.NONE]
        assert levels(nodes, changed, SHARDS, WORKER) == ["DEBUG", "ERROR"]
        assert levels(nodes, other, SHARDS, WORKER) == ["INFO", "INFO"]
        # The supervisor says it, with this node's id.
        [first, second] = said(nodes, changed, "a log level has changed")
        assert {first["changed_logger"], second["changed_logger"]} == {WORKER, SHARDS}
        assert (first["node"], first["process"]) == (changed, "supervisor")
        # The shards of groups are on all nodes: one router says that it loads its own.
        nodes[0].ask(FindCoordinatorRequest(coordinator_keys=["readers"]))
        wait_until(lambda: bool(said(nodes, changed, LOADED)), what="the router is at DEBUG")
        assert {entry["process"] for entry in said(nodes, changed, LOADED)} == {"router-0"}
        assert not said(nodes, other, LOADED)
        # A client that speaks HTTP, again and again.
        address, _, port = nodes[other].bootstrap_servers.rpartition(":")
        for _ in range(10):
            with socket.create_connection((address, int(port)), timeout=10) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert client.recv(1) == b""
        for node_id in (changed, other):
            nodes[node_id].stop()
            assert said(nodes, node_id, "shutting down")
        assert said(nodes, other, CLOSED)
        assert not said(nodes, changed, CLOSED), "the worker is at ERROR"
        refused = said(nodes, other, "closing the connection")
        assert [entry.get("repeated") for entry in refused] == [None, 9]
        assert all(entry["client_address"] == address for entry in refused)
