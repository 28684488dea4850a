"""The secret of a cluster is replaced under load, and no secret is shown anywhere."""

import json
import re
import time
import urllib.request
from pathlib import Path

from odradek.node.bus.curve import cluster_keys
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.configs import (
    DescribeConfigSourcesRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tests.e2e.checker import anomalies
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.conftest import Report
from tests.e2e.workload import Workload
from tests.support.ports import free_port
from tests.support.waiting import wait_until

OLD, NEW = "cluster-secret-of-yesterday", "cluster-secret-of-tomorrow"
TOPIC = "orders"
GAP_S = 3.0
"""The longest time without an acknowledgement that is promised while the secret is replaced."""
BROKER = 4
"""The type of brokers in DescribeConfigs."""
PASSWORD, TOKEN_KEY = "password-of-a-user-of-plain", "key-of-the-delegation-tokens"
USERS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_u="{PASSWORD}";'


def write(nodes: Cluster, node_id: int, *secrets: str) -> None:
    """Give a node these secrets, and wait until it uses them."""
    Path(nodes[node_id].settings["cluster.secret.file"]).write_text("\n".join(secrets))
    wanted = [keys.fingerprint for keys in cluster_keys(secrets)]
    request = DescribeConfigSourcesRequest(keys=[])
    wait_until(
        lambda: nodes[node_id].ask(request).secrets == wanted,
        timeout_s=30,
        what=f"node {node_id} has the secrets",
    )


def metrics(node: EmbeddedBroker) -> str:
    state = json.loads((node.data / "node.json").read_text())
    with urllib.request.urlopen(f"http://{state['http']}/metrics", timeout=10) as response:
        return str(response.read().decode())


def metric(node: EmbeddedBroker, name: str) -> float:
    """The sum over the node's processes and labels."""
    found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics(node), re.MULTILINE)
    return sum(map(float, found))


def wait_until_alike(nodes: Cluster, count: int) -> None:
    """What docs/operating.md tells operators to wait for before the next step."""

    def are_alike() -> bool:
        return all(
            metric(node, "odradek_cluster_secrets") == count
            and metric(node, "odradek_peers_with_other_secrets") == 0
            for node in nodes.nodes.values()
        )

    wait_until(are_alike, timeout_s=30, what="all nodes have the same secrets")


def replace_secret(nodes: Cluster) -> None:
    for node_id in nodes.nodes:
        Path(nodes[node_id].settings["cluster.secret.file"]).write_text(f"{OLD}\n{NEW}\n")
    wait_until_alike(nodes, 2)
    # One node listens with the new secret while the others listen with the old one.
    first, *others = nodes.nodes
    write(nodes, first, NEW, OLD)
    for node_id in others:
        Path(nodes[node_id].settings["cluster.secret.file"]).write_text(f"{NEW}\n{OLD}\n")
    wait_until_alike(nodes, 2)
    for node_id in nodes.nodes:
        Path(nodes[node_id].settings["cluster.secret.file"]).write_text(NEW)
    wait_until_alike(nodes, 1)


def shown_by(node: EmbeddedBroker) -> dict[str, str]:
    """All that a node shows to others: users of its machine, clients, and readers of its files."""
    processes = {"supervisor": node.pid, **node.processes}
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes.values()]
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=node.settings["node.id"], configuration_keys=None
    )
    described = node.ask(
        DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
    )
    sources = node.ask(DescribeConfigSourcesRequest(keys=None))
    assert "cluster.secret.file" in {key.name for key in sources.keys}
    files = [
        path
        for path in node.directory.rglob("*")
        if path.is_file() and path.stat().st_size < 64 << 20
    ]
    return {
        "log": node.log(),
        "arguments": " ".join(arguments),
        "configs": repr(described),
        "sources": repr(sources),
        "metrics": metrics(node),
        "files": "".join(path.read_bytes().decode("latin-1") for path in files),
    }


def test_the_secret_is_replaced_under_load_and_no_secret_is_shown(
    tmp_path: Path, report: Report
) -> None:
    with cluster(tmp_path) as nodes:
        for node_id, node in nodes.nodes.items():
            own = tmp_path / f"secret-{node_id}"
            own.write_text(OLD)
            node.settings |= {
                "cluster.secret.file": str(own),
                "listeners": f"PLAINTEXT://127.0.0.1:{node.bootstrap_servers.rpartition(':')[2]}"
                f",CLIENTS://127.0.0.1:{free_port()}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.clients.plain.sasl.jaas.config": USERS,
                "delegation.token.secret.key": TOKEN_KEY,
                "http.listen": "127.0.0.1:0",
                "log.level": "DEBUG",
            }
        nodes.start()
        began_as = {node_id: node.processes for node_id, node in nodes.nodes.items()}
        nodes[0].create_topic(TOPIC, partitions=3, configs={"min.insync.replicas": "2"})
        nodes.wait_until_whole(TOPIC)
        workload = Workload(nodes.bootstrap_servers, TOPIC, 3)
        workload.begin()
        began = time.monotonic()
        gap_s = workload.measure(lambda: replace_secret(nodes))
        took_s = time.monotonic() - began
        report(f"the secret was replaced in {took_s:.1f} s, longest gap {gap_s:.2f} s")
        assert gap_s < GAP_S
        nodes.wait_until_whole(TOPIC)
        for node in nodes.nodes.values():
            assert "wrong or missing cluster secret" not in node.log()

        # A node that has the former secret only is not of this cluster any more.
        write(nodes, 2, OLD)
        nodes.wait_for_brokers(0, {0, 1})
        nodes.wait_until_said(0, "wrong or missing cluster secret")
        assert re.search(r'peer_messages_lost_total\{.*reason="refused"\} [1-9]', metrics(nodes[0]))
        write(nodes, 2, NEW)
        nodes.wait_for_brokers(0, {0, 1, 2})
        nodes.wait_until_whole(TOPIC)
        assert nodes[0].log().count("wrong or missing cluster secret") == 1
        workload.end()
        assert anomalies(workload.history) == []
        processes = {node_id: node.processes for node_id, node in nodes.nodes.items()}
        assert processes == began_as, "no process was restarted"
        for node in nodes.nodes.values():
            for where, text in shown_by(node).items():
                for secret in (OLD, NEW, PASSWORD, TOKEN_KEY):
                    assert secret not in text, f"{where} of a node: {secret}"
