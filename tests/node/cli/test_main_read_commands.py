"""Every command that reads, against a cluster with everything that may be absent.

Text never has `None`, and in a pipe no colours, no separators of thousands and no units in columns.
"""

from collections.abc import Iterator
from uuid import uuid4

import click
import pytest
from confluent_kafka import Consumer, Producer

from odradek.node.cli.main import cli, further_commands
from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

READING: dict[str, list[tuple[str, ...]]] = {
    "topic list": [(), ("--internal",)],
    "topic describe": [("{empty}",), ("{topic}",), ("__consumer_offsets",)],
    "topic explain": [("{empty}",), ("{topic}",)],
    "topic offsets": [("{empty}",), ("{topic}", "--at", "1h")],
    "group list": [()],
    "group describe": [
        ("{group}",),
        ("{group}", "--members"),
        ("{left}",),
        ("{left}", "--members"),
    ],
    "group explain": [("{group}",), ("{left}",)],
    "group lag": [("{group}",), ("{left}",), ("--all",), ("--all", "--by", "topic")],
    "group wait": [("{left}", "--timeout", "1")],
    "group snapshot list": [("{left}",)],
    "group dlq list": [("{left}", "--dlq-topic", "{empty}")],
    "user list": [()],
    "token list": [()],
    "logdir list": [(), ("0", "--replicas"), ("--topic", "{topic}")],
    "reassign list": [(), ("{topic}",), ("{topic}:0",)],
    "quota list": [(), ("--default-ip",)],
    "txn list": [()],
    "txn describe": [("{transaction}",)],
    "txn hanging": [(), ("--older-than", "1ms")],
    "config list": [("topic", "{topic}"), ("broker", "0", "--all"), ("group", "{group}", "--all")],
    "config describe": [("topic", "{topic}"), ("broker", "default"), ("broker", "0")],
    "config why": [
        ("num.partitions",),
        ("retention.ms", "--topic", "{topic}"),
        ("share.record.lock.duration.ms", "--group", "{group}"),
        ("broker.rack", "--broker", "0"),
    ],
    "acl list": [(), ("--topic", "{topic}", "--pattern", "match")],
    "broker list": [()],
    "client list": [()],
    "client show": [("odradek-cli",), ("rdkafka",)],
    "trace": [("--for", "1ms"), ("--for", "1ms", "--detail", "--api", "fetch")],
    "cluster status": [()],
    "cluster rebalance": [("--dry-run",)],
    "feature list": [(), ("--node", "0")],
    "doctor": [()],
    "consume": [("{topic}", "-a"), ("{topic}", "--format", "{{key}} {{headers}} {{timestamp}}")],
}
CHANGING = {
    *("serve", "format", "node start", "node add", "node drain", "node remove"),
    *("node ready", "cluster new-secret", "cluster scale-up"),
    "cluster scale-down",
    "node rack",
    *("cluster up", "cluster stop-node", "cluster start-node"),
    *("acl add", "acl remove"),
    *("topic create", "topic delete", "topic alter", "topic trim", "config set", "config unset"),
    *("group create", "group delete", "group reset-offsets", "group rewind", "group undo"),
    *("group snapshot create", "group snapshot delete", "group dlq redrive", "txn abort"),
    *("elect", "feature upgrade", "feature downgrade", "feature disable"),
    *("logdir move", "reassign start", "reassign cancel", "reassign wait"),
    *("profile add", "profile list", "profile remove"),
    *("user add", "user remove", "quota set", "quota remove"),
    *("token create", "token renew", "token expire"),
    *("produce", "bench produce", "bench consume", "bench end-to-end"),
    *("completion", "log dump", "certificate renew", "certificate new-authority"),
    "certificate update-bundle",
}


def leaves(group: click.Group, prefix: str = "") -> Iterator[str]:
    """The commands of the broker's package; those of others have tests of their own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        if not prefix and name in further_commands():
            continue
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name


def test_every_command_is_known_here() -> None:
    assert {*leaves(cli)} == READING.keys() | CHANGING


@pytest.fixture(scope="module")
def names(bootstrap: str) -> Iterator[dict[str, str]]:
    """Names of things of which as much as possible is absent."""
    suffix = uuid4().hex[:8]
    kinds = ("topic", "empty", "group", "left", "transaction")
    names = {kind: f"{kind}-{suffix}" for kind in kinds}
    # Records without key, value, headers; a header without a value; one of a later transaction.
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": names["transaction"]})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(names["topic"], value=None, headers=[("h", None)])
    producer.produce(names["topic"], value=b"v" * 900_000, key=None)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(names["topic"], value=b"open")
    producer.flush(30)
    consumers = [
        Consumer({"bootstrap.servers": bootstrap, "group.id": names[kind], "client.id": ""})
        for kind in ("group", "left")
    ]
    consumers[0].subscribe([names["topic"], "absent"])
    wait_until(lambda: consumers[0].poll(0.05) or consumers[0].assignment())
    consumers[1].subscribe([names["topic"]])
    wait_until(lambda: consumers[1].poll(0.05) or consumers[1].assignment())
    consumers[1].close()  # an empty group without a commit
    yield names
    consumers[0].close()
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    "arguments",
    [(*name.split(), *each) for name, variants in READING.items() for each in variants],
    ids=" ".join,
)
def test_nothing_is_none_and_numbers_are_plain(
    kafka: Run, names: dict[str, str], arguments: tuple[str, ...]
) -> None:
    kafka("topic", "create", names["empty"], "--if-not-exists")
    ran = kafka(*(each.format(**names) for each in arguments))
    assert ran.exit_code in (0, 1), ran.stderr
    for text in (ran.stdout, ran.stderr):
        assert "None" not in text
        assert "\x1b" not in text
    if arguments[:2] not in (("config", "list"), ("config", "describe")):
        for line in ran.stdout.splitlines():
            assert not any(is_decorated(cell) for cell in line.split()), line


def is_decorated(cell: str) -> bool:
    """Whether it is a number with separators of thousands: 1,000 and not 0,1,2."""
    first, *others = cell.split(",")
    groups = [other for other in others if len(other.partition(".")[0]) == 3]
    return first.isdigit() and bool(others) and len(groups) == len(others)
