"""Clients that authenticate with SASL: every mechanism with every library; one node and three."""

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from tests.e2e.cluster import cluster
from tests.support.certificates import TestAuthority
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

Properties: TypeAlias = dict[str, Any]  # librdkafka's

LOGIN = "org.apache.kafka.common.security"
USERS = {"alice": "PLAIN", "bob": "SCRAM-SHA-256", "carol": "SCRAM-SHA-512", "dave": "OAUTHBEARER"}
"""Who authenticates with what."""
MECHANISMS = tuple(USERS.values())
VALUES = [b"%d" % index for index in range(20)]
ISSUER_KEY = ec.generate_private_key(ec.SECP256R1())


def password(user: str) -> str:
    return f"{user}'s secret, =42"


def access_token(user: str, lifetime_s: float = 600, **claims: object) -> str:
    now_s = time.time()
    shown = {"sub": user, "iat": now_s, "exp": now_s + lifetime_s, "aud": "kafka", "iss": "test"}
    return jwt.encode({**shown, **claims}, ISSUER_KEY, algorithm="ES256", headers={"kid": "k"})


def odradek(*arguments: str, bootstrap: str = "", stdin: str = "") -> str:
    """What the command line prints."""
    environment = {"ODRADEK_BOOTSTRAP": bootstrap} if bootstrap else {}
    ran = CliRunner().invoke(cli, arguments, input=stdin, env=environment)
    assert ran.exit_code == 0, ran.output
    return ran.output


def sasl_settings(folder: Path, listeners: Mapping[str, int]) -> dict[str, str]:
    """The settings of a node with these listeners, of which those but PLAINTEXT have SASL."""
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ISSUER_KEY.public_key())) | {"kid": "k"}
    (folder / "keys.json").write_text(json.dumps({"keys": [jwk]}))
    users = " ".join(f'user_{name}="{password(name)}"' for name in ("alice", "erin"))
    special = {"PLAINTEXT": "PLAINTEXT", "SECURE": "SASL_SSL"}
    protocols = {name: special.get(name, "SASL_PLAINTEXT") for name in listeners}
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.expiring.connections.max.reauth.ms": "3000",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "sasl.oauthbearer.expected.issuer": "test",
        "log.level": "INFO",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": (
                f"{LOGIN}.plain.PlainLoginModule required {users};"
            )
            for name in listeners
        },
    }


class SaslNode:
    """A broker without and with authentication, the latter for ever and for three seconds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = TestAuthority(folder)
        self.ports = {"PLAINTEXT": 0}
        self.ports |= {name: free_port() for name in ("CLIENTS", "EXPIRING", "SECURE")}
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.issue("broker.pem")),
            "advertised.listeners": f"SECURE://localhost:{self.ports['SECURE']}",
        }
        self.broker = EmbeddedBroker(
            folder / "node",
            settings={**sasl_settings(folder, self.ports), **tls, "http.listen": "127.0.0.1:0"},
        )

    def address(self, listener: str = "CLIENTS") -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def add_user(self, name: str, secret: str) -> None:
        odradek(
            *("user", "add", name, "--password-file", "-"),
            bootstrap=self.broker.bootstrap_servers,
            stdin=secret,
        )

    def librdkafka(
        self, mechanism: str, *, listener: str = "CLIENTS", user: str = "", secret: str = ""
    ) -> Properties:
        user = user or next(name for name, its in USERS.items() if its == mechanism)
        common = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "log_level": 0,
        }
        if mechanism == "OAUTHBEARER":
            # confluent-kafka's callback returns the token and when it expires.
            return {**common, "oauth_cb": lambda _: (access_token(user), time.time() + 600)}
        return {**common, "sasl.username": user, "sasl.password": secret or password(user)}


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


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(node: SaslNode, mechanism: str) -> None:
    topic = f"confluent-{mechanism}"
    assert round_trip(node.librdkafka(mechanism), topic) == VALUES
    user = next(name for name, its in USERS.items() if its == mechanism)
    created = node.broker.log().split(topic)[0].rsplit("\n", 1)[-1]
    assert f"User:{user}" in created


def test_with_tls(node: SaslNode) -> None:
    """SASL_SSL: a certificate of the broker's, and a password of the client's."""
    tls = {
        "bootstrap.servers": f"localhost:{node.ports['SECURE']}",
        "ssl.ca.location": str(node.authority.certificate),
    }
    secure = {**node.librdkafka("SCRAM-SHA-512"), **tls, "security.protocol": "SASL_SSL"}
    assert round_trip(secure, "with-tls") == VALUES
    assert not is_let_in({**secure, "sasl.password": "wrong"})
    assert not is_let_in({**tls, "security.protocol": "SSL"})


class PythonTokens(PythonTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def token(self) -> str:
        return access_token("dave")


class AioTokens(AioTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    async def token(self) -> str:
        return access_token("dave")


def of_python(node: SaslNode, mechanism: str, tokens: object) -> Properties:
    """The arguments of kafka-python and aiokafka."""
    common = {
        "bootstrap_servers": node.address(),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**common, "sasl_oauth_token_provider": tokens}
    user = next(name for name, its in USERS.items() if its == mechanism)
    return {**common, "sasl_plain_username": user, "sasl_plain_password": password(user)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(node: SaslNode, mechanism: str) -> None:
    shared = of_python(node, mechanism, PythonTokens())
    topic = f"python-{mechanism}"
    with closing(KafkaProducer(**shared)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(LIVENESS_S)
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=5_000, **shared
    )
    with closing(consumer):
        assert [next(consumer).value for _ in VALUES] == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(node: SaslNode, mechanism: str) -> None:
    topic = f"aio-{mechanism}"
    node.broker.create_topic(topic)

    async def round_trip() -> list[bytes | None]:
        shared = of_python(node, mechanism, AioTokens())
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
    python = {**of_python(node, "PLAIN", None), "sasl_plain_password": "wrong"}
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


@contextmanager
def producing(properties: Properties, topic: str) -> Iterator[list[KafkaError]]:
    """A client that produces all the time; its errors."""
    errors: list[KafkaError] = []
    stopped = threading.Event()
    with_callback: Properties = {**properties, "error_cb": errors.append, "linger.ms": 0}
    producer = Producer(with_callback)

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    def work() -> None:
        while not stopped.is_set():
            producer.produce(topic, b"x", on_delivery=delivered)
            producer.poll(0.01)

    load = threading.Thread(target=work)
    load.start()
    try:
        yield errors
    finally:
        stopped.set()
        load.join()
        producer.purge()


def test_a_revoked_credential_ends_a_session_and_no_other(node: SaslNode) -> None:
    """Both clients authenticate again in time, until one has no credential any more."""
    node.add_user("frank", password("frank"))
    frank, bob = (
        node.librdkafka("SCRAM-SHA-256", listener="EXPIRING", user=user)
        for user in ("frank", "bob")
    )
    with producing(frank, "revoked") as of_frank, producing(bob, "revoked") as of_bob:

        def renewed() -> bool:
            metrics = odradek_metrics(node)
            return metrics.get("reauthentication_success", 0) >= 2

        wait_until(renewed, timeout_s=LIVENESS_S, what="both have authenticated again")
        assert (of_frank, of_bob) == ([], [])
        odradek("user", "remove", "frank", bootstrap=node.broker.bootstrap_servers)
        wait_until(
            lambda: any(e.code() == KafkaError._AUTHENTICATION for e in of_frank),
            timeout_s=LIVENESS_S,
            what="the revoked user is refused",
        )
        assert of_bob == []
    assert odradek_metrics(node).get("expired", 0) == 0


def odradek_metrics(node: SaslNode) -> dict[str, float]:
    """The ends of authentications on the listener whose sessions expire, by outcome."""
    with urllib.request.urlopen(f"http://{node_http(node)}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        line.split('outcome="')[1].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("odradek_authentications") and 'listener="EXPIRING"' in line
    }


def node_http(node: SaslNode) -> str:
    state = json.loads((node.broker.data / "node.json").read_text())
    return str(state["http"])


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafkas_own_tools(node: SaslNode, tmp_path: Path) -> None:
    """kafka-configs sets SCRAM credentials of both mechanisms in one request, and kafka-topics
    authenticates with them."""
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
    properties = tmp_path / "client.properties"
    for mechanism, module in (
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
        ("PLAIN", "plain.PlainLoginModule"),
    ):
        user, secret = ("alice", password("alice")) if mechanism == "PLAIN" else ("grace", "geheim")
        properties.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config="
            f'{LOGIN}.{module} required username="{user}" password="{secret}";\n'
        )
        done = run_java_tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", node.address(), "--command-config", str(properties)),
            *("--create", "--topic", f"java-{mechanism}"),
            directory=tmp_path,
        )
        assert f"Created topic java-{mechanism}." in done.stdout, done.stdout + done.stderr
        made = node.broker.log().split(f"java-{mechanism}")[0].rsplit("\n", 1)[-1]
        assert f"User:{user}" in made


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
