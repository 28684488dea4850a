"""Every command has one error for a name that does not exist, with the nearest name."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from odradek.node.cli.not_found import nearest_name
from tests.node.cli.conftest import Run


def test_the_nearest_name_is_that_of_a_slip() -> None:
    names = {"orders", "payments", "audit-log"}
    assert nearest_name("ordres", names) == "orders"
    assert nearest_name("Payments", names) == "payments"
    assert nearest_name("audit_log", names) == "audit-log"
    assert nearest_name("something-else", names) is None
    assert nearest_name("orders", {"orders"}) is None


@pytest.fixture
def group(kafka: Run, topic: str, group_name: str) -> Iterator[str]:
    """A group that has committed."""
    assert kafka("group", "reset-offsets", group_name, "-t", topic, "--to", "latest").exit_code == 0
    yield group_name
    kafka("group", "delete", group_name, "-y")


def misspelt(name: str) -> str:
    return name[:6] + name[7] + name[6] + name[8:] + "x"


TOPIC_COMMANDS = [
    "topic describe {}",
    "topic delete {} -y",
    "topic alter {} -p 9",
    "topic offsets {}",
    "topic trim {} -y",
    "topic explain {}",
    "consume {}",
    "config list topic {}",
    "config describe topic {}",
    "config set topic {} retention.ms=1000",
    "config unset topic {} retention.ms",
    "txn hanging -t {}",
    "txn abort {} 0 --start-offset 0",
    "bench consume --topic {}",
    "group reset-offsets a-group -t {} --to earliest",
    "group rewind a-group -t {} --to earliest",
    "cluster rebalance --topic {}",
    "elect {}",
    "reassign start {} --to 0 -y",
    "group lag --all -t {}",
]


@pytest.mark.e2e
@pytest.mark.parametrize("command", TOPIC_COMMANDS)
def test_a_topic_that_does_not_exist(kafka: Run, topic: str, command: str) -> None:
    name = misspelt(topic)
    ran = kafka(*command.format(name).split())
    assert ran.exit_code == 1
    assert ran.stderr == f"Error: {name}: no such topic; did you mean {topic}?\n"


@pytest.mark.e2e
def test_a_topic_that_exists_does_not_hide_one_that_does_not(kafka: Run, topic: str) -> None:
    ran = kafka("topic", "describe", topic, "nothing-like-it")
    assert ran.exit_code == 1
    assert topic in ran.stdout
    assert ran.stderr == "Error: nothing-like-it: no such topic\n"


GROUP_COMMANDS = [
    "group describe {}",
    "group explain {}",
    "group lag {}",
    "group delete {} -y",
    "group reset-offsets {} --to earliest",
    "group rewind {} -t {topic} --to earliest",
    "group undo {}",
    "group snapshot create {} before",
    "group snapshot list {}",
]


@pytest.mark.e2e
@pytest.mark.parametrize("command", GROUP_COMMANDS)
def test_a_group_that_does_not_exist(kafka: Run, topic: str, group: str, command: str) -> None:
    name = misspelt(group)
    ran = kafka(*command.format(name, topic=topic).split())
    assert ran.exit_code == 1
    assert ran.stderr == f"Error: {name}: no such group; did you mean {group}?\n"


@pytest.mark.e2e
def test_a_transactional_id_that_does_not_exist(kafka: Run, bootstrap: str) -> None:
    name = f"payer-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    ran = kafka("txn", "describe", misspelt(name))
    assert ran.exit_code == 1
    assert ran.stderr == (
        f"Error: {misspelt(name)}: no such transactional id; did you mean {name}?\n"
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    "command",
    [
        "node drain 77",
        "node remove 77",
        "cluster rebalance --exclude 77",
        "config list broker 77",
        "config set broker 77 workers=2",
    ],
)
def test_a_node_that_does_not_exist(kafka: Run, command: str) -> None:
    ran = kafka(*command.split())
    assert ran.exit_code == 1
    assert ran.stderr == "Error: 77: no such node; the cluster has 0\n"


@pytest.mark.e2e
@pytest.mark.parametrize(
    "command",
    [
        "topic offsets {}:9",
        "topic trim {}:9 -y",
        "topic explain {} -p 9",
        "consume {}:9",
        "txn abort {} 9 --start-offset 0",
        "group reset-offsets a-group -t {}:9 --to earliest",
    ],
)
def test_a_partition_that_does_not_exist(kafka: Run, topic: str, command: str) -> None:
    ran = kafka(*command.format(topic).split())
    assert ran.exit_code == 1
    assert ran.stderr == (f"Error: {topic}-9: no such partition; {topic} has partitions 0 to 2\n")
