"""Three nodes with client certificates: everything about certificates changes while clients work.

The certificates of the nodes are replaced by those of another authority, then the first one is
not trusted any more. Clients of three libraries write all the time, each with one session for the
whole test. Clients whose certificates have expired or are of a foreign authority are refused
meanwhile.
"""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

from tests.e2e.cluster import Cluster, cluster
from tests.e2e.conftest import Report
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

REFUSED: Final = """
import os, sys
from kafka import KafkaProducer
from kafka.errors import KafkaError
bootstrap, authority, certificate = sys.argv[1:]
try:
    KafkaProducer(
        bootstrap_servers=bootstrap, bootstrap_timeout_ms=500, security_protocol="SSL",
        ssl_cafile=authority, ssl_certfile=certificate, ssl_keyfile=certificate,
    )
except KafkaError:
    os._exit(0)
os._exit(1)
"""
"""Whether kafka-python is refused."""

TOPIC = "orders"
PACE_S = 0.02
DESCRIPTORS_MAX = 10
"""More than before: metadata connections of clients come and go."""


class SecureCluster:
    """Nodes with a listener for clients with certificates, and the files of all."""

    def __init__(self, folder: Path, nodes: Cluster) -> None:
        self.nodes = nodes
        self.ports: dict[int, int] = {}
        self.folder = folder
        self.first, self.second = (TestAuthority(folder, name) for name in ("first", "second"))
        self.foreign = TestAuthority(folder, "foreign")
        self.both = folder / "both.pem"
        self.both.write_bytes(
            self.first.certificate.read_bytes() + self.second.certificate.read_bytes()
        )
        for node_id, node in nodes.nodes.items():
            self.ports[node_id] = port = free_port()
            self.trust(node_id, self.first.certificate)
            node.settings |= {
                "listeners": f"PLAINTEXT://127.0.0.1:{node.bootstrap_servers.rpartition(':')[2]}"
                f",MTLS://127.0.0.1:{port}",
                "advertised.listeners": f"MTLS://localhost:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,MTLS:SSL",
                "ssl.client.auth": "required",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.first.issue(f"node-{node_id}.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.trusted_by(node_id)),
            }

    def trusted_by(self, node_id: int) -> Path:
        return self.folder / f"trusted-by-{node_id}.pem"

    def trust(self, node_id: int, certificates: Path) -> None:
        """Give a node these authorities, in one step: half a file would be refused."""
        made = self.folder / "trusted.new"
        made.write_bytes(certificates.read_bytes())
        made.replace(self.trusted_by(node_id))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.ports.values())

    def librdkafka(self, certificate: Path) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.both),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
            "log_level": 0,
        }

    def python(self, certificate: Path) -> dict[str, Any]:
        """The arguments of kafka-python and aiokafka."""
        context = ssl.create_default_context(cafile=self.both)
        context.load_cert_chain(certificate)
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SSL",
            "ssl_context": context,
        }

    def issuer(self, node_id: int) -> str:
        """Who has signed the certificate that a node presents."""
        context = ssl.create_default_context(cafile=self.both)
        address = ("127.0.0.1", self.ports[node_id])
        with (
            socket.create_connection(address, timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            certificate: Any = secure.getpeercert()
            names = dict(part[0] for part in certificate["issuer"])
            return str(names["organizationName"])

    def has_certificate_of(self, node_id: int, issuer: str, client: Path) -> bool:
        return self.issuer(node_id) == issuer and self.is_let_in(node_id, client)

    def is_refused(self, node_id: int, certificate: Path) -> bool:
        return not self.is_let_in(node_id, certificate)

    def is_let_in(self, node_id: int, certificate: Path) -> bool:
        context = ssl.create_default_context(cafile=self.both)
        context.load_cert_chain(certificate)
        address = ("127.0.0.1", self.ports[node_id])
        try:
            with (
                socket.create_connection(address, timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                # In TLS 1.3 a client hears of it only when it reads. ApiVersions, version 0:
                secure.sendall(bytes.fromhex("0000000a" + "00120000" + "00000001" + "ffff"))
                return bool(secure.recv(1))
        except OSError:
            return False


class Load:
    """A client of one library that writes from `with` to the end of the block."""

    def __init__(self, write: Callable[["Load"], None]) -> None:
        self.failures: list[object] = []
        self.written = 0
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(write,))

    def _run(self, write: Callable[["Load"], None]) -> None:
        try:
            write(self)
        except Exception as error:
            self.failures.append(error)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join()


def confluent_load(properties: dict[str, Any]) -> Callable[[Load], None]:
    def write(load: Load) -> None:
        with_callback: dict[str, Any] = {**properties, "error_cb": load.failures.append}
        producer = Producer({**with_callback, "linger.ms": 0})

        def delivered(error: object, _: object) -> None:
            if error is not None:
                load.failures.append(error)
            load.written += 1

        while not load.stopped.is_set():
            producer.produce(TOPIC, b"x", on_delivery=delivered)
            producer.poll(PACE_S)
        if producer.flush(LIVENESS_S):
            load.failures.append("not delivered")

    return write


def python_load(arguments: dict[str, Any]) -> Callable[[Load], None]:
    def write(load: Load) -> None:
        with closing(KafkaProducer(acks="all", **arguments)) as producer:
            while not load.stopped.wait(PACE_S):
                producer.send(TOPIC, b"x").get(LIVENESS_S)
                load.written += 1

    return write


def aio_load(arguments: dict[str, Any]) -> Callable[[Load], None]:
    async def work(load: Load) -> None:
        async with AIOKafkaProducer(acks="all", **arguments) as producer:
            while not load.stopped.is_set():
                await asyncio.wait_for(producer.send_and_wait(TOPIC, b"x"), LIVENESS_S)
                load.written += 1
                await asyncio.sleep(PACE_S)

    return lambda load: asyncio.run(work(load))


def confluent_refusal(properties: dict[str, Any]) -> str:
    """What the user of confluent-kafka hears."""
    errors: list[str] = []
    with_callback: dict[str, Any] = {
        **properties,
        "error_cb": lambda error: errors.append(str(error)),
    }
    admin = AdminClient(with_callback)
    with suppress(KafkaException):
        admin.list_topics(timeout=0.5)
        pytest.fail("it was let in")
    wait_until(lambda: admin.poll(0.05) or any("SSL" in each for each in errors))
    return " ".join(errors)


def python_refusal(secure: SecureCluster, certificate: Path) -> None:
    """It leaves threads and sockets behind when it is refused: in a process of its own."""
    arguments = (secure.bootstrap, str(secure.both), str(certificate))
    subprocess.run([sys.executable, "-c", REFUSED, *arguments], check=True, timeout=LIVENESS_S)


async def aio_refusal(arguments: dict[str, Any]) -> None:
    producer = AIOKafkaProducer(**arguments)
    try:
        with pytest.raises(AioKafkaError):
            await asyncio.wait_for(producer.start(), LIVENESS_S)
    finally:
        await producer.stop()


def descriptors(nodes: Cluster) -> list[int]:
    return [psutil.Process(node.processes["router-0"]).num_fds() for node in nodes.nodes.values()]


def replace_all(secure: SecureCluster, loads: list[Load], alice: Path, bob: Path) -> None:
    """New certificates by another authority; then the first one is not trusted any more."""
    nodes = secure.nodes.nodes
    for node_id in nodes:
        secure.trust(node_id, secure.both)
        secure.second.issue(f"node-{node_id}.pem")
    for node_id in nodes:
        wait_until(
            partial(secure.has_certificate_of, node_id, "second", bob),
            what="the node has a new certificate, and trusts both authorities",
        )
        assert secure.is_let_in(node_id, alice)
    for node_id in nodes:
        secure.trust(node_id, secure.second.certificate)
    for node_id in nodes:
        wait_until(partial(secure.is_refused, node_id, alice), what="the first is not trusted")
        assert secure.is_let_in(node_id, bob)
    written = [load.written for load in loads]
    wait_until(
        lambda: all(load.written > before for load, before in zip(loads, written, strict=True)),
        what="sessions of clients with the first authority's certificate go on",
    )


def test_certificates_and_authorities_are_replaced_under_load(
    tmp_path: Path, report: Report
) -> None:
    with cluster(tmp_path) as nodes:
        secure = SecureCluster(tmp_path, nodes)
        alice = secure.first.issue("alice.pem", common_name="alice")
        bob = secure.second.issue("bob.pem", common_name="bob")
        expired = secure.second.issue("expired.pem", common_name="bob", valid_s=-60)
        foreigner = secure.foreign.issue("foreigner.pem", common_name="bob")
        nodes.start()
        nodes[0].create_topic(TOPIC, partitions=3)
        loads = [
            Load(confluent_load(secure.librdkafka(alice))),
            Load(python_load(secure.python(alice))),
            Load(aio_load(secure.python(alice))),
        ]
        with loads[0], loads[1], loads[2]:
            wait_until(lambda: all(load.written > 10 for load in loads), what="all write")
            before = descriptors(nodes)
            began = time.monotonic()
            replace_all(secure, loads, alice, bob)
            report(
                f"certificates and authorities were replaced in {time.monotonic() - began:.1f} s"
            )
            for certificate, reason in (
                (expired, "certificate expired"),
                (foreigner, "unknown ca"),
                (alice, "unknown ca"),
            ):
                assert reason in confluent_refusal(secure.librdkafka(certificate))
                python_refusal(secure, certificate)
                asyncio.run(aio_refusal(secure.python(certificate)))
            wait_until(
                lambda: all(
                    now <= then + DESCRIPTORS_MAX
                    for now, then in zip(descriptors(nodes), before, strict=True)
                ),
                what="those that were refused leave nothing behind",
            )
        assert [load.failures for load in loads] == [[], [], []]
        for node in nodes.nodes.values():
            assert "Traceback" not in node.log()
