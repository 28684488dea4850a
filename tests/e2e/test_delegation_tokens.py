"""Delegation tokens as clients meet them, compared with Apache Kafka 4.3.1 (KIP-48)."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from tests.support.ports import free_port
from tests.support.token_dialogue import SETTINGS, TokenDialogue, differences, scram_login
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e


class TokenNode:
    """A broker with a listener for SASL and one without."""

    def __init__(self, folder: Path) -> None:
        self.sasl, self.plaintext = (f"127.0.0.1:{free_port()}" for _ in range(2))
        listeners = f"PLAINTEXT://{self.plaintext},SASL_PLAINTEXT://{self.sasl}"
        self.broker = EmbeddedBroker(
            folder,
            settings={
                "listeners": listeners,
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
                ),
                **SETTINGS,
            },
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenNode]:
    node = TokenNode(tmp_path_factory.mktemp("tokens"))
    with node.broker:
        yield node


def test_every_answer_is_kafkas(node: TokenNode) -> None:
    found = differences(TokenDialogue(node.sasl, node.plaintext).run())
    # A client that had such a token would be User:carol in Kafka, whom nobody was asked about.
    answer, of_kafka = found.pop("create of another type for carol")
    assert (answer["error"], of_kafka["error"]) == (67, 0)
    assert not found, found
    assert "a key for the dialogue" not in node.broker.log()


class TokenCommands:
    """`odradek token` of one user, who authenticates with PLAIN."""

    def __init__(self, address: str, user: str, folder: Path) -> None:
        self._address = address
        self._properties = folder / f"{user}.properties"
        self._properties.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.username={user}\nsasl.password={user}\n"
        )

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> Result:
        own = [name for name in os.environ if name.startswith("ODRADEK_")]
        named = {
            **dict.fromkeys(own),
            "ODRADEK_BOOTSTRAP": self._address,
            "ODRADEK_CLIENT_CONFIG": str(self._properties),
            **environment,
        }
        return CliRunner().invoke(cli, ["token", *arguments], input=stdin, env=named)

    def json(self, *arguments: str, stdin: str = "", **environment: str) -> Any:  # noqa: ANN401
        ran = self.run(*arguments, "-o", "json", stdin=stdin, **environment)
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    def error(self, *arguments: str, stdin: str = "") -> str:
        ran = self.run(*arguments, stdin=stdin)
        assert ran.exit_code == 1, ran.output
        assert not ran.stdout
        return ran.stderr


def is_let_in(address: str, token_id: str, secret: str) -> bool:
    """Whether a client with the token is."""
    with WireClient(address) as wire:
        return not scram_login(wire, token_id, secret).error_code


def test_tokens_on_the_command_line(node: TokenNode, tmp_path: Path) -> None:
    carol, dave, bob = (
        TokenCommands(node.sasl, user, tmp_path) for user in ("carol", "dave", "bob")
    )
    file = tmp_path / "hmac"
    created = carol.json(
        *("create", "--hmac-file", str(file), "--renewer", "dave", "--max-lifetime", "12h")
    )
    secret = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hmac" not in created
    token_id = created["token"]
    assert is_let_in(node.sasl, token_id, secret)

    [listed] = [each for each in dave.json("list") if each["token"] == token_id]
    assert listed["owner"] == listed["requester"] == "User:carol"
    assert listed["renewers"] == ["User:dave"]
    assert listed["expires"] == created["expires"] == listed["renewable_until"]
    shown = carol.run("list", "--owner", "carol").stdout
    assert token_id in shown
    assert secret not in shown + json.dumps(carol.json("list"))
    assert token_id not in bob.run("list").output

    sooner = dave.json("renew", token_id, "--for", "1h")
    assert sooner["expires"] < created["expires"]
    later = carol.json("renew", "--hmac-file", str(file))
    assert later["expires"] == created["renewable_until"]
    assert dave.json("renew", "--hmac-env", "SECRET", SECRET=secret)["token"] is None
    assert "no such delegation token that you may see" in bob.error("renew", token_id)
    refused = bob.error("expire", "--hmac-file", "-", stdin=f"{secret}\n")
    assert "DELEGATION_TOKEN_OWNER_MISMATCH" in refused
    soon = carol.json("expire", token_id, "--in", "30m")
    assert soon["expires"] < sooner["expires"]
    assert not soon["is_removed"]
    assert "the token is removed" in dave.run("expire", token_id).stdout
    assert not is_let_in(node.sasl, token_id, secret)
    assert "DELEGATION_TOKEN_NOT_FOUND" in carol.error("expire", "--hmac-file", str(file))


def test_a_token_of_another_owner_is_shown_once(node: TokenNode, tmp_path: Path) -> None:
    admin, bob = (TokenCommands(node.sasl, user, tmp_path) for user in ("admin", "bob"))
    facts = admin.run("create", "--owner", "bob").stdout
    shown = dict(re.findall(r"(?m)^(TOKEN|OWNER|HMAC) +(\S+)$", facts))
    assert shown["OWNER"] == "User:bob"
    assert is_let_in(node.sasl, shown["TOKEN"], shown["HMAC"])
    listed = {each["token"]: each["requester"] for each in bob.json("list", "--owner", "bob")}
    assert listed[shown["TOKEN"]] == "User:admin"
    file = tmp_path / "denied"
    said = bob.error("create", "--owner", "User:admin", "--hmac-file", str(file))
    assert "DELEGATION_TOKEN_AUTHORIZATION_FAILED" in said
    assert not file.exists()
    nobody = CliRunner().invoke(cli, ["-b", node.plaintext, "token", "list"])
    assert nobody.exit_code == 1
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in nobody.stderr
