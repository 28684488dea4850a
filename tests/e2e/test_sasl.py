"""Clients that authenticate with SASL: every mechanism with every library; one node and three."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from tests.e2e.cluster import cluster
from tests.e2e.sasl_node import (
    MECHANISMS,
    VALUES,
    Properties,
    SaslNode,
    access_token,
    odradek,
    password,
    sasl_settings,
    user_of,
)
from tests.support.java import ROUND_TRIPS, run_java_tool, why_no_java_tools
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

LISTENERS = ("CLIENTS", "SECURE")
"""SASL_PLAINTEXT and SASL_SSL."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    node = SaslNode(tmp_path_factory.mktemp("sasl"))
    with node.broker:
        for user in ("bob", "carol"):
            node.add_user(user, password(user))
        yield node


def round_trip(properties: Properties, topic: str) -> list[bytes | None]:
    """What a producer writes and a consumer group reads with confluent-kafka."""
    producer = Producer(properties)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(LIVENESS_S) == 0
    consumer = Consumer({**properties, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    with closing(consumer):
        deadline = time.monotonic() + LIVENESS_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            found += [each.value() for each in consumer.consume(50, 0.2) if each.error() is None]
    return found


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(node: SaslNode, mechanism: str, listener: str) -> None:
    topic = f"confluent-{mechanism}-{listener}"
    assert round_trip(node.librdkafka(mechanism, listener=listener), topic) == VALUES
    created = node.broker.log().split(topic)[0].rsplit("\n", 1)[-1]
    assert f"User:{user_of(mechanism)}" in created


def test_tls_alone_is_not_enough(node: SaslNode) -> None:
    secure = node.librdkafka("SCRAM-SHA-512", listener="SECURE")
    assert not is_let_in({**secure, "sasl.password": "wrong"})
    without = {key: value for key, value in secure.items() if "sasl" not in key}
    assert not is_let_in({**without, "security.protocol": "SSL"})


class PythonTokens(PythonTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def token(self) -> str:
        return access_token("dave")


class AioTokens(AioTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    async def token(self) -> str:
        return access_token("dave")


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(node: SaslNode, mechanism: str, listener: str) -> None:
    shared = node.python(mechanism, PythonTokens(), listener=listener)
    topic = f"python-{mechanism}-{listener}"
    with closing(KafkaProducer(**shared)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(LIVENESS_S)
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=5_000, **shared
    )
    with closing(consumer):
        assert [next(consumer).value for _ in VALUES] == VALUES


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(node: SaslNode, mechanism: str, listener: str) -> None:
    topic = f"aio-{mechanism}-{listener}"
    node.broker.create_topic(topic)

    async def round_trip() -> list[bytes | None]:
        shared = node.python(mechanism, AioTokens(), listener=listener)
        async with AIOKafkaProducer(**shared) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **shared) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(round_trip(), LIVENESS_S)) == VALUES


def refusal(properties: Properties) -> KafkaError:
    """The error that confluent-kafka tells its user."""
    errors: list[KafkaError] = []
    with_callback: Properties = {**properties, "error_cb": errors.append}
    admin = AdminClient(with_callback)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    wait_until(
        lambda: admin.poll(0.05) or any(e.code() == KafkaError._AUTHENTICATION for e in errors),
        what="the client hears that it is refused",
    )
    return next(e for e in errors if e.code() == KafkaError._AUTHENTICATION)


def test_clients_hear_why_they_are_refused(
    node: SaslNode, caplog: pytest.LogCaptureFixture
) -> None:
    assert "Invalid username or password" in str(refusal(node.librdkafka("PLAIN", secret="wrong")))
    texts = {
        str(refusal(node.librdkafka("SCRAM-SHA-256", user=user, secret="wrong"))).partition("Sasl")[
            2
        ]
        for user in ("bob", "nobody")
    }
    assert len(texts) == 1, "a refusal does not tell which users there are"
    python = {**node.python("PLAIN", None), "sasl_plain_password": "wrong"}
    # It logs what it was told, and raises that there is no broker.
    with pytest.raises(AioKafkaError):
        asyncio.run(start(AIOKafkaProducer, python))
    assert "Invalid username or password" in caplog.text
    for wrong in (
        access_token("dave", lifetime_s=-600),
        access_token("dave", aud="somebody else"),
        access_token("dave", iss="somebody else"),
    ):
        told = node.librdkafka("OAUTHBEARER")
        told["oauth_cb"] = lambda _, wrong=wrong: (wrong, time.time() + 600)
        assert "invalid_token" in str(refusal(told))
    log = node.broker.log()
    assert "the password of 'bob' is wrong" in log
    assert "no user 'nobody'" in log
    assert "it has expired" in log
    assert password("bob") not in log


async def start(kind: type[AIOKafkaProducer], arguments: Properties) -> None:
    producer = kind(**arguments)
    try:
        await producer.start()
    finally:
        await producer.stop()


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafkas_own_tools(node: SaslNode, tmp_path: Path) -> None:
    """kafka-configs sets SCRAM credentials of both mechanisms in one request."""
    done = run_java_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", node.broker.bootstrap_servers, "--alter"),
        *("--entity-type", "users", "--entity-name", "grace", "--add-config"),
        "SCRAM-SHA-256=[iterations=8192,password=geheim],SCRAM-SHA-512=[password=geheim]",
        directory=tmp_path,
    )
    assert "Completed updating config for user grace." in done.stdout, done.stdout + done.stderr
    listed = odradek("user", "list", "grace", bootstrap=node.broker.bootstrap_servers)
    assert [line.split()[1:] for line in listed.splitlines()[-2:]] == [
        ["SCRAM-SHA-256", "8192"],
        ["SCRAM-SHA-512", "4096"],
    ]


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_java(node: SaslNode, tmp_path: Path) -> None:
    """An admin, a producer and a consumer with each mechanism."""
    token = tmp_path / "token"
    token.write_text(access_token("dave"))
    topics = {}
    for listener in LISTENERS:
        for mechanism in MECHANISMS:
            topic = f"java-{mechanism}-{listener}"
            topics[topic] = user_of(mechanism)
            properties = node.java(mechanism, token, listener=listener)
            (tmp_path / f"{topic}.properties").write_text(properties)
    done = run_java_tool(
        ROUND_TRIPS,
        *(str(tmp_path / f"{topic}.properties") for topic in topics),
        directory=tmp_path,
        options=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"],
    )
    read = " ".join(map(str, range(10)))
    assert done.stdout.splitlines() == [f"{topic}: {read}" for topic in topics], done.stderr
    log = node.broker.log()
    for topic, user in topics.items():
        assert f"User:{user}" in log.split(topic)[0].rsplit("\n", 1)[-1]


def test_three_nodes_know_the_users_of_format_and_new_ones(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text(password("admin"))
    with cluster(tmp_path) as nodes:
        ports: dict[int, int] = {}
        for node_id, node in nodes.nodes.items():
            ports[node_id] = free_port()
            own = {"PLAINTEXT": int(node.bootstrap_servers.rpartition(":")[2])}
            node.settings |= sasl_settings(tmp_path, {**own, "CLIENTS": ports[node_id]})
            odradek(
                *("format", "--data", str(node.data), "--node-id", str(node_id)),
                *("--cluster-id", nodes.local.layout.cluster_id),
                *("--add-scram", f"SCRAM-SHA-512=[name=admin,password-file={tmp_path / 'admin'}]"),
            )
        nodes.start()
        nodes.create_at("replicated", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        admin: Properties = {
            "bootstrap.servers": f"127.0.0.1:{ports[0]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": password("admin"),
        }
        with_admin = [f"-X{key}={value}" for key, value in admin.items() if "bootstrap" not in key]
        odradek(
            *("user", "add", "heidi", "--password-file", "-", *with_admin),
            bootstrap=admin["bootstrap.servers"],
            stdin=password("heidi"),
        )
        heidi = {**admin, "sasl.username": "heidi", "sasl.password": password("heidi")}
        for node_id, port in ports.items():
            there = {**heidi, "bootstrap.servers": f"127.0.0.1:{port}"}
            wait_until(partial(is_let_in, there), what=f"node {node_id} knows heidi")
        assert set(round_trip(heidi, "replicated")) == set(VALUES)


def is_let_in(properties: Properties) -> bool:
    try:
        return bool(AdminClient({**properties, "log_level": 0}).list_topics(timeout=2).brokers)
    except KafkaException:
        return False
