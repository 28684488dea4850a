"""What a stranger finds at an address: a broker with a listener of each kind, and old TLS."""

import json
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS
from odradek.node.cli import exposure
from odradek.node.cli.exposure import Exposure, OldTlsVersions, probe_exposure
from odradek.node.cli.probe import Address
from odradek.node.embedded import EmbeddedBroker
from tests.node.cli.conftest import Run
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port
from tests.support.secure_endpoint import PASSWORD, USERNAME, secure_endpoint
from tests.support.stand_in_cluster import stand_in_cluster

HANDLER = "oauthbearer.sasl.server.callback.handler.class"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PROTOCOLS = {
    "OPEN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "WEAK": "SASL_PLAINTEXT",
    "TOKENS": "SASL_PLAINTEXT",
    "SAFE": "SASL_SSL",
    "OWN": "SASL_SSL",
}
NO_AUTHORIZER = "the cluster has no authorizer"
PUBLISHED = "as admin with a password of Kafka's documentation (PLAIN)"
UNSIGNED = "with an access token that nobody has signed"
EXPIRES = ("warning", "its certificate expires in 20 days")
CLEARTEXT = ("serious", "without encryption: whoever listens")
NO_RIGHTS = "sees the addresses of the brokers; ACLs forbid the rest"
FINDINGS: dict[str, dict[bool, list[tuple[str, str]]]] = {
    "OPEN": {
        True: [("warning", f"is let in without credentials, and {NO_RIGHTS}")],
        False: [("serious", f"may do everything, without credentials: {NO_AUTHORIZER}")],
    },
    "TLS": {
        True: [("warning", f"is let in without credentials, and {NO_RIGHTS}"), EXPIRES],
        False: [("serious", f"may do everything, without credentials: {NO_AUTHORIZER}"), EXPIRES],
    },
    "MUTUAL": {
        True: [EXPIRES],
        False: [EXPIRES, ("warning", f"whoever has a login may do everything: {NO_AUTHORIZER}")],
    },
    "WEAK": {
        True: [("serious", f"send requests that only brokers send, {PUBLISHED}"), CLEARTEXT],
        False: [("serious", f"may do everything, {PUBLISHED}: {NO_AUTHORIZER}"), CLEARTEXT],
    },
    "TOKENS": {
        True: [("serious", f"anybody can authenticate {UNSIGNED}"), CLEARTEXT],
        False: [("serious", f"may do everything, {UNSIGNED}: {NO_AUTHORIZER}"), CLEARTEXT],
    },
    "SAFE": {True: [EXPIRES], False: [EXPIRES]},
    "OWN": {
        True: [EXPIRES],
        False: [EXPIRES, ("warning", f"whoever has a login may do everything: {NO_AUTHORIZER}")],
    },
}
"""Of each listener, with an authorizer and without. The same was found at listeners of these kinds
of Kafka 4.3.1 (SASL_PLAINTEXT and SASL_SSL with PLAIN and SCRAM-SHA-512, SSL with and without
client certificates, PLAINTEXT; `odradek doctor --security localhost:PORT`)."""


def options(properties: dict[str, str]) -> list[str]:
    """Properties as options of a command."""
    return [part for key, text in properties.items() for part in ("-X", f"{key}={text}")]


class ManyListeners:
    """A broker with ACLs, of which there are none, and a listener of each kind."""

    def __init__(self, folder: Path) -> None:
        self.authority = TestAuthority(folder)
        self.client = self.authority.issue("client.pem", common_name="shop")
        store = self.authority.issue("broker.pem", valid_s=20 * 86_400)
        self.ports = {name: free_port() for name in PROTOCOLS}
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        self.broker = EmbeddedBroker(
            folder / "node",
            settings={
                "listeners": ",".join(["PLAINTEXT://127.0.0.1:0", *addresses]),
                "listener.security.protocol.map": ",".join(
                    ["PLAINTEXT:PLAINTEXT", *(f"{k}:{v}" for k, v in PROTOCOLS.items())]
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(store),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.certificate),
                "listener.name.mutual.ssl.client.auth": "required",
                "listener.name.weak.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.weak.plain.sasl.jaas.config": f'{LOGIN} user_admin="admin-secret";',
                "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
                f"listener.name.tokens.{HANDLER}": UNSECURED_TOKENS,
                "listener.name.safe.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.own.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.own.plain.sasl.jaas.config": f'{LOGIN} user_shop="a password";',
                "connection.failed.authentication.delay.ms": "1",
            },
        )

    def login(self, listener: str) -> dict[str, str]:
        """The properties of a client of this listener that is no admin, and no stranger."""
        if listener == "MUTUAL":
            files = ("ssl.certificate.location", "ssl.key.location")
            return {"security.protocol": "SSL", **dict.fromkeys(files, str(self.client))}
        if listener != "OWN":
            return {}
        user = {"sasl.username": "shop", "sasl.password": "a password"}
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **user}

    def probe(self, listener: str, **properties: str) -> Exposure:
        named = {key.replace("_", "."): text for key, text in properties.items()}
        address = Address("127.0.0.1", self.ports[listener])
        return probe_exposure(address, 10.0, named, OldTlsVersions())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyListeners]:
    node = ManyListeners(tmp_path_factory.mktemp("exposure"))
    with node.broker:
        yield node


@pytest.mark.e2e
def test_a_listener_without_authentication_lets_everybody_in(node: ManyListeners) -> None:
    for listener, protocol in (("OPEN", "PLAINTEXT"), ("TLS", "SSL")):
        found = node.probe(listener)
        assert (found.protocol, found.failure, found.is_loopback) == (protocol, "", True)
        [access] = found.ways_in
        assert (access.entrance, access.has_authorizer) == ("without credentials", True)
        assert access.cluster_operations == frozenset()
        rights = (access.can_create_topics, access.reads_acls, access.reads_broker_configs)
        assert not any(rights)
        assert list(access.brokers) == [0]


@pytest.mark.e2e
def test_a_listener_with_authentication_lets_nobody_in(node: ManyListeners) -> None:
    found = node.probe("SAFE")
    assert (found.protocol, found.mechanisms) == ("SASL_SSL", ("SCRAM-SHA-512",))
    assert found.ways_in == []
    found = node.probe("MUTUAL")
    assert (found.protocol, found.wants_client_certificate) == ("SSL", True)
    assert found.ways_in == []


@pytest.mark.e2e
def test_documented_passwords_and_unsigned_tokens_are_tried(node: ManyListeners) -> None:
    found = node.probe("WEAK")
    assert (found.protocol, found.mechanisms) == ("SASL_PLAINTEXT", ("PLAIN",))
    [access] = found.ways_in
    assert access.entrance.startswith("as admin with a password of Kafka's documentation")
    assert access.can_create_topics
    assert access.reads_acls
    assert access.reads_users
    assert AclOperation.CLUSTER_ACTION in access.cluster_operations
    [access] = node.probe("TOKENS").ways_in
    assert access.entrance == "with an access token that nobody has signed"
    assert not access.can_create_topics


@pytest.mark.e2e
def test_what_is_found_with_and_without_an_authorizer(node: ManyListeners, odradek: Run) -> None:
    admin = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    admin |= {"sasl.username": "admin", "sasl.password": "admin-secret"}
    weak = ("-b", f"127.0.0.1:{node.ports['WEAK']}", *options(admin))
    for has_authorizer in (True, False):
        if not has_authorizer:
            told = odradek("config", "set", "broker", "default", "authorizer.class.name=", *weak)
            assert told.exit_code == 0, told.stderr
        for listener, expected in FINDINGS.items():
            address = f"127.0.0.1:{node.ports[listener]}"
            own = options(
                {"ssl.ca.location": str(node.authority.certificate), **node.login(listener)}
            )
            ran = odradek("doctor", "--security", address, *own, "-o", "json")
            found = [
                (each["severity"], each["finding"]) for each in json.loads(ran.stdout)["findings"]
            ]
            for (severity, text), (is_severity, is_text) in zip(
                expected[has_authorizer], found, strict=True
            ):
                assert (is_severity, text in is_text) == (severity, True), (listener, found)
            assert ran.exit_code == any(severity == "serious" for severity, _ in found)
    told = odradek("config", "unset", "broker", "default", "authorizer.class.name", *weak)
    assert told.exit_code == 0, told.stderr


@pytest.mark.e2e
def test_the_certificate_is_judged_as_a_client_would(node: ManyListeners) -> None:
    found = node.probe("SAFE")
    assert found.tls_version == "TLSv1.3"
    assert found.old_tls_versions == ()
    assert "CN=broker" in found.certificate_subject
    assert found.certificate_days is not None
    assert 19 < found.certificate_days <= 20
    assert "unable to get local issuer" in found.certificate_problem
    assert not found.is_wrong_name
    known = node.probe("SAFE", ssl_ca_location=str(node.authority.certificate))
    assert known.certificate_problem == ""


@pytest.mark.e2e
def test_looking_changes_nothing(odradek: Run, bootstrap: str) -> None:
    def topics() -> object:
        return odradek("topic", "list", "--internal", "-o", "json", bootstrap=bootstrap).json()

    before = topics()
    host, _, port = bootstrap.rpartition(":")
    found = probe_exposure(Address(host, int(port)), 10.0, {}, OldTlsVersions())
    [access] = found.ways_in
    assert (access.has_authorizer, access.can_create_topics) == (False, True)
    assert topics() == before


@contextmanager
def server_of_old_tls(store: Path) -> Iterator[int]:
    """Accepts TLS 1.0 and newer, and then says nothing; its port."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.load_cert_chain(store)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with suppress(OSError), context.wrap_socket(client, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.skipif(not ssl.HAS_TLSv1, reason="this OpenSSL has no TLS 1.0 to accept")
def test_old_versions_of_tls_and_wrong_names_are_noticed(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    with server_of_old_tls(authority.issue("store.pem", "other.example")) as port:
        trusted = {"ssl.ca.location": str(authority.certificate)}
        found = probe_exposure(Address("127.0.0.1", port), 10.0, trusted, OldTlsVersions())
    assert found.old_tls_versions == ("TLSv1", "TLSv1.1")
    assert found.is_wrong_name
    assert "IP address mismatch" in found.certificate_problem


def test_an_address_at_which_nobody_answers_is_unknown() -> None:
    found = probe_exposure(Address("127.0.0.1", free_port()), 5.0, {}, OldTlsVersions())
    assert found.failure == "Connection refused"
    assert (found.protocol, found.ways_in) == ("", [])


def test_a_login_that_is_accepted_is_a_way_in_whatever_is_answered_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposure, "DOCUMENTED_PASSWORDS", ((USERNAME, PASSWORD),))
    with (
        stand_in_cluster(1) as cluster,
        secure_endpoint(None, has_sasl=True) as endpoint,
    ):
        endpoint.target_port = int(cluster.bootstrap.split(",")[0].rpartition(":")[2])
        found = probe_exposure(Address("127.0.0.1", endpoint.port), 1.0, {}, OldTlsVersions())
    ways_in = [each.entrance for each in found.ways_in if "OAUTHBEARER" not in each.entrance]
    assert [each.rpartition("(")[2] for each in ways_in] == [
        *("PLAIN)", "SCRAM-SHA-256)", "SCRAM-SHA-512)")
    ]
