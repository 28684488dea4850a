"""A broker whose clients authenticate with SASL, with and without TLS, for ever or for three
seconds."""

import json
import ssl
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jwt
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from tests.support.certificates import TestAuthority
from tests.support.ports import free_port

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

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
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
            settings={
                **sasl_settings(folder, self.ports),
                **tls,
                "http.listen": "127.0.0.1:0",
                **settings,
            },
        )

    def address(self, listener: str = "CLIENTS") -> str:
        # The name in the certificate of TLS.
        host = "localhost" if listener == "SECURE" else "127.0.0.1"
        return f"{host}:{self.ports[listener]}"

    def add_user(self, name: str, secret: str) -> None:
        odradek(
            *("user", "add", name, "--password-file", "-"),
            bootstrap=self.broker.bootstrap_servers,
            stdin=secret,
        )

    def librdkafka(
        self, mechanism: str, *, listener: str = "CLIENTS", user: str = "", secret: str = ""
    ) -> Properties:
        user = user or user_of(mechanism)
        common = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": protocol(listener),
            "sasl.mechanism": mechanism,
            "log_level": 0,
        }
        if listener == "SECURE":
            common["ssl.ca.location"] = str(self.authority.certificate)
        if mechanism == "OAUTHBEARER":
            # confluent-kafka's callback returns the token and when it expires.
            return {**common, "oauth_cb": lambda _: (access_token(user), time.time() + 600)}
        return {**common, "sasl.username": user, "sasl.password": secret or password(user)}

    def python(
        self, mechanism: str, tokens: object, *, listener: str = "CLIENTS", user: str = ""
    ) -> Properties:
        """The arguments of kafka-python and aiokafka."""
        common: Properties = {
            "bootstrap_servers": self.address(listener),
            "security_protocol": protocol(listener),
            "sasl_mechanism": mechanism,
        }
        if listener == "SECURE":
            common["ssl_context"] = ssl.create_default_context(cafile=self.authority.certificate)
        if mechanism == "OAUTHBEARER":
            return {**common, "sasl_oauth_token_provider": tokens}
        user = user or user_of(mechanism)
        return {**common, "sasl_plain_username": user, "sasl_plain_password": password(user)}

    def java(self, mechanism: str, token: Path, *, listener: str = "CLIENTS") -> str:
        """The content of a file of properties; an access token is in a file of its own."""
        lines = [
            f"bootstrap.servers={self.address(listener)}",
            f"security.protocol={protocol(listener)}",
            f"sasl.mechanism={mechanism}",
        ]
        if listener == "SECURE":
            lines.append("ssl.truststore.type=PEM")
            lines.append(f"ssl.truststore.location={self.authority.certificate}")
        if mechanism == "OAUTHBEARER":
            lines += [
                f"sasl.jaas.config={LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
                f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}",
                f"sasl.login.callback.handler.class={LOGIN}.oauthbearer"
                ".OAuthBearerLoginCallbackHandler",
                # The login fetches a token when half the lifetime of the last one is over.
                "sasl.login.refresh.window.factor=0.5",
                "sasl.login.refresh.min.period.seconds=0",
                "sasl.login.refresh.buffer.seconds=0",
            ]
            return "\n".join(lines)
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        user = user_of(mechanism)
        lines.append(
            f"sasl.jaas.config={LOGIN}.{kind}LoginModule required"
            f' username="{user}" password="{password(user)}";'
        )
        return "\n".join(lines)


def user_of(mechanism: str) -> str:
    return next(name for name, its in USERS.items() if its == mechanism)


def protocol(listener: str) -> str:
    return "SASL_SSL" if listener == "SECURE" else "SASL_PLAINTEXT"


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
