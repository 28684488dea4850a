"""Listeners with TLS: real clients, principals, and certificates replaced under load."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer

from odradek.node.embedded import EmbeddedBroker
from tests.support.certificates import TestAuthority
from tests.support.java import ROUND_TRIPS, run_java_tool, why_no_java_tools
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e


class SecureNode:
    """A broker with a listener of each kind, and what its clients need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = TestAuthority(folder)
        self.store = self.authority.issue("broker.pem")
        self.client_store = self.authority.issue("client.pem", common_name="alice")
        self.ports = {name: free_port() for name in ("SSL", "MTLS", "BOTH")}
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        advertised = [f"{name}://localhost:{port}" for name, port in self.ports.items()]
        self.broker = EmbeddedBroker(
            folder / "node",
            settings={
                "listeners": ",".join(["PLAINTEXT://127.0.0.1:0", *addresses]),
                "advertised.listeners": ",".join(advertised),
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,BOTH:SASL_SSL"
                ),
                "log.level": "INFO",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.store),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.certificate),
                "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.both.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required"
                    ' user_carol="secret";'
                ),
                "listener.name.mtls.ssl.client.auth": "required",
                "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/",
            },
        )

    def address(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def librdkafka(self, listener: str) -> dict[str, str | int]:
        properties: dict[str, str | int] = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "message.timeout.ms": 20_000,
        }
        if listener == "MTLS":
            properties["ssl.certificate.location"] = str(self.client_store)
            properties["ssl.key.location"] = str(self.client_store)
        if listener == "BOTH":
            properties["security.protocol"] = "SASL_SSL"
            properties["sasl.mechanism"] = "PLAIN"
            properties["sasl.username"], properties["sasl.password"] = "carol", "secret"
        return properties

    def context(self, listener: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if listener == "MTLS":
            context.load_cert_chain(self.client_store)
        return context

    def served_serial(self, listener: str = "SSL") -> str:
        """The serial number of the certificate that a new connection gets."""
        with (
            socket.create_connection(("127.0.0.1", self.ports[listener]), timeout=10) as plain,
            self.context("MTLS").wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            certificate = secure.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(tmp_path_factory.mktemp("tls"))
    with node.broker:
        yield node


def round_trip_confluent(properties: Mapping[str, str | int], topic: str) -> list[bytes | None]:
    producer = Producer(dict(properties))
    for index in range(50):
        producer.produce(topic, b"%d" % index)
    assert producer.flush(LIVENESS_S) == 0
    shared = {key: value for key, value in properties.items() if key != "message.timeout.ms"}
    consumer = Consumer({**shared, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    with closing(consumer):
        deadline = time.monotonic() + LIVENESS_S
        while len(found) < 50 and time.monotonic() < deadline:
            found += [each.value() for each in consumer.consume(50, 0.2) if each.error() is None]
    return found


VALUES = [b"%d" % index for index in range(50)]


@pytest.mark.parametrize(
    ("listener", "principal"), [("SSL", "ANONYMOUS"), ("MTLS", "alice"), ("BOTH", "carol")]
)
def test_confluent_kafka(node: SecureNode, listener: str, principal: str) -> None:
    assert round_trip_confluent(node.librdkafka(listener), f"confluent-{listener}") == VALUES
    who = f'"principal":"User:{principal}","client_id":"rdkafka"'
    made = [line for line in node.broker.log().splitlines() if "a Metadata request" in line]
    assert any(who in line for line in made)


@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_kafka_python(node: SecureNode, listener: str) -> None:
    shared = {
        "bootstrap_servers": node.address(listener),
        "security_protocol": "SSL",
        "ssl_context": node.context(listener),
    }
    topic = f"python-{listener}"
    with closing(KafkaProducer(**shared)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(LIVENESS_S)
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=5_000, **shared
    )
    with closing(consumer):
        found = [next(consumer).value for _ in VALUES]
    assert found == VALUES


@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_aiokafka(node: SecureNode, listener: str) -> None:
    topic = f"aio-{listener}"
    node.broker.create_topic(topic)

    async def round_trip() -> list[bytes | None]:
        shared = {
            "bootstrap_servers": node.address(listener),
            "security_protocol": "SSL",
            "ssl_context": node.context(listener),
        }
        async with AIOKafkaProducer(**shared) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **shared) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(round_trip(), LIVENESS_S)) == VALUES


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_java(node: SecureNode, tmp_path: Path) -> None:
    """An admin, a producer and a consumer."""
    stores = {"ssl.truststore": node.authority.certificate}
    topics = {"java-SSL": "ANONYMOUS", "java-MTLS": "alice"}
    for topic in topics:
        listener = topic.removeprefix("java-")
        if listener == "MTLS":
            stores["ssl.keystore"] = node.client_store
        properties = [f"bootstrap.servers={node.address(listener)}", "security.protocol=SSL"]
        for store, path in stores.items():
            properties += [f"{store}.type=PEM", f"{store}.location={path}"]
        (tmp_path / f"{topic}.properties").write_text("\n".join(properties))
    files = [str(tmp_path / f"{topic}.properties") for topic in topics]
    done = run_java_tool(ROUND_TRIPS, *files, directory=tmp_path)
    read = " ".join(map(str, range(10)))
    assert done.stdout.splitlines() == [f"{topic}: {read}" for topic in topics], done.stderr
    for topic, user in topics.items():
        assert f"User:{user}" in node.broker.log().split(topic)[0].rsplit("\n", 1)[-1]


@pytest.mark.parametrize("listener", ["MTLS", "BOTH"])
def test_the_command_line_with_a_profile(
    node: SecureNode, listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODRADEK_PROFILES", str(tmp_path / "profiles"))
    properties = tmp_path / "client.properties"
    given = node.librdkafka(listener)
    given.pop("message.timeout.ms")
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))

    def odradek(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "odradek", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    odradek("profile", "add", "secure", "--client-config", str(properties))
    topic = f"cli-{listener}"
    odradek("-p", "secure", "topic", "create", topic)
    odradek("-p", "secure", "produce", topic, "hello")
    assert odradek("-p", "secure", "consume", topic) == "hello\n"
    assert "ok" in odradek("-p", "secure", "doctor")


def test_a_client_that_trusts_another_authority_says_so(node: SecureNode, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path, "other")
    properties = node.librdkafka("SSL") | {"ssl.ca.location": str(other.certificate)}
    errors: list[str] = []
    properties.pop("message.timeout.ms")
    with_callback: dict[str, Any] = {**properties, "error_cb": lambda e: errors.append(str(e))}
    admin = AdminClient(with_callback)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    wait_until(lambda: admin.poll(0.1) or errors, what="the client's error")
    assert any("certificate verify failed" in error for error in errors)
    wait_until(
        lambda: "the client does not trust the broker's certificate" in node.broker.log(),
        what="the broker's line",
    )


def alter(node: SecureNode, key: str, value: str) -> None:
    resource = ConfigResource(
        ResourceType.BROKER,
        "0",
        incremental_configs=[ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": node.broker.bootstrap_servers})
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(LIVENESS_S)


def test_a_certificate_is_replaced_under_load(node: SecureNode) -> None:
    """By a changed file, and by another path in the configuration, which holds when the request is
    answered. No producer notices."""
    stopped = threading.Event()
    failures: list[object] = []
    producer = Producer(node.librdkafka("MTLS"))

    def produce() -> None:
        while not stopped.is_set():
            producer.produce(
                "under-load",
                b"x" * 10_000,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0.005)

    load = threading.Thread(target=produce)
    load.start()
    try:
        first = node.served_serial()
        node.authority.issue("broker.pem")
        wait_until(lambda: node.served_serial() != first, what="the new file's certificate")
        second = node.served_serial()

        following = node.authority.issue("following.pem")
        alter(node, "listener.name.ssl.ssl.keystore.location", str(following))
        third = node.served_serial()
        assert third not in (first, second)
        assert node.served_serial("MTLS") == second

        stranger = node.authority.issue("stranger.pem", common_name="stranger")
        for path, reason in (
            (stranger, "DistinguishedName does not match"),
            (node.folder / "nowhere", "cannot be read"),
        ):
            with pytest.raises(KafkaException, match=reason):
                alter(node, "listener.name.ssl.ssl.keystore.location", str(path))
        assert node.served_serial() == third
    finally:
        stopped.set()
        load.join()
    assert producer.flush(LIVENESS_S) == 0
    assert failures == []
