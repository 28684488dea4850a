"""compose.yaml: what it sets, and a cluster that it brings up, with a job of the data pipeline.

All but the first part needs an engine and the compose plugin. Prometheus runs in an image that is
made of the program on this machine, as registries are not everywhere; $PROMETHEUS_IMAGE names
another one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import docker
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from docker.models.containers import Container

from odradek.node.blocking_client import BlockingClient
from odradek.node.cli.main import cli
from odradek.node.config import load
from odradek.protocol.messages.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.containers.conftest import BASE, REPOSITORY
from tests.e2e.containers.nodes import ContainerNode
from tests.e2e.workload import Workload
from tests.support.helm_chart import program
from tests.support.monitoring import ALERTS
from tests.support.waiting import wait_until

PROJECT = "odradek-test-compose"
PORTS = {0: 9092, 1: 9093, 2: 9094}
BOOTSTRAP = ",".join(f"localhost:{port}" for port in PORTS.values())
HEALTHY_S_MAX = 20.0
GAP_S_MAX = 2.0
COMPOSE_S = 120
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
PROMETHEUS_DOCKERFILE = f"""
FROM {BASE}
COPY prometheus promtool /bin/
RUN install -d -o nobody /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
NODES = [name for name in COMPOSE["services"] if name.startswith("node-")]


def by_itself(text: str) -> str:
    """With the values that compose.yaml has for variables."""
    while "${" in text:
        before, _, rest = text.partition("${")
        variable, _, behind = rest.partition("}")
        text = before + variable.partition(":-")[2] + behind
    return text


def environment(service: str, secret: Path) -> dict[str, str]:
    """The variables of a service."""
    written = COMPOSE["services"][service]["environment"]
    found = {name: by_itself(str(value)) for name, value in written.items()}
    return {**found, "ODRADEK_CLUSTER_SECRET_FILE": str(secret), "ODRADEK_DATA": "/data"}


@pytest.mark.parametrize("service", NODES)
def test_the_settings_of_each_node_are_valid(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of enough characters\n")
    host = COMPOSE["services"][service]["hostname"]
    monkeypatch.setattr("socket.gethostname", lambda: host)
    config = load(environment=environment(service, secret))
    assert host == service == f"node-{config.node_id}"
    assert config.own_peer is not None
    assert (config.own_peer.host, config.own_peer.port) == (host, 9192)
    (published,) = COMPOSE["services"][service]["ports"]
    inside, outside = config.listeners
    assert (inside.advertised_host, inside.advertised_port) == (host, inside.port)
    assert published.endswith(f":{outside.advertised_port}:{outside.port}")
    assert published.startswith("${ODRADEK_BIND:-127.0.0.1}:")
    mounted = [each.partition(":")[0] for each in COMPOSE["services"][service]["volumes"]]
    assert mounted == [f"data-{config.node_id}", "secret"]
    assert COMPOSE["volumes"].keys() >= set(mounted)


def test_the_job_of_the_pipeline_has_valid_options() -> None:
    words = [by_itself(each) for each in COMPOSE["services"]["pipeline"]["command"]]
    done = CliRunner().invoke(cli, ["pipe", *words, "--help"])
    assert done.exit_code == 0, done.output
    assert "--table=events" in words


def test_no_two_nodes_share_a_port_or_a_volume() -> None:
    services = [COMPOSE["services"][name] for name in NODES]
    for key in ("ports", "volumes"):
        firsts = [service[key][0] for service in services]
        assert len(set(firsts)) == len(firsts)


def compose(*arguments: str, check: bool = True) -> str:
    """`docker compose` for the file of the repository."""
    done = subprocess.run(
        ["docker", "compose", "--project-name", PROJECT, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=COMPOSE_S,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def cluster(engine: docker.DockerClient, image: str) -> Iterator[float]:
    """The three nodes, up and healthy; how long that took, in seconds."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode:
        pytest.skip("the docker command has no compose plugin here")
    engine.images.get(image).tag("odradek")
    clock = Path("/proc/uptime")
    try:
        began = float(clock.read_text().split()[0])
        compose("up", "--no-build", "--wait", "--wait-timeout", "90")
        yield float(clock.read_text().split()[0]) - began
    except BaseException as error:
        error.add_note(compose("logs", "--tail", "30", check=False)[-8000:])
        raise
    finally:
        compose("--profile", "*", "down", "--volumes", "--timeout", "60", check=False)


def container(engine: docker.DockerClient, service: str) -> Container:
    (found,) = engine.containers.list(
        all=True,
        filters={
            "label": [
                f"com.docker.compose.project={PROJECT}",
                f"com.docker.compose.service={service}",
            ]
        },
    )
    return found


def brokers(port: int) -> set[tuple[int, str, int]]:
    with BlockingClient("localhost", port, timeout_s=10) as client:
        answer = client.ask(DescribeClusterRequest())
    return {(each.broker_id, each.host, each.port) for each in answer.brokers}


def create_topic(name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=3)
    with BlockingClient("localhost", PORTS[0], timeout_s=10) as client:
        answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert not answer.topics[0].error_code, answer.topics[0].error_message
    wait_until(lambda: all_in_sync(name, partitions), timeout_s=90, what=f"{name} is whole")


def test_one_command_makes_a_cluster_for_the_host_and_for_containers_which_survives_kills(
    cluster: float, engine: docker.DockerClient, report: Report
) -> None:
    report(f"three nodes healthy after {cluster:.1f} s")
    assert cluster < HEALTHY_S_MAX
    expected = {(node_id, "localhost", port) for node_id, port in PORTS.items()}
    for port in PORTS.values():
        wait_until(lambda port=port: brokers(port) == expected, what="all brokers are advertised")  # type: ignore[misc]

    create_topic("greetings", 3)
    node = container(engine, "node-0")
    words = ["odradek", "-b", "node-0:19092"]
    done = node.exec_run([*words, "produce", "greetings", "from a container"])
    assert done.exit_code == 0, done.output
    producer = Producer({"bootstrap.servers": "localhost:9093"})
    producer.produce("greetings", b"from the host")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": "localhost:9094",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["greetings"])
    read: set[bytes | None] = set()
    while len(read) < 2:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        read.add(message.value())
    consumer.close()
    assert read == {b"from a container", b"from the host"}
    other = container(engine, "node-1")
    done = other.exec_run(["odradek", "-b", "node-2:19092", "consume", "greetings"])
    assert sorted(done.output.decode().split("\n")) == ["", "from a container", "from the host"]

    create_topic("orders", 6)
    workload = Workload(BOOTSTRAP, "orders", 6)
    workload.begin()
    gaps = []
    for service in ("node-0", "node-1", "node-2"):
        victim = container(engine, service)

        def kill(victim: Container = victim) -> None:
            victim.kill()
            victim.wait()

        gaps.append(workload.measure(kill))
        compose("up", "--no-build", "--wait", "--wait-timeout", "90")
        wait_until(lambda: all_in_sync("orders", 6), timeout_s=90, what="all replicas are in sync")
    workload.end()
    report("longest time without an acknowledgement: " + ", ".join(f"{gap:.2f} s" for gap in gaps))
    assert max(gaps) <= GAP_S_MAX
    assert anomalies(workload.history) == []


def all_in_sync(topic: str, partition_count: int) -> bool:
    with BlockingClient("localhost", PORTS[0], timeout_s=10) as client:
        answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    found = answer.topics[0].partitions
    return len(found) == partition_count and all(
        each.leader_id >= 0 and len(each.isr_nodes) == 3 for each in found
    )


# -- the job of the data pipeline ------------------------------------------------------------------

OF_PIPELINE = ("--profile", "pipeline")
VERIFY = "odradek pipe verify --name events --topics events --table events --output json"
DROP_A_ROW = """
import pathlib, pyarrow.parquet as pq
path = sorted(pathlib.Path("events").rglob("*.parquet"))[0]
pq.write_table(pq.ParquetFile(path).read().slice(1), path)
"""


@pytest.fixture
def pipeline(
    pipeline_image: str,
    cluster: float,
    engine: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image for the service `pipeline`, and all nodes."""
    engine.images.get(pipeline_image).tag("odradek-pipeline")
    # So that most of the time a plan runs.
    monkeypatch.setenv("ODRADEK_PIPE_EVERY", "500ms")
    compose("up", "--no-build", "--wait", "--wait-timeout", "90")


def verify(job: Container) -> tuple[int, dict[str, Any]]:
    """The exit code of `verify` beside the running job, and its report."""
    done = job.exec_run(VERIFY, demux=True)
    told, errors = done.output
    assert told is not None, errors
    return done.exit_code, json.loads(told)


def plan_number(job: Container) -> int:
    """Of the newest plan that the job told since its container was made; 0 without one."""
    lines = job.logs().decode().splitlines()
    return max(
        (int(line.split()[1].rstrip(":")) for line in lines if line.startswith("plan ")), default=0
    )


def wait_for_plans(job: Container, count: int) -> None:
    wanted = plan_number(job) + count
    wait_until(
        lambda: plan_number(job) >= wanted, timeout_s=180, what=f"plan {wanted} is committed"
    )


def lag(topic: str, partitions: int) -> int:
    """Of the job's group, in records."""
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": f"pipe.{topic}"})
    try:
        named = [TopicPartition(topic, each) for each in range(partitions)]
        ends = [consumer.get_watermark_offsets(each, timeout=30)[1] for each in named]
        committed = [max(0, each.offset) for each in consumer.committed(named, timeout=30)]
    finally:
        consumer.close()
    return sum(ends) - sum(committed)


def test_a_topic_is_in_its_table_exactly_once_though_the_job_and_nodes_are_killed(
    pipeline: None, engine: docker.DockerClient, report: Report
) -> None:
    compose(*OF_PIPELINE, "up", "--no-build", "--detach", "pipeline")
    job = container(engine, "pipeline")
    wait_until(
        lambda: b"topic events does not exist" in job.logs(),
        timeout_s=60,
        what="the job says that it has no topic",
    )
    create_topic("events", 3)
    workload = Workload(BOOTSTRAP, "events", 3)
    workload.begin()
    compose(*OF_PIPELINE, "up", "--no-build", "--wait", "--wait-timeout", "90", "pipeline")
    wait_for_plans(job, 2)
    for _ in range(2):
        job.kill()
        job.wait()
        # Another container than the one that was killed: only the volume is left of it.
        compose(*OF_PIPELINE, "rm", "--force", "pipeline")
        compose(*OF_PIPELINE, "up", "--no-build", "--detach", "--no-deps", "pipeline")
        job = container(engine, "pipeline")
        wait_for_plans(job, 2)
    for service in ("node-0", "node-2"):
        node = container(engine, service)
        node.kill()
        node.wait()
        workload.wait_for_progress()
        wait_for_plans(job, 1)
        compose("up", "--no-build", "--wait", "--wait-timeout", "90")
        wait_until(lambda: all_in_sync("events", 3), timeout_s=90, what="all replicas are in sync")
    workload.end()
    assert anomalies(workload.history) == []
    wait_until(lambda: lag("events", 3) == 0, timeout_s=90, what="the job has moved everything")
    report(f"the container of the job: {ContainerNode(job, 'pipeline', 0).memory()}")
    job.reload()
    assert job.attrs["RestartCount"] == 0
    exit_code, found = verify(job)
    assert (exit_code, found["findings"]) == (0, {})
    moved = {each["partition"]: each["rows"] for each in found["partitions"]}
    assert moved == {number: len(records) for number, records in workload.history.log.items()}
    # The proof is one: what is missing is found.
    done = job.exec_run(["python", "-c", DROP_A_ROW])
    assert done.exit_code == 0, done.output
    exit_code, found = verify(job)
    assert (exit_code, found["findings"]["missing"]["count"]) == (1, 1)
    assert job.exec_run(["touch", "/opt/odradek/x"]).exit_code != 0
    job.stop(timeout=60)
    assert job.wait()["StatusCode"] == 0


# -- Prometheus ------------------------------------------------------------------------------------


@pytest.fixture
def prometheus(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image for the service `prometheus`."""
    if "PROMETHEUS_IMAGE" in os.environ:
        return
    for name in ("prometheus", "promtool"):
        shutil.copy(program(name, "of Prometheus (Debian: prometheus)"), tmp_path)
    (tmp_path / "Dockerfile").write_text(PROMETHEUS_DOCKERFILE)
    name = f"{PROJECT}-prometheus"
    engine.images.build(path=str(tmp_path), tag=name, rm=True, forcerm=True)
    monkeypatch.setenv("PROMETHEUS_IMAGE", name)


def of_prometheus(path: str) -> Any:  # noqa: ANN401 - a JSON document
    with urlopen(f"http://localhost:9090/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]


def healths() -> dict[str, str]:
    """The states of the targets of Prometheus, by their instance."""
    targets = of_prometheus("targets")["activeTargets"]
    return {each["labels"]["instance"]: each["health"] for each in targets}


def test_prometheus_scrapes_all_nodes_and_has_the_alert_rules(
    prometheus: None, cluster: float, engine: docker.DockerClient
) -> None:
    compose("--profile", "prometheus", "up", "--no-build", "--wait", "--wait-timeout", "60")
    (group,) = of_prometheus("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    container(engine, "node-2").kill()
    expected = {"node-0": "up", "node-1": "up", "node-2": "down"}
    wait_until(lambda: healths() == expected, timeout_s=60, what="all nodes are scraped")
    found = of_prometheus("query?query=count+by+(namespace,+job)+(odradek_uptime_seconds)")
    (series,) = found["result"]
    assert series["metric"] == {"namespace": "compose", "job": "odradek"}
    assert series["value"][1] == "2"
    health = {
        rule["health"] for group in of_prometheus("rules")["groups"] for rule in group["rules"]
    }
    assert "err" not in health
