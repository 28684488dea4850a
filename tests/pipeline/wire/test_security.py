"""Kafka's options of security, in Java's spelling and in librdkafka's."""

from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.security import TokenFile, WireSecurity, wire_security
from tests.support.certificates import TestAuthority

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def test_without_options_nothing_is_secured() -> None:
    found = wire_security({"group.id": "g"})
    assert found == WireSecurity()
    assert not found.uses_tls
    assert not found.uses_sasl


@pytest.mark.parametrize(
    "credentials",
    [
        {"sasl.username": 'al"ice', "sasl.password": "a b"},
        {"sasl.jaas.config": JAAS + ' username="al\\"ice" password="a b";'},
        {"sasl.jaas.config": JAAS + " password='a b' username='al\"ice' ;"},
    ],
)
def test_user_and_password(credentials: dict[str, str]) -> None:
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "scram-sha-256"}
    found = wire_security({**options, **credentials})
    assert (found.protocol, found.mechanism) == ("SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert (found.username, found.password) == ('al"ice', "a b")
    assert found.uses_sasl
    assert "a b" not in repr(found)


def test_librdkafkas_name_of_the_mechanism() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"}
    found = wire_security({**options, "sasl.username": "a", "sasl.password": "b"})
    assert found.mechanism == "PLAIN"
    assert found.uses_tls


def test_files_in_both_spellings(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    store = authority.issue("client.pem")
    java = wire_security(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.keystore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    other = wire_security(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.certificate),
            "ssl.certificate.location": str(store),
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert java == other
    assert java.ca_file == str(authority.certificate)
    assert not java.check_hostname
    assert not java.tls_context().check_hostname
    assert java.tls_context().cert_store_stats()["x509_ca"] == 1


def test_a_file_that_is_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    found = wire_security({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with pytest.raises(PipelineError, match=r"ca\.pem"):
        found.tls_context()


def test_a_token_is_read_when_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    found = wire_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        }
    )
    assert found.token == TokenFile(str(file))
    with pytest.raises(PipelineError, match="cannot be read"):
        found.token()
    file.write_text("one\n")
    assert found.token() == "one"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}, "no file"),
        (
            {"ssl.keystore.location": "k.jks", "ssl.keystore.type": "JKS"},
            "Convert the store to PEM",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
            },
            "no file",
        ),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, str], reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        wire_security(options)
