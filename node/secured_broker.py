"""A node whose clients have to authenticate, with ready credentials: for tests of other projects.

Its listener CLIENTS has SASL with every mechanism. Another listener, without it, is for the fixture
itself: a client that uses `bootstrap_servers` cannot come in by it. Passwords and the key that
signs access tokens are new for each broker.
"""

import json
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from odradek.cluster.metadata.scram import (
    ITERATIONS_MIN,
    SALT_RANDOM_BYTES,
    ScramMechanism,
    salt_of,
    salted_password,
)
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_KEY_ID: Final = "test"
# The environment of a process is its user's; its arguments are everybody's.
_PLAIN_USERS: Final = "ODRADEK_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG"


class SecuredBroker:
    """A context manager. `user` and `password` are those of PLAIN and SCRAM."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        """`directory` gets data, log and keys; `settings` are added to those of the listeners."""
        self.user = "alice"
        self.password = secrets.token_urlsafe(16)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._port = _free_port()
        directory.mkdir(parents=True, exist_ok=True)
        jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        keys = directory / "keys.json"
        keys.write_text(json.dumps({"keys": [{**jwk, "kid": _KEY_ID}]}))
        self.broker = EmbeddedBroker(
            directory,
            settings={
                "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{self._port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
                "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
                **(settings or {}),
            },
        )
        """The node itself: to create topics, to restart it, to kill its processes."""
        self.broker.environment[_PLAIN_USERS] = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' user_{self.user}="{self.password}";'
        )

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the listener with SASL_PLAINTEXT."""
        return f"127.0.0.1:{self._port}"

    def properties(self, mechanism: str) -> dict[str, str]:
        """librdkafka's properties of a client that authenticates with PLAIN or SCRAM; for
        OAUTHBEARER the client has to be given `access_token` in its own way."""
        properties = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return properties
        return {**properties, "sasl.username": self.user, "sasl.password": self.password}

    def access_token(self, name: str = "alice", *, lifetime_s: float = 3600) -> str:
        """A token of OAUTHBEARER for any name; with a negative lifetime it has expired."""
        now_s = time.time()
        claims = {"sub": name, "iat": now_s - 3600, "exp": now_s + lifetime_s}
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": _KEY_ID})

    def add_user(self, name: str, password: str) -> None:
        """Let another user authenticate with SCRAM, or change the password. Raises ApiError."""
        upsertions = []
        for mechanism in ScramMechanism:
            salt = salt_of(secrets.token_bytes(SALT_RANDOM_BYTES))
            upsertions.append(
                ScramCredentialUpsertion(
                    name=name,
                    mechanism=mechanism,
                    iterations=ITERATIONS_MIN,
                    salt=salt,
                    salted_password=salted_password(mechanism, password, salt, ITERATIONS_MIN),
                )
            )
        self._alter(AlterUserScramCredentialsRequest(upsertions=upsertions))

    def remove_user(self, name: str) -> None:
        """Take a user's SCRAM credentials away. Connections that exist stay. Raises ApiError."""
        deletions = [
            ScramCredentialDeletion(name=name, mechanism=mechanism) for mechanism in ScramMechanism
        ]
        self._alter(AlterUserScramCredentialsRequest(deletions=deletions))

    def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        for result in self.broker.ask(request).results:
            if result.error_code:
                raise ApiError(ErrorCode(result.error_code), result.error_message)

    def __enter__(self) -> Self:
        self.broker.__enter__()
        self.add_user(self.user, self.password)
        return self

    def __exit__(self, *error: object) -> None:
        self.broker.__exit__(*error)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
