"""Risky settings of a configuration file."""

from pathlib import Path

import pytest

from odradek.cluster.metadata.authorizer_settings import STANDARD_AUTHORIZER
from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS
from odradek.node.cli.exposure_findings import SecurityFinding
from odradek.node.cli.security_settings import settings_findings
from odradek.node.config import load
from odradek.node.hardened_node import HardenedNode, format_hardened, new_bundle

AUTHORIZED = f"authorizer.class.name={STANDARD_AUTHORIZER}\naudit.log.path=/log\n"
JWKS = "sasl.oauthbearer.jwks.endpoint.url"


def findings(folder: Path, text: str) -> list[tuple[str, str]]:
    file = folder / "node.properties"
    file.write_text(f"data={folder / 'data'}\n{text}")
    file.chmod(0o600)
    config = load(file=file, environment={})
    return [(each.severity, each.finding) for each in settings_findings(file, config)]


@pytest.mark.parametrize(
    ("text", "severity", "says"),
    [
        ("listeners=A://:9092", "serious", "listener A: neither encryption nor authentication"),
        ("listeners=A://127.0.0.1:9092", "warning", "for all programs of this machine"),
        (
            "listeners=A://:9092\nlistener.security.protocol.map=A:SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=SCRAM-SHA-512\nconnections.max.reauth.ms=1000",
            "warning",
            "records cross the network",
        ),
        (
            "listeners=A://:9092\nlistener.security.protocol.map=A:SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\nconnections.max.reauth.ms=1000\n"
            'listener.name.a.plain.sasl.jaas.config=x.PlainLoginModule required user_a="b";',
            "serious",
            "PLAIN without encryption",
        ),
        ("listeners=SSL://:9092", "warning", "clients need no certificate"),
        (
            "listeners=SSL://:9092\nssl.client.auth=required",
            "serious",
            "there is no trust store",
        ),
        (
            "listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=SCRAM-SHA-512",
            "advice",
            "stays authenticated for ever",
        ),
        (
            "listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=OAUTHBEARER\n"
            f"connections.max.reauth.ms=1000\n{JWKS}=https://issuer/keys",
            "warning",
            "access tokens for other services",
        ),
        (
            "listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=OAUTHBEARER\n"
            "connections.max.reauth.ms=1000\nsasl.oauthbearer.expected.audience=kafka\n"
            f"{JWKS}=http://issuer/keys",
            "serious",
            "the keys of access tokens come over the network without encryption",
        ),
        (
            "listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=OAUTHBEARER\n"
            "connections.max.reauth.ms=1000\n"
            f"listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class={UNSECURED_TOKENS}",
            "serious",
            "everybody can be anybody",
        ),
    ],
)
def test_listeners(tmp_path: Path, text: str, severity: str, says: str) -> None:
    [(found, told)] = findings(tmp_path, AUTHORIZED + text)
    assert found == severity
    assert says in told


SAFE = (
    "listeners=SASL_SSL://:9092\nsasl.enabled.mechanisms=SCRAM-SHA-512\n"
    "connections.max.reauth.ms=1000\n"
)


@pytest.mark.parametrize(
    ("text", "severity", "says"),
    [
        ("", "serious", "there is no authorizer"),
        (f"{AUTHORIZED}allow.everyone.if.no.acl.found=true", "serious", "has no ACL"),
        (f"{AUTHORIZED}super.users=User:a;User:ANONYMOUS", "serious", "without a login"),
        (f"authorizer.class.name={STANDARD_AUTHORIZER}", "advice", "nobody notes"),
        (f"{AUTHORIZED}peer.listen=127.0.0.1:9192", "warning", "between nodes there is neither"),
        (f"{AUTHORIZED}http.listen=:8080", "warning", "/metrics names topics"),
    ],
)
def test_the_cluster(tmp_path: Path, text: str, severity: str, says: str) -> None:
    [(found, told)] = findings(tmp_path, SAFE + text)
    assert found == severity
    assert says in told


def test_files_that_others_may_open(tmp_path: Path) -> None:
    store = tmp_path / "broker.pem"
    store.write_text("")
    store.chmod(0o640)
    secret = tmp_path / "secret"
    secret.write_text("a secret of sufficient length")
    secret.chmod(0o644)
    text = f"ssl.keystore.location={store}\ncluster.secret.file={secret}\n"
    assert findings(tmp_path, SAFE + AUTHORIZED + text) == [
        ("warning", "it has the private key of the node, and its group may open it"),
        ("serious", "it has the secret of the cluster, and all users may open it"),
    ]
    store.chmod(0o600)
    secret.chmod(0o600)
    assert findings(tmp_path, SAFE + AUTHORIZED + text) == []


def test_log_directories_that_others_may_open(tmp_path: Path) -> None:
    """As older releases made them."""
    for name in ("data", "second"):
        (tmp_path / name).mkdir(mode=0o755)
    text = f"log.dirs={tmp_path / 'data'},{tmp_path / 'second'}\n"
    assert findings(tmp_path, SAFE + AUTHORIZED + text) == [
        ("warning", "it has the records and the credentials of users, and all users may open it"),
        ("warning", "it has records, and all users may open it"),
    ]


def test_a_hardened_node_has_only_advice_once_its_bundle_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    node = HardenedNode(
        folder=folder,
        data=folder / "data",
        node_id=0,
        advertise="broker.example:9093",
        listen=":9093",
    )
    config = format_hardened(node, new_bundle("admin", "password", {}), "password")

    def told() -> list[SecurityFinding]:
        return list(settings_findings(folder / "node.toml", config))

    assert [each.severity for each in told() if each.severity != "advice"] == ["warning"]
    (folder / "cluster.bundle").unlink()
    assert {each.severity for each in told()} == {"advice"}
