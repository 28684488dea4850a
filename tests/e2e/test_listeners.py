"""Listeners that are changed while brokers run, with real clients: on one node and on three."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.cluster import running_cluster
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

MAP = "listener.security.protocol.map"
Properties = dict[str, str | int | float | bool]


def change(bootstrap: str, broker: int, **configs: str | None) -> None:
    """Change configs of one broker; raises KafkaException if it refuses."""
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIVENESS_S)


def round_trip(properties: Properties, topic: str) -> bytes | None:
    """Write a record and read one."""
    producer = Producer({**properties, "message.timeout.ms": int(1000 * LIVENESS_S)})
    producer.produce(topic, b"x")
    assert producer.flush(LIVENESS_S) == 0
    consumer = Consumer({**properties, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(LIVENESS_S)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.value()


def brokers_seen(properties: Properties) -> set[int]:
    """The ports of the brokers that a client learns of."""
    metadata = AdminClient(properties).list_topics(timeout=LIVENESS_S)
    return {broker.port for broker in metadata.brokers.values()}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, Path]]:
    folder = tmp_path_factory.mktemp("listeners")
    authority = TestAuthority(folder)
    settings = {
        "num.partitions": "1",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker.pem")),
    }
    with EmbeddedBroker(folder / "node", settings=settings) as broker:
        yield broker, authority.certificate


def test_a_listener_is_added_and_another_removed(secure: tuple[EmbeddedBroker, Path]) -> None:
    broker, authority = secure
    plain: Properties = {"bootstrap.servers": broker.bootstrap_servers}
    # One connection that lives through all of it, until its listener is removed.
    survivor = Producer({**plain, "message.timeout.ms": 3_000})
    survivor.produce("t", b"first")
    assert survivor.flush(LIVENESS_S) == 0
    port = free_port()
    tls: Properties = {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority),
    }
    first = f"PLAINTEXT://{broker.bootstrap_servers}"
    change(
        broker.bootstrap_servers,
        0,
        listeners=f"{first},SECURE://127.0.0.1:{port}",
        advertised_listeners=f"SECURE://localhost:{port}",
        **{MAP: "PLAINTEXT:PLAINTEXT,SECURE:SSL"},
    )
    # Nothing is waited for: the listener was open, and registered, before the answer.
    assert brokers_seen(tls) == {port}
    assert round_trip(tls, "t") == b"first"
    survivor.produce("t", b"second")
    assert survivor.flush(LIVENESS_S) == 0

    for configs, right in (
        ({"listeners": f"{first},OTHER://127.0.0.1:{free_port()}"}, "OTHER is not in"),
        ({MAP: "PLAINTEXT:PLAINTEXT,SECURE:TLS"}, "NAME:PROTOCOL"),
        ({MAP: "PLAINTEXT:PLAINTEXT,SECURE:PLAINTEXT"}, "Security protocol cannot be updated"),
    ):
        with pytest.raises(KafkaException, match=right):
            change(broker.bootstrap_servers, 0, **configs)
    assert round_trip(tls, "t") == b"first"

    broker.kill_process("router-0")
    broker.wait_until_ready()
    wait_until(lambda: brokers_seen(tls) == {port})
    broker.restart()
    assert brokers_seen(tls) == {port}

    admin = AdminClient(tls)
    entry = ConfigEntry(
        "listeners",
        first,
        incremental_operation=AlterConfigOpType.SUBTRACT,
    )
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(LIVENESS_S)
    assert round_trip(tls, "t") == b"first"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address_of(broker.bootstrap_servers), timeout=5).close()


def test_three_nodes_get_a_listener_while_a_producer_works(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings={"default.replication.factor": "3"}) as cluster:
        errors: list[object] = []
        acknowledged = 0
        is_over = threading.Event()

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)

        def produce() -> None:
            nonlocal acknowledged
            producer = Producer(
                {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 1}
            )
            while not is_over.is_set():
                producer.produce("t", b"x", on_delivery=delivered)
                producer.flush(LIVENESS_S)
                acknowledged += 1

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            wait_until(lambda: acknowledged > 10)
            ports = {}
            for node_id, node in cluster.nodes.items():
                ports[node_id] = free_port()
                change(
                    node.bootstrap_servers,
                    node_id,
                    listeners=f"PLAINTEXT://{node.bootstrap_servers},"
                    f"EXTRA://127.0.0.1:{ports[node_id]}",
                    **{MAP: "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"},
                )
            extra: Properties = {"bootstrap.servers": f"127.0.0.1:{ports[0]}"}
            wait_until(lambda: brokers_seen(extra) == set(ports.values()))
            assert round_trip(extra, "t") == b"x"
            before = acknowledged
            wait_until(lambda: acknowledged > before + 10)
        finally:
            is_over.set()
            thread.join()
        assert not errors


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
