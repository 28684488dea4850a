"""Access control lists with clients that have logged in: a real client, ours and Kafka's tools."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.ports import free_port
from tests.support.waiting import wait_until

LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ACLS: Final = "org.apache.kafka.tools.AclCommand"
PASSWORDS: Final = {"alice": "alice-secret", "bob": "bob-secret"}
TIMEOUT_S: Final = 30.0

Odradek = Callable[..., object]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("access-control")
    port = free_port()
    broker = EmbeddedBroker(
        folder,
        settings={
            "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:alice",
            "audit.log.path": str(folder / "audit.log"),
        },
    )
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    key = "ODRADEK_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG"
    broker.environment[key] = f"{LOGIN} {users};"
    (folder / "address").write_text(f"127.0.0.1:{port}")
    with broker:
        yield broker


@pytest.fixture
def address(broker: EmbeddedBroker) -> str:
    """Where clients log in."""
    return (broker.directory / "address").read_text()


def properties(address: str, user: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


@pytest.fixture
def odradek(address: str, tmp_path: Path) -> Odradek:
    """Runs a command of ours as a user: what it printed as JSON."""

    def run(user: str, *arguments: str, exit_code: int = 0) -> object:
        file = tmp_path / f"{user}.properties"
        file.write_text("".join(f"{k}={v}\n" for k, v in properties(address, user).items()))
        own = [name for name in os.environ if name.startswith("ODRADEK_")]
        environment = {
            **dict.fromkeys(own),
            "ODRADEK_BOOTSTRAP": address,
            "ODRADEK_CLIENT_CONFIG": str(file),
        }
        result = CliRunner().invoke(cli, [*arguments, "-o", "json"], env=environment)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout) if result.stdout else result.stderr

    return run


def produce(address: str, user: str, topic: str) -> int | None:
    """The error code of one record's delivery; None if it is there."""
    producer = Producer({**properties(address, user), "message.timeout.ms": 20_000})
    outcomes: list[int | None] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        outcomes.append(None if error is None else error.code())

    producer.produce(topic, b"v", on_delivery=delivered)
    wait_until(lambda: producer.poll(0.1) or outcomes)
    return outcomes[0]


def test_what_a_user_may_do_is_added_listed_and_removed(address: str, odradek: Odradek) -> None:
    odradek("alice", "topic", "create", "orders")
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(address, "bob", "orders") == denied
    refused = odradek("bob", "acl", "list", exit_code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(refused)
    added = odradek("alice", "acl", "add", "--principal", "bob", "--topic", "orders", "--producer")
    assert isinstance(added, list)
    assert {row["operation"] for row in added} == {"write", "describe", "create"}
    assert produce(address, "bob", "orders") is None
    odradek(
        "alice",
        *("acl", "add", "--deny", "--principal", "*", "--topic", "ord", "--pattern", "prefixed"),
        *("--operation", "write", "--host", "127.0.0.1"),
    )
    assert produce(address, "bob", "orders") == denied
    about = odradek("alice", "acl", "list", "--topic", "orders", "--pattern", "match", "--deny")
    assert about == [
        {
            "resource": "topic",
            "name": "ord",
            "pattern": "prefixed",
            "principal": "User:*",
            "host": "127.0.0.1",
            "operation": "write",
            "permission": "deny",
        }
    ]
    match = ("--topic", "orders", "--pattern", "match")
    shown = odradek("alice", "acl", "remove", *match, "--dry-run")
    assert isinstance(shown, list)
    assert len(shown) == 4
    odradek("alice", "acl", "remove", *match, "--yes")
    assert odradek("alice", "acl", "list", *match) == []
    assert produce(address, "bob", "orders") == denied
    assert produce(address, "alice", "orders") is None


def test_the_audit_log_says_who_did_and_who_was_denied_what(
    address: str, broker: EmbeddedBroker, odradek: Odradek
) -> None:
    odradek("alice", "topic", "create", "audited")
    assert produce(address, "bob", "audited") == KafkaError.TOPIC_AUTHORIZATION_FAILED

    def recorded() -> set[tuple[str, str, str]]:
        lines = map(json.loads, (broker.directory / "audit.log").read_text().splitlines())
        found = [line for line in lines if "audited" in json.dumps(line["request"])]
        return {(line["principal"], line["api"], line["result"]) for line in found}

    created = ("User:alice", "CreateTopics", "allowed")
    # The client asks for the topic's metadata first, and that is denied.
    wait_until(lambda: {created, ("User:bob", "Metadata", "denied")} <= recorded())
    text = (broker.directory / "audit.log").read_text()
    assert not any(password in text for password in PASSWORDS.values())


def test_a_consumer_needs_its_group_as_well(odradek: Odradek) -> None:
    names = ("--topic", "t", "--group", "g")
    added = odradek("alice", "acl", "add", "--principal", "User:bob", *names, "--consumer")
    assert isinstance(added, list)
    assert {(row["resource"], row["operation"]) for row in added} == {
        ("topic", "read"),
        ("topic", "describe"),
        ("group", "read"),
    }
    assert odradek("alice", "acl", "list", "--group", "g") != []
    odradek("alice", "acl", "remove", *names, "--yes")


def test_who_has_not_logged_in_sees_nothing(broker: EmbeddedBroker, odradek: Odradek) -> None:
    odradek("alice", "topic", "create", "hidden")
    anybody = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert "hidden" not in anybody.list_topics(timeout=TIMEOUT_S).topics
    assert anybody.list_consumer_groups().result(TIMEOUT_S).valid == []
    [deleted] = anybody.delete_topics(["hidden"]).values()
    with pytest.raises(KafkaException) as refused:
        deleted.result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafka_acls(address: str, tmp_path: Path, odradek: Odradek) -> None:
    """kafka-acls.sh: --add, --list and --remove, and the shorthands."""
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={LOGIN} username="alice" password="{PASSWORDS["alice"]}";\n'
    )

    def run(*arguments: str) -> str:
        server = ("--bootstrap-server", address, "--command-config", str(file))
        done = run_java_tool(ACLS, *server, *arguments, directory=tmp_path, timeout_s=60.0)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    topic = ("--topic", "java-", "--resource-pattern-type", "prefixed")
    bob = ("--allow-principal", "User:bob")
    added = run("--add", *bob, "--operation", "Read", *topic)
    assert "(principal=User:bob, host=*, operation=READ, permissionType=ALLOW)" in added
    expected = {"name": "java-", "pattern": "prefixed", "operation": "read", "permission": "allow"}
    found = odradek("alice", "acl", "list", "--topic", "java-")
    assert isinstance(found, list)
    assert [expected.items() <= row.items() for row in found] == [True]
    run("--add", *bob, "--consumer", "--group", "java-group", "--topic", "java-topic")
    listed = run("--list", "--principal", "User:bob", "--group", "java-group")
    assert "resourceType=GROUP, name=java-group, patternType=LITERAL" in listed
    matched = run("--list", "--topic", "java-topic", "--resource-pattern-type", "match")
    assert "name=java-, patternType=PREFIXED" in matched
    assert "name=java-topic, patternType=LITERAL" in matched
    run("--remove", "--force", *bob, "--operation", "Read", *topic)
    run("--remove", "--force", "--topic", "java-topic")
    run("--remove", "--force", "--group", "java-group")
    assert odradek("alice", "acl", "list", "--principal", "bob") == []
