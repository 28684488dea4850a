"""The Helm chart, played on a Docker engine: installed, tested, scaled and upgraded under load."""

import secrets
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import docker
import pytest

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.certificate_authority import CertificateAuthority
from odradek.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.e2e.checker import anomalies
from tests.e2e.conftest import Report
from tests.e2e.containers.chart_pods import ChartPods
from tests.e2e.workload import Workload
from tests.support.helm_chart import Manifest, rendered
from tests.support.kubernetes_api import KubernetesApi
from tests.support.ports import free_row
from tests.support.service_player import services_of
from tests.support.stateful_set_player import (
    SERVICE_ACCOUNT,
    Machine,
    PlayedPod,
    Secrets,
    pod_of,
    pods_of_stateful_set,
    rollout_of,
)
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 6
NAME = "kafka-odradek"
HOST = "broker-{ordinal}.kafka.example.com"
BOOTSTRAP_HOST = "bootstrap.kafka.example.com"
GATEWAY_PORT = 9094
"""The chart's default."""
SECRETS = {"kafka-cluster-secret": {"secret": b"0123456789abcdef0123456789abcdef"}}
NODES_MAX = 4


class Release:
    """The chart with values that change from one upgrade to the next. Its pods are ready sooner and
    its probes are quicker than by default, which saves the test time."""

    def __init__(self, image: str, first_port: int) -> None:
        repository, _, tag = image.rpartition(":")
        self.first_port = first_port
        self.bootstrap_port = first_port + NODES_MAX
        self._settings = (
            f"image.repository={repository},image.tag={tag},workers=1,restartOnConfigChange=true",
            "externalAccess.enabled=true,externalAccess.type=NodePort,externalAccess.host=localhost",
            f"externalAccess.nodePort.first={first_port}",
            f"externalAccess.nodePort.bootstrap={self.bootstrap_port}",
            "scaleDown.hook=always,scaleUp.hook=always,minReadySeconds=1,preStopSleepSeconds=1",
            "probes.liveness.periodSeconds=1,probes.liveness.failureThreshold=3",
            "probes.liveness.timeoutSeconds=2,probes.liveness.terminationGracePeriodSeconds=1",
        )

    def manifests(self, *settings: str) -> list[Manifest]:
        return rendered("standard", *self._settings, *settings)

    def pods(self, *settings: str) -> list[PlayedPod]:
        return pods_of_stateful_set(self.manifests(*settings), SECRETS)

    def command(self, kind: str, name: str, *settings: str) -> PlayedPod:
        return pod_of(self.manifests(*settings), kind, f"{NAME}-{name}", SECRETS)

    def brokers(self) -> set[int]:
        with BlockingClient("localhost", self.bootstrap_port, timeout_s=10) as client:
            answer = client.ask(DescribeClusterRequest(include_fenced_brokers=True))
        return {each.broker_id for each in answer.brokers}

    def balance(self) -> dict[int, tuple[int, int]]:
        """How many replicas and leaders of all topics each node has."""
        with BlockingClient("localhost", self.bootstrap_port, timeout_s=10) as client:
            answer = client.ask(MetadataRequest(topics=None))
        partitions = [each for topic in answer.topics for each in topic.partitions]
        replicas = Counter(node for each in partitions for node in each.replica_nodes)
        leaders = Counter(each.leader_id for each in partitions)
        return {node: (replicas[node], leaders[node]) for node in replicas.keys() | leaders.keys()}

    def is_balanced(self, node_count: int) -> bool:
        held = self.balance()
        return held.keys() == set(range(node_count)) and all(
            max(each) - min(each) <= 1 for each in zip(*held.values(), strict=True)
        )


class NewClients(threading.Thread):
    """Connects to the bootstrap Service all the time, as clients that start, and asks for the
    cluster. `complaints` are the attempts that failed."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ending = threading.Event()
        self.count = 0
        self.complaints: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(0.05):
            self.count += 1
            try:
                with BlockingClient("localhost", self._port, timeout_s=10) as client:
                    client.ask(MetadataRequest(topics=None))
            except (OSError, NotABrokerError) as error:
                self.complaints.append(repr(error))

    def end(self) -> None:
        self._ending.set()
        self.join(20)


@pytest.fixture
def release(image: str) -> Release:
    return Release(image, free_row(NODES_MAX + 1))


@pytest.fixture
def pods(engine: docker.DockerClient, tmp_path: Path) -> Iterator[ChartPods]:
    """No pod yet; all are removed at the end of the test."""
    prefix = f"odradek-test-{uuid.uuid4().hex[:8]}"
    made = ChartPods(engine, prefix, tmp_path, gateway_port=GATEWAY_PORT)
    try:
        yield made
    finally:
        made.remove()


def create_topic(release: Release) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=-1)
    with BlockingClient("localhost", release.first_port, timeout_s=30) as client:
        answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    assert not answer.topics[0].error_code, answer.topics[0].error_message


def hardened_secrets(authority: CertificateAuthority) -> Secrets:
    """What the values of `hardened` and `pipeline` name: a new certificate, and passwords."""
    headless = f"*.{NAME}-headless.events.svc.cluster.local"
    names = (headless, f"{NAME}-bootstrap.events.svc.cluster.local", "*.kafka.example.com")
    passwords = {
        f"kafka-{user}": {"password": secrets.token_urlsafe(16).encode()}
        for user in ("admin", "app", "reports", "archive")
    }
    for user, name in (("root", "kafka-admin"), ("archive", "kafka-archive")):
        login = f"sasl.username={user}\nsasl.password={passwords[name]['password'].decode()}\n"
        passwords[name]["client.properties"] = login.encode()
    return {
        **SECRETS,
        **passwords,
        "kafka-tls": {
            "tls-combined.pem": authority.issue("broker", names, datetime.now(UTC)).encode(),
            "ca.crt": authority.certificate.encode(),
        },
    }


@pytest.mark.slow
def test_a_node_learns_its_rack_and_the_address_of_its_machine(
    image: str, pods: ChartPods, tmp_path: Path
) -> None:
    port = free_row(2)
    repository, _, tag = image.rpartition(":")
    manifests = rendered(
        "dev",
        f"image.repository={repository},image.tag={tag},rack.enabled=true,rack.source=nodeLabel",
        "externalAccess.enabled=true,externalAccess.type=NodePort",
        f"externalAccess.nodePort.first={port},externalAccess.nodePort.bootstrap={port + 1}",
    )
    machine = Machine("machine-b", "127.0.0.1")
    labels = {machine.name: {"topology.kubernetes.io/zone": "zone-b"}}
    with closing(KubernetesApi(tmp_path, labels, pods.address)) as api:
        pods.environment |= api.environment
        names = ("token", "ca.crt")
        given = {SERVICE_ACCOUNT: {name: (tmp_path / name).read_bytes() for name in names}}
        pods.serve(services_of(manifests))
        (pod,) = pods_of_stateful_set(manifests, given, machines=[machine])
        pods.start([pod], rollout_of(manifests))
    with BlockingClient("localhost", port + 1, timeout_s=10) as client:
        (broker,) = client.ask(DescribeClusterRequest()).brokers
    assert (broker.host, broker.port, broker.rack) == ("127.0.0.1", port, "zone-b")


@pytest.mark.slow
def test_a_hardened_release_lets_in_only_who_logs_in_and_follows_its_certificate(
    image: str, pods: ChartPods
) -> None:
    repository, _, tag = image.rpartition(":")
    manifests = rendered(
        "hardened",
        f"image.repository={repository},image.tag={tag},workers=1",
        f"externalAccess.enabled=true,externalAccess.type=Gateway,externalAccess.host={HOST}",
        f"externalAccess.gateway.bootstrapHost={BOOTSTRAP_HOST}",
        "externalAccess.gateway.parentRefs[0].name=edge",
    )
    authority = CertificateAuthority.create("authority of a test", datetime.now(UTC))
    given = hardened_secrets(authority)
    pods.serve(services_of(manifests))
    pods.start(pods_of_stateful_set(manifests, given), rollout_of(manifests))
    test = pod_of(manifests, "Pod", f"{NAME}-test", given)
    code, output = pods.run(test)
    assert code == 0, output

    outside = [replace(each, command=by_gateway(each.command)) for each in test.containers]
    code, output = pods.run(replace(test, initial=(), containers=tuple(outside)))
    assert code == 0, output

    wrong = b"sasl.username=root\nsasl.password=wrong\n"
    others = {**given, "kafka-admin": {**given["kafka-admin"], "client.properties": wrong}}
    code, output = pods.run(pod_of(manifests, "Pod", f"{NAME}-test", others))
    assert code == 1
    assert "authentication" in output.lower()

    renewed = hardened_secrets(authority)
    pods.write_files(pods_of_stateful_set(manifests, {**given, "kafka-tls": renewed["kafka-tls"]}))
    chain = renewed["kafka-tls"]["tls-combined.pem"].decode()
    addresses = [(pods.pod_address(name), 9092) for name in pods.names]
    wait_until(
        lambda: all(ssl.get_server_certificate(each).strip() in chain for each in addresses),
        what="all nodes have the new certificate",
    )
    assert not pods.restarts


def by_gateway(command: tuple[str, ...]) -> tuple[str, ...]:
    """A command of the chart, as a client outside would give it."""
    bootstrap = f"--bootstrap={BOOTSTRAP_HOST}:{GATEWAY_PORT}"
    return tuple(bootstrap if word.startswith("--bootstrap=") else word for word in command)


@pytest.mark.slow
def test_the_job_of_the_pipeline_goes_on_where_its_table_ends(
    image: str, pipeline_image: str, pods: ChartPods
) -> None:
    repository, _, tag = image.rpartition(":")
    of_pipeline, _, tag_of_pipeline = pipeline_image.rpartition(":")
    manifests = rendered(
        "pipeline",
        f"image.repository={repository},image.tag={tag},workers=1,auth.admin.username=root",
        f"pipeline.image.repository={of_pipeline},pipeline.image.tag={tag_of_pipeline}",
        "replicas=1,cluster.bootstrapVoters=1",
    )
    given = hardened_secrets(CertificateAuthority.create("authority of a test", datetime.now(UTC)))
    pods.serve(services_of(manifests))
    pods.start(pods_of_stateful_set(manifests, given), rollout_of(manifests))
    as_admin = pod_of(manifests, "Pod", f"{NAME}-test", given)
    job = pod_of(manifests, "CronJob", f"{NAME}-pipeline", given)

    def run(pod: PlayedPod, *words: str) -> tuple[int, str]:
        """A command with the connection and the rights of a pod."""
        (own,) = pod.containers
        options = ("--bootstrap=", "--property=", "--client-config=")
        connection = [word for word in own.command if word.startswith(options)]
        changed = replace(own, command=("odradek", *connection, *words))
        return pods.run(replace(pod, initial=(), containers=(changed,)))

    for words in (("topic", "create", "events"), ("produce", "events", "a", "b", "c")):
        code, output = run(as_admin, *words)
        assert code == 0, output
    code, output = pods.run(job)
    assert code == 1, "the job does not log in as the admin"
    topics = ("--topic", "events", "--topic", "events.dlq")
    to_archive = ("--principal", "archive", "--group", "pipe.events", "--consumer")
    code, output = run(as_admin, "acl", "add", *to_archive, *topics)
    assert code == 0, output
    code, output = pods.run(job)
    assert code == 0, output
    assert "plan 1: 3 records" in output
    assert run(as_admin, "produce", "events", "d")[0] == 0
    code, output = pods.run(job)
    assert code == 0, output
    assert "plan 2: 1 records" in output
    table = ("--name=events", "--topics=events", "--table=events")
    code, output = run(job, "pipe", "verify", *table)
    assert code == 0, output
    assert "Verified: 4 records" in output


@pytest.mark.slow
def test_a_release_is_installed_tested_scaled_and_upgraded(
    release: Release, pods: ChartPods, report: Report
) -> None:
    manifests = release.manifests()
    pods.serve(services_of(manifests))
    pods.start(release.pods(), rollout_of(manifests))
    code, output = pods.run(release.command("Pod", "test"))
    assert code == 0, output
    create_topic(release)
    addresses = [f"localhost:{release.first_port + ordinal}" for ordinal in range(3)]
    workload = Workload(",".join(addresses), TOPIC, PARTITIONS)
    workload.begin()

    def scale_up() -> None:
        four = "replicas=4"
        pods.serve(services_of(release.manifests(four)))
        pods.write_files(release.pods(four)[:3])
        pods.start(release.pods(four)[3:], rollout_of(manifests))
        code, output = pods.run(release.command("Job", "scale-up", four))
        assert code == 0, output
        report(f"3 to 4: {output.splitlines()[-1]}")
        wait_until(lambda: release.is_balanced(4), what="four nodes are balanced")

    def measure(what: str, action: Callable[[], None]) -> None:
        began = time.monotonic()
        gap_s = workload.measure(action)
        report(f"{what}: {time.monotonic() - began:.0f} s, longest gap of a producer {gap_s:.2f} s")

    measure("a node joined and got its part", scale_up)
    assert release.brokers() == {0, 1, 2, 3}

    def upgrade() -> None:
        changed = ("replicas=4", "config.num\\.partitions=7")
        order = pods.update(release.pods(*changed), rollout_of(release.manifests(*changed)))
        assert order == [f"{NAME}-{ordinal}" for ordinal in (3, 2, 1, 0)]

    clients = NewClients(release.bootstrap_port)
    clients.start()
    measure("four nodes were upgraded", upgrade)
    clients.end()
    report(f"{clients.count} new clients connected during the upgrade")
    assert clients.complaints == []
    assert workload.history.complaints == []
    assert release.brokers() == {0, 1, 2, 3}
    assert not pods.restarts

    def hang() -> None:
        # The supervisor answers no probe any more, and no SIGTERM.
        pods.container(f"{NAME}-1").kill("SIGSTOP")
        wait_until(lambda: pods.restarts == {f"{NAME}-1": 1}, what="kubelet has started it again")
        pods.wait_until_ready(f"{NAME}-1")

    measure("a node hung and was started again", hang)

    def scale_down() -> None:
        code, output = pods.run(release.command("Job", "scale-down"))
        assert code == 0, output
        assert pods.stop(f"{NAME}-3") == 0
        pods.serve(services_of(release.manifests()))
        code, output = pods.run(release.command("Job", "scale-down-end"))
        assert code == 0, output

    measure("a node left", scale_down)
    assert release.brokers() == {0, 1, 2}
    workload.end()
    assert anomalies(workload.history) == []
