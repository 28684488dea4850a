"""Kafka's own KafkaShareConsumer: every type of acknowledgement, dead letters, and records that go
to one member each (KIP-932, KIP-1206, KIP-1222)."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

SOURCE = Path(__file__).parent / "java" / "ShareConsumers.java"
GROUP_RESOURCE = 32
TIMEOUT_S = 90.0
WHY_NOT = why_no_java_tools() or ("" if shutil.which("javac") else "needs javac on the PATH")

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "Java is there"),
    pytest.mark.no_restarts(
        "acknowledgements for a leader that moves fail, and the records are delivered again"
    ),
]


class Seen(NamedTuple):
    """A record that a member got."""

    member: str
    offset: int
    delivery_count: int
    value: str


class Members:
    """What the members of a run have printed."""

    def __init__(
        self,
        cluster: DialogueCluster,
        folder: Path,
        *,
        group: str,
        topic: str,
        count: int,
        done: int,
        settings: Sequence[str],
    ) -> None:
        run = run_java_tool(
            str(SOURCE),
            *(cluster.bootstrap, group, topic, str(count), str(done), *settings),
            directory=folder,
            timeout_s=TIMEOUT_S,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        lines = [line.split(" ") for line in run.stdout.splitlines()]
        self.errors = [" ".join(line) for line in lines if line[0] == "ERROR"]
        self.done = next(int(line[1]) for line in lines if line[0] == "END")
        self.polls = [int(line[2]) for line in lines if line[0] == "POLL"]
        self.records = [
            Seen(line[1], int(line[2]), int(line[3]), line[4])
            for line in lines
            if line[0] == "RECORD"
        ]


def configure_group(wire: WireClient, group: str, **configs: str) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=GROUP_RESOURCE,
                resource_name=group,
                configs=[
                    IncrementalAlterableConfig(name=name.replace("_", "."), value=value)
                    for name, value in configs.items()
                ],
            )
        ]
    )
    [answer] = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == 0, answer


def produce(cluster: DialogueCluster, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def test_every_acknowledgement_does_what_it_says(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str, tmp_path: Path
) -> None:
    dead_letters = f"dlq.{unique('t')}"
    cluster.new_topic(name=dead_letters, configs={"errors.deadletterqueue.group.enable": "true"})
    configure_group(
        wire,
        group,
        share_auto_offset_reset="earliest",
        errors_deadletterqueue_topic_name=dead_letters,
        errors_deadletterqueue_copy_record_enable="true",
    )
    values = [f"{kind}{number}" for number in range(5) for kind in "aljn"]
    produce(cluster, topic, values)
    members = Members(
        cluster,
        tmp_path,
        group=group,
        topic=topic,
        count=1,
        done=len(values),
        settings=["share.acknowledgement.mode=explicit"],
    )
    assert members.errors == []
    assert members.done == len(values)
    times: Counter[str] = Counter()
    counts: dict[str, list[int]] = {}
    for seen in members.records:
        times[seen.value[0]] += 1
        counts.setdefault(seen.value[0], []).append(seen.delivery_count)
    assert counts["a"] == [1] * 5
    assert sorted(counts["l"]) == [1] * 5 + [2] * 5
    assert counts["j"] == [1] * 5
    assert set(counts["n"]) == {1}, "a renewed lock is no new delivery"
    assert times["n"] == 10, "the client hands a renewed record out again"
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("graves"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([dead_letters])
    found: dict[str, dict[str, bytes]] = {}

    def is_there() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found[(message.value() or b"").decode()] = dict(message.headers() or ())  # type: ignore[arg-type]  # all have values
        return len(found) == 5

    wait_until(is_there, timeout_s=TIMEOUT_S, what="the rejected records are dead letters")
    consumer.close()
    for value, headers in found.items():
        assert value in values
        assert value.startswith("j")
        assert headers["__dlq.errors.topic"] == topic.encode()
        assert headers["__dlq.errors.offset"] == str(values.index(value)).encode()
        assert headers["__dlq.errors.group"] == group.encode()
        assert headers["__dlq.errors.delivery.count"] == b"1"


def test_each_record_goes_to_one_of_several_members_and_no_poll_gets_too_many(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str, tmp_path: Path
) -> None:
    configure_group(wire, group, share_auto_offset_reset="earliest")
    values = [f"v{number}" for number in range(400)]
    produce(cluster, topic, values)
    members = Members(
        cluster,
        tmp_path,
        group=group,
        topic=topic,
        count=3,
        done=len(values),
        settings=["share.acquire.mode=record_limit", "max.poll.records=7"],
    )
    assert members.errors == []
    assert sorted(seen.offset for seen in members.records) == list(range(400))
    assert max(members.polls) <= 7
