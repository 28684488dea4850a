"""Delegation tokens as clients meet them, compared with Apache Kafka 4.3.1 (KIP-48)."""

import base64
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.sasl import SaslAuthenticateResponse
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tests.conformance.dialogue import list_offset
from tests.support.franz_go import NoFranzGo, build_program
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.ports import free_port
from tests.support.token_dialogue import (
    SETTINGS,
    TokenDialogue,
    differences,
    logged_in,
    scram_login,
)
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

pytestmark = pytest.mark.e2e

LOGIN: Final = "org.apache.kafka.common.security"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
PRODUCER: Final = "org.apache.kafka.tools.ProducerPerformance"
SASL_FAILED: Final = ErrorCode.SASL_AUTHENTICATION_FAILED
SHORT_MS: Final = 1_500
"""The life of a token that a test waits for."""


class TokenNode:
    """A broker with a listener for SASL, one without, and one whose clients have to authenticate
    again every three seconds."""

    def __init__(self, folder: Path) -> None:
        self.sasl, self.plaintext, self.expiring = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listeners = f"PLAINTEXT://{self.plaintext},CLIENTS://{self.sasl},EXPIRING://{self.expiring}"
        self.broker = EmbeddedBroker(
            folder,
            settings={
                "listeners": listeners,
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,EXPIRING:SASL_PLAINTEXT"
                ),
                "listener.name.expiring.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.expiring.connections.max.reauth.ms": "3000",
                "log.level": "INFO",
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


def test_a_session_ends_when_its_token_does(node: TokenNode) -> None:
    with logged_in(node.sasl, "carol") as carol:
        request = CreateDelegationTokenRequest(max_lifetime_ms=SHORT_MS)
        short = carol.ask(request, 3, CreateDelegationTokenResponse)
        with WireClient(node.sasl) as wire:
            answer = scram_login(wire, short.token_id, secret_of(short))
            assert 0 < answer.session_lifetime_ms <= SHORT_MS
            assert is_served(wire)
            wait_until(lambda: not is_served(wire), what="the session ends with the token")
        with WireClient(node.sasl) as wire:
            assert scram_login(wire, short.token_id, secret_of(short)).error_code == SASL_FAILED
        assert is_served(carol)


def test_an_expired_token_does_not_authenticate_again(node: TokenNode) -> None:
    """A session goes on with another token of the same owner, and ends with one that expired."""
    with (
        logged_in(node.sasl, "carol") as carol,
        WireClient(node.expiring) as going_on,
        WireClient(node.expiring) as ending,
    ):
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        first, second = (carol.ask(request, 3, CreateDelegationTokenResponse) for _ in range(2))
        for wire in (going_on, ending):
            assert 0 < expiring_login(wire, first).session_lifetime_ms <= 3_000
        expire = ExpireDelegationTokenRequest(hmac=first.hmac, expiry_time_period_ms=-1)
        assert not carol.ask(expire, 2, ExpireDelegationTokenResponse).error_code
        assert is_served(ending)
        # As in Kafka, not in the first second.
        wait_until(lambda: not expiring_login(going_on, second).error_code)
        wait_until(lambda: expiring_login(ending, first).error_code == SASL_FAILED)
        wait_until(lambda: not is_served(ending), what="the refused client is disconnected")
        assert is_served(going_on)


def expiring_login(
    wire: WireClient, token: CreateDelegationTokenResponse
) -> SaslAuthenticateResponse:
    return scram_login(wire, token.token_id, secret_of(token), mechanism="SCRAM-SHA-512")


def secret_of(created: CreateDelegationTokenResponse) -> str:
    return base64.b64encode(created.hmac).decode()


def is_served(wire: WireClient) -> bool:
    try:
        return bool(wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse).brokers)
    except (ClosedByPeer, OSError):
        return False


def test_clients_of_librdkafka_cannot_say_that_it_is_a_token(
    node: TokenNode, tmp_path: Path
) -> None:
    created = TokenCommands(node.sasl, "carol", tmp_path).json("create")
    assert is_let_in(node.sasl, created["token"], created["hmac"])
    told: list[KafkaError] = []
    properties: dict[str, Any] = {
        "bootstrap.servers": node.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": created["token"],
        "sasl.password": created["hmac"],
        "error_cb": told.append,
        "log_level": 0,
    }
    admin = AdminClient(properties)
    wait_until(
        lambda: admin.poll(0.05) or any(e.code() == KafkaError._AUTHENTICATION for e in told),
        what="the client hears that it is refused",
    )


def test_franz_go(node: TokenNode, tmp_path: Path) -> None:
    try:
        program = build_program(tmp_path)
    except NoFranzGo as why:
        pytest.skip(str(why))
    carol = TokenCommands(node.sasl, "carol", tmp_path)
    created = carol.json("create")
    grant(node, "User:carol", "franz")

    def run() -> subprocess.CompletedProcess[str]:
        secret = {"FRANZ_TOKEN": created["token"], "FRANZ_HMAC": created["hmac"]}
        return subprocess.run(
            [str(program), "-bootstrap", node.sasl, "-name", "franz", "-timeout", "10s", "token"],
            env={**os.environ, **secret},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    done = run()
    assert json.loads(done.stdout or "{}") == {"read": 10}, done.stderr
    made = node.broker.log().split("franz")[0].rsplit("\n", 1)[-1]
    assert "User:carol" in made
    carol.json("expire", created["token"])
    assert "SASL_AUTHENTICATION_FAILED" in run().stderr


def grant(node: TokenNode, principal: str, topic: str) -> None:
    """Who it is may do everything with the topic."""
    ran = CliRunner().invoke(
        cli,
        [
            *("-b", node.plaintext, "acl", "add", "--principal", principal, "--topic", topic),
            *("--operation", "all"),
        ],
    )
    assert ran.exit_code == 0, ran.output


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafka_delegation_tokens(node: TokenNode, tmp_path: Path) -> None:
    """kafka-delegation-tokens.sh: --create, --describe, --renew and --expire, with a producer that
    has the token meanwhile and must authenticate again."""
    carol = tmp_path / "java-carol.properties"
    carol.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        f'{LOGIN}.plain.PlainLoginModule required username="carol" password="carol";\n'
    )

    def tool(*arguments: str) -> str:
        server = ("--bootstrap-server", node.sasl, "--command-config", str(carol))
        done = run_java_tool(TOKENS, *server, *arguments, directory=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    created = tool(
        *("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:dave")
    )
    found = re.search(r"^Created delegation token with tokenId : (\S+)", created, re.MULTILINE)
    assert found is not None, created
    token_id = found[1]
    [row] = [line.split() for line in created.splitlines() if line.startswith(token_id)]
    secret = row[1]
    assert row[2:5] == ["User:carol", "User:carol", "[User:dave]"]
    described = tool("--describe", "--owner-principal", "User:carol")
    assert "Total number of tokens : " in described
    assert [line.split()[:5] for line in described.splitlines() if line.startswith(token_id)] == [
        row[:5]
    ]
    renewed = tool("--renew", "--hmac", secret, "--renew-time-period", "3600000")
    assert "Completed renew operation. New expiry date : " in renewed

    grant(node, "User:carol", "java")
    client = tmp_path / "token.properties"
    client.write_text(
        f"bootstrap.servers={node.expiring}\nsecurity.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
        f'{LOGIN}.scram.ScramLoginModule required username="{token_id}" password="{secret}"'
        ' tokenauth="true";\ndelivery.timeout.ms=6000\nmax.block.ms=2000\nrequest.timeout.ms=3000\n'
    )
    with ThreadPoolExecutor(1) as pool, WireClient(node.plaintext) as wire:
        producing = pool.submit(
            run_java_tool,
            PRODUCER,
            *("--topic", "java", "--num-records", "30", "--record-size", "10"),
            *("--throughput", "3", "--command-config", str(client)),
            directory=tmp_path,
            is_alone=True,
        )
        wait_until(
            lambda: producing.done() or end_of(wire, "java") > 0,
            what="the client with the token produces",
        )
        expired = tool("--expire", "--hmac", secret, "--expiry-time-period", "-1")
        assert "Completed expire operation. New expiry date : " in expired
        done = producing.result()
        assert end_of(wire, "java") < 30
    assert "SaslAuthenticationException" in done.stdout + done.stderr


def end_of(wire: WireClient, topic: str) -> int:
    """How many records the topic has; none while it does not exist."""
    return max(0, list_offset(wire, topic, -1).offset)
