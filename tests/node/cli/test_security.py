"""Commands over TLS and SASL: librdkafka's properties for our own connections."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from odradek.node.cli.connection import make_connection
from odradek.node.cli.security import Security
from odradek.node.embedded import EmbeddedBroker
from tests.node.cli.conftest import Ran, Run
from tests.support.secure_endpoint import (
    PASSWORD,
    USERNAME,
    Certificates,
    SecureEndpoint,
    has_openssl,
    make_certificates,
    secure_endpoint,
)

CREDENTIALS = ("-X", f"sasl.username={USERNAME}", "-X", f"sasl.password={PASSWORD}")


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker that clients reach by a TLS and SASL endpoint only."""

    endpoint: SecureEndpoint
    certificates: Certificates
    run: Run

    def __call__(self, *arguments: str, mechanism: str = "PLAIN", trusts: bool = True) -> Ran:
        properties = ["security.protocol=SASL_SSL", f"sasl.mechanism={mechanism}"]
        if trusts:
            properties.append(f"ssl.ca.location={self.certificates.authority}")
        options = [part for each in properties for part in ("-X", each)]
        if not any(argument.startswith("sasl.") for argument in arguments):
            options += CREDENTIALS
        bootstrap = f"localhost:{self.endpoint.port}"
        return self.run(*arguments, *options, "--timeout", "20", bootstrap=bootstrap)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if not has_openssl():
        pytest.skip("no openssl to make certificates with")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def endpoint(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SecureEndpoint]:
    with secure_endpoint(certificates, has_sasl=True) as endpoint:
        settings = {"advertised.listeners": f"PLAINTEXT://localhost:{endpoint.port}"}
        broker = EmbeddedBroker(tmp_path_factory.mktemp("secured"), settings=settings)
        broker.start()
        endpoint.target_port = int(broker.bootstrap_servers.rpartition(":")[2])
        yield endpoint
        broker.kill()


@pytest.fixture
def secured(odradek: Run, endpoint: SecureEndpoint, certificates: Certificates) -> Secured:
    return Secured(endpoint, certificates, odradek)


@pytest.mark.e2e
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_kind_of_command_works_over_tls_and_sasl(secured: Secured, mechanism: str) -> None:
    topic = f"t-{mechanism.lower()}"
    group = f"g-{mechanism.lower()}"
    seen = len(secured.endpoint.mechanisms)

    def run(*arguments: str) -> Ran:
        ran = secured(*arguments, mechanism=mechanism)
        assert ran.exit_code == 0, ran.stderr
        return ran

    run("topic", "create", topic)
    run("produce", topic, "a", "b")
    assert run("consume", topic, "--group", group).stdout == "a\nb\n"
    run("group", "wait", group)
    assert "The group has no members" in run("group", "explain", group).stdout
    assert run("group", "lag", group, "-o", "json").json()
    run("group", "rewind", group, "-t", topic, "--to", "earliest")
    assert group in run("group", "list").stdout
    assert run("group", "describe", group, "-o", "json").json()
    run("topic", "explain", topic)
    assert run("cluster", "status", "-o", "json").json()
    run("cluster", "rebalance", "--dry-run")
    run("txn", "list")
    run("config", "list", "broker", "default")
    run("group", "delete", group, "--yes", "--force")
    assert set(secured.endpoint.mechanisms[seen:]) == {mechanism}


@pytest.mark.e2e
def test_unsecured_tokens_of_librdkafka_are_sent(secured: Secured) -> None:
    token = ("-X", f"sasl.oauthbearer.config=principal={USERNAME} scope=a,b")
    allow = ("-X", "enable.sasl.oauthbearer.unsecure.jwt=true")
    ran = secured("group", "lag", "--all", *token, *allow, mechanism="OAUTHBEARER")
    assert ran.exit_code == 0, ran.stderr
    other = ("-X", "sasl.oauthbearer.config=principal=mallory")
    ran = secured("group", "lag", "--all", *other, *allow, mechanism="OAUTHBEARER")
    assert "SASL authentication failed" in ran.stderr
    ran = secured("group", "lag", "--all", *other, mechanism="OAUTHBEARER")
    assert "set sasl.oauthbearer.method=oidc" in ran.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_credentials_are_an_error_at_once(secured: Secured, mechanism: str) -> None:
    wrong = ("-X", f"sasl.username={USERNAME}", "-X", "sasl.password=wrong")
    ran = secured("group", "lag", "--all", *wrong, mechanism=mechanism)
    assert ran.exit_code == 1
    assert ran.stderr == "Error: SASL authentication failed: Authentication failed\n"


@pytest.mark.e2e
def test_an_unsupported_mechanism_is_an_error_with_the_supported_ones(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = secured("group", "lag", "--all", mechanism="GSSAPI")
    assert "sasl.mechanism GSSAPI is not supported by this command: set one of PLAIN" in ran.stderr


@pytest.mark.e2e
def test_a_certificate_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    ran = secured("group", "lag", "--all", "--timeout", "1", trusts=False)
    assert ran.exit_code == 1
    assert "certificate verify failed" in ran.stderr


@pytest.mark.e2e
def test_a_client_certificate_is_sent_where_it_is_required(
    odradek: Run, certificates: Certificates, kafka_broker: EmbeddedBroker
) -> None:
    with secure_endpoint(certificates, has_sasl=False, wants_certificate=True) as endpoint:
        endpoint.target_port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
        text = certificates.certificate.read_text(), certificates.key.read_text()
        connection = make_connection(f"localhost:{endpoint.port}", 10.0, None, ())
        connection.properties = {
            "security.protocol": "ssl",
            "ssl.ca.pem": certificates.authority.read_text(),
            "ssl.certificate.pem": text[0],
            "ssl.key.pem": text[1],
        }
        with connection.connect("localhost", endpoint.port) as client:
            assert client.serves(3)  # type: ignore[arg-type]  # Metadata
        without = make_connection(f"localhost:{endpoint.port}", 10.0, None, ())
        without.properties = {
            "security.protocol": "ssl",
            "ssl.ca.location": str(certificates.authority),
        }
        with pytest.raises((OSError, Exception)), without.connect("localhost", endpoint.port) as c:
            c.serves(3)  # type: ignore[arg-type]


@pytest.mark.e2e
def test_the_doctor_connects_as_clients_do(odradek: Run, secured: Secured) -> None:
    address = f"localhost:{secured.endpoint.port}"
    plain = odradek("doctor", address)
    assert "TLS" in plain.stderr
    untrusted = odradek("doctor", address, "-X", "security.protocol=SSL")
    assert "-X ssl.ca.location=FILE" in untrusted.stderr
    trusted = ["-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=SCRAM-SHA-512"]
    trusted += ["-X", f"ssl.ca.location={secured.certificates.authority}", *CREDENTIALS]
    ran = odradek("doctor", address, *trusted)
    assert "Every address can be used from here." in ran.stderr, ran.stderr


def test_properties_choose_what_is_verified(tmp_path: Path) -> None:
    assert Security.of({}) == Security()
    tls = Security.of({"security.protocol": "ssl"}).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    any_name = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    tls = Security.of(any_name).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, False)
    unverified = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    tls = Security.of(unverified).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"security.protocol": "QUIC"}, "QUIC is not one of PLAINTEXT, SSL"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "a.p12"},
            "ssl.keystore.location is not supported",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "cannot be used"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism GSSAPI is not supported"),
    ],
)
def test_unsupported_properties_are_refused(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(click.ClickException, match=complaint):
        Security.of(properties)
