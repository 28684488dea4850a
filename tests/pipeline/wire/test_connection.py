"""Connections to real brokers: every mechanism of SASL, TLS, and what is told when they fail."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from odradek.node.embedded import EmbeddedBroker
from odradek.node.secured_broker import MECHANISMS, SecuredBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.connection import BrokerConnection, ConnectionLost
from odradek.pipeline.wire.partition_reader import read_partition
from odradek.pipeline.wire.requests import (
    FETCH,
    METADATA,
    BrokerAddress,
    WireApi,
    decode_metadata,
    encode_metadata,
)
from odradek.pipeline.wire.security import WireSecurity, wire_security
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port


def connect(
    address: str, security: WireSecurity | None = None, *, timeout_s: float = 10
) -> BrokerConnection:
    host, _, port = address.rpartition(":")
    return BrokerConnection(
        BrokerAddress(host, int(port)),
        security or WireSecurity(),
        client_id="tests",
        timeout_s=timeout_s,
    )


def topics_of(connection: BrokerConnection) -> set[str]:
    version, body = connection.ask(METADATA, lambda version: encode_metadata(version, None))
    return {topic.name for topic in decode_metadata(version, body).topics}


def test_answers_are_kept_for_whoever_asked(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("connected")
    with closing(connect(kafka_broker.bootstrap_servers)) as connection:
        version = connection.version_of(METADATA)
        names = [["connected"], None, ["other"], ["connected"]]
        ids = [connection.send(METADATA, version, encode_metadata(version, each)) for each in names]
        connection.forget(ids[1])
        flexible = METADATA.is_flexible(version)
        for correlation_id in (ids[3], ids[0]):
            body = connection.receive(correlation_id, is_flexible=flexible)
            (topic,) = decode_metadata(version, body).topics
            assert (topic.name, topic.error) == ("connected", 0)
        connection.forget(ids[2])
        assert "connected" in topics_of(connection)
        with pytest.raises(ConnectionLost):
            connection.receive(ids[1], is_flexible=flexible)


def test_versions_are_those_that_both_have(kafka_broker: EmbeddedBroker) -> None:
    with closing(connect(kafka_broker.bootstrap_servers)) as connection:
        assert connection.version_of(FETCH) == FETCH.newest
        with pytest.raises(PipelineError, match="Fetch 0 to"):
            connection.version_of(WireApi("Fetch", FETCH.key, 99, 99, 12))


def security_of(broker: SecuredBroker, mechanism: str) -> WireSecurity:
    if mechanism == "OAUTHBEARER":
        return WireSecurity("SASL_PLAINTEXT", mechanism, token=broker.access_token)
    return wire_security(broker.properties(mechanism))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_mechanisms(kafka_broker_secured: SecuredBroker, mechanism: str) -> None:
    security = security_of(kafka_broker_secured, mechanism)
    with closing(connect(kafka_broker_secured.bootstrap_servers, security)) as connection:
        assert topics_of(connection) >= set()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_credentials_that_are_wrong(kafka_broker_secured: SecuredBroker, mechanism: str) -> None:
    security = WireSecurity(
        "SASL_PLAINTEXT",
        mechanism,
        kafka_broker_secured.user,
        "wrong",
        token=lambda: kafka_broker_secured.access_token(lifetime_s=-60),
    )
    with pytest.raises(PipelineError, match="refuse") as told:
        connect(kafka_broker_secured.bootstrap_servers, security)
    assert not isinstance(told.value, ConnectionLost)


def test_a_mechanism_that_is_not_enabled(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    with SecuredBroker(
        tmp_path, settings={"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    ) as broker:
        with pytest.raises(PipelineError, match=r"Set sasl.mechanism to one of SCRAM-SHA-256\."):
            connect(broker.bootstrap_servers, security_of(broker, "SCRAM-SHA-512"))
        with closing(
            connect(broker.bootstrap_servers, security_of(broker, "SCRAM-SHA-256"))
        ) as connection:
            assert not connection.is_due_for_renewal


class TlsNode:
    """A broker with a listener of TLS for which clients need certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = TestAuthority(folder)
        self.client_store = self.authority.issue("client.pem", common_name="alice")
        self.port = free_port()
        self.sasl_port = free_port()
        self.broker = EmbeddedBroker(
            folder / "node",
            settings={
                "listeners": (
                    f"PLAINTEXT://127.0.0.1:0,MTLS://127.0.0.1:{self.port},"
                    f"BOTH://127.0.0.1:{self.sasl_port}"
                ),
                "advertised.listeners": (
                    f"MTLS://localhost:{self.port},BOTH://localhost:{self.sasl_port}"
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,MTLS:SSL,BOTH:SASL_SSL",
                "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.both.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required"
                    ' user_carol="secret";'
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.authority.issue("broker.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.certificate),
                "listener.name.mtls.ssl.client.auth": "required",
            },
        )

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def security(self) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(self.authority.certificate),
            "ssl.keystore.location": str(self.client_store),
        }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    node = TlsNode(tmp_path_factory.mktemp("tls"))
    with node.broker:
        yield node


def test_tls_with_a_certificate_of_the_client(tls: TlsNode) -> None:
    tls.broker.create_topic("secret")
    with closing(connect(tls.address, wire_security(tls.security()))) as connection:
        assert "secret" in topics_of(connection)


def test_records_over_tls_with_sasl(tls: TlsNode) -> None:
    tls.broker.create_topic("over-tls")
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "carol",
        "sasl.password": "secret",
        "ssl.ca.location": str(tls.authority.certificate),
    }
    address = f"localhost:{tls.sasl_port}"
    producer = Producer({**options, "bootstrap.servers": address})
    for number in range(40):
        producer.produce("over-tls", b"%d" % number * 50_000, partition=0)
    assert producer.flush(60) == 0
    with KafkaCluster(address, wire_security(options)) as cluster:
        batches = read_partition(cluster, PartitionRange("over-tls", "", 0, 0, 40))
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % number * 50_000 for number in range(40)]


def test_an_authority_that_is_not_trusted(tls: TlsNode, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path, "other")
    options = {**tls.security(), "ssl.truststore.location": str(other.certificate)}
    with pytest.raises(PipelineError, match=r"ssl\.truststore\.location"):
        connect(tls.address, wire_security(options))


def test_a_client_without_a_certificate(tls: TlsNode) -> None:
    options = tls.security()
    del options["ssl.keystore.location"]
    with pytest.raises(PipelineError, match="localhost"):
        connect(tls.address, wire_security(options))


def test_a_broker_that_expects_tls(tls: TlsNode) -> None:
    with pytest.raises(PipelineError, match="localhost"):
        connect(tls.address)


def test_nobody_listens() -> None:
    with pytest.raises(ConnectionLost, match="refused"):
        connect(f"127.0.0.1:{free_port()}")


def serve(listener: socket.socket, answer: bytes) -> threading.Thread:
    def run() -> None:
        accepted, _ = listener.accept()
        with accepted, suppress(ConnectionResetError):
            accepted.recv(1000)
            accepted.sendall(answer)
            accepted.recv(1000)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "told", "passes"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer as a Kafka broker", False),
        (b"\x15\x03\x03\x00\x02\x02\x46", "does not answer as a Kafka broker", False),
        (b"\x00\x00\x00\x06\x00\x00\x00\x09\x00\x00", "another request", True),
        (b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", "ends too early", False),
        (b"", "no answer within 0.3 s", True),
    ],
)
def test_who_is_no_broker(answer: bytes, told: str, passes: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = serve(listener, answer)
        with pytest.raises(PipelineError, match=told) as raised:
            connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)
        assert isinstance(raised.value, ConnectionLost) == passes
        thread.join(10)
