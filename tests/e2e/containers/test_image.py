"""The image: what is in it, and how a container of it starts, is checked and ends."""

import json
from pathlib import Path

import docker
import pytest

from tests.e2e.conftest import Report
from tests.e2e.containers.conftest import BASE
from tests.e2e.containers.nodes import FAST_HEALTH, MIB, ContainerCluster, ContainerNode
from tests.support.waiting import wait_until

ABOVE_BASE_BYTES_MAX = 200 * MIB
IDLE_BYTES_MAX = 150 * MIB
WHICH_WALKER = "from odradek.protocol import record_walker as w; print(w.__file__)"
LEAVES_AN_ORPHAN = (
    "import os\nif not os.fork():\n    if not os.fork():\n        os._exit(0)\n    os._exit(0)\n"
)
STATES = (
    "import pathlib\n"
    "for p in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
    "    print(p.read_text().rpartition(')')[2].split()[0])\n"
)


def test_it_is_small_and_its_user_is_not_root(
    engine: docker.DockerClient, image: str, report: Report
) -> None:
    attributes = engine.images.get(image).attrs
    base = engine.images.get(BASE).attrs["Size"]
    report(f"{(attributes['Size'] - base) / MIB:.0f} MiB above its base")
    assert attributes["Size"] - base < ABOVE_BASE_BYTES_MAX
    assert attributes["Config"]["User"] == "10001:10001"
    assert attributes["Config"]["Entrypoint"] == ["odradek"]


def test_what_runs_for_every_record_is_compiled(engine: docker.DockerClient, image: str) -> None:
    shown = engine.containers.run(
        image, ["-P", "-c", WHICH_WALKER], entrypoint="python", remove=True
    )
    assert shown.decode().strip().endswith(".so")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ODRADEK_LOG_RETENTON_MS": "1"}, "log.retention.ms"),
        ({"ODRADEK_NODE_ID": "auto"}, "does not end in a number"),
    ],
)
def test_a_wrong_variable_is_refused(
    engine: docker.DockerClient, image: str, variables: dict[str, str], told: str
) -> None:
    container = engine.containers.run(
        image, detach=True, environment=variables, hostname="broker", read_only=True
    )
    try:
        assert container.wait()["StatusCode"] == 1
        assert told in container.logs().decode()
    finally:
        container.remove(v=True, force=True)


def test_a_file_is_not_overridden_by_the_image(
    engine: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    file = tmp_path / "node.properties"
    file.write_text("node.id=5\nlisteners=CLIENTS://:19092\nhttp.listen=127.0.0.1:8081\n")
    tmp_path.chmod(0o755)
    container = engine.containers.run(
        image,
        ["node", "start", "--format", "--config", "/etc/odradek/node.properties"],
        detach=True,
        volumes={str(file): {"bind": "/etc/odradek/node.properties", "mode": "ro"}},
        healthcheck=FAST_HEALTH,
    )
    node = ContainerNode(container, "node-5", 0)
    try:
        node.wait_until_healthy()
        assert (
            '"listener":"CLIENTS","security_protocol":"PLAINTEXT","host":"","port":19092'
            in node.log()
        )
        told = node.run("odradek", "-b", "127.0.0.1:19092", "broker", "list", "-o", "json")[1]
        assert [row["id"] for row in json.loads(told)] == [5]
        assert node.run("odradek", "node", "ready", "--http", "127.0.0.1:8081")[0] == 0
    finally:
        container.remove(v=True, force=True)


def test_a_node_on_a_read_only_root_is_checked_reaps_orphans_and_stops(
    nodes: ContainerCluster, report: Report
) -> None:
    took_s = nodes.start([2], voters=[2])
    node = nodes[2]
    report(f"healthy {took_s:.1f} s after the start; idle: {node.memory()}")
    assert nodes.brokers(2) == {2: ("localhost", node.port)}
    assert node.memory().working_set_bytes < IDLE_BYTES_MAX
    assert node.run("touch", "/opt/odradek/x")[0] != 0
    code, text = node.run("odradek", "node", "ready")
    assert (code, text.splitlines()[0]) == (0, "controller ready")
    # Process 1 of the container gets what loses its parent.
    assert node.run("python", "-c", LEAVES_AN_ORPHAN) == (0, "")
    wait_until(lambda: "Z" not in node.run("python", "-c", STATES)[1], what="no zombie is left")
    assert node.stop() == 0
    assert '"event":"shutting down","signal":"SIGTERM"' in node.log()
    node.start()
    node.wait_until_healthy()
    assert nodes.brokers(2) == {2: ("localhost", node.port)}
