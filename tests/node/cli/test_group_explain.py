"""`odradek group explain` against a cluster, with real consumers and producers."""

import os
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.node.cli.findings import Finding
from odradek.node.cli.group_explain import print_findings
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.share import (
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]

OnAssign = Callable[[Consumer, list[TopicPartition]], None]


def explained(kafka: Run, group: str) -> dict[str, object]:
    document = kafka("group", "explain", group, "-o", "json").json()
    assert isinstance(document, dict)
    return document


def findings(kafka: Run, group: str) -> list[str]:
    rows = explained(kafka, group)["findings"]
    assert isinstance(rows, list)
    return [row["finding"] for row in rows]


def has_finding(kafka: Run, group: str, text: str) -> bool:
    return any(text in finding for finding in findings(kafka, group))


def lags_from(kafka: Run, group: str) -> dict[int, tuple[int, str]]:
    """The lag of each partition, and what it is counted from."""
    rows = kafka("group", "lag", group, "-o", "json").json()
    assert isinstance(rows, list)
    return {row["partition"]: (row["lag"], row["counted_from"]) for row in rows}


def test_a_finding_about_several_partitions_is_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    same = [Finding(about=f"t-{index}", what="It stands.", advice="Push.") for index in (0, 1)]
    print_findings(same, otherwise="Nothing.")
    assert capsys.readouterr().out == "- It stands.\n  Push.\n"


def consumer_of(bootstrap: str, group: str, protocol: str, **properties: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "app",
            "auto.offset.reset": "earliest",
            **properties,
        }
    )


def test_an_empty_group_is_explained(kafka: Run, topic: str, group_name: str) -> None:
    kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    ran = kafka("group", "explain", group_name)
    assert ran.exit_code == 0, ran.stderr
    assert "- The group has no members." in ran.stdout
    assert "Start its consumers." in ran.stdout
    assert kafka("group", "explain", "no-such-group").exit_code == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_paused_consumer_is_found(
    kafka: Run, topic: str, group_name: str, bootstrap: str, protocol: str
) -> None:
    kafka("produce", topic, "one", "-p", "0")
    consumer = consumer_of(bootstrap, group_name, protocol)

    def pause(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # What the callback does not assign is assigned after it, and not paused then.
        assign = consumer.assign if protocol == "classic" else consumer.incremental_assign
        assign(partitions)
        consumer.pause(partitions)

    consumer.subscribe([topic], on_assign=pause)

    def is_found() -> bool:
        assert consumer.poll(0.05) is None
        ran = kafka("group", "explain", group_name)
        return "owns" in ran.stdout and f"{topic}-0 and does not fetch it" in ran.stdout

    wait_until(is_found)
    document = explained(kafka, group_name)
    said = kafka("group", "explain", group_name).stdout
    described = kafka("group", "describe", group_name, "-o", "json").json()
    consumer.close()
    assert (document["state"], document["type"]) == ("Stable", protocol)
    assert (document["lag"], document["uncommitted_partitions"]) == (1, 3)
    assert "1 records, " in said
    assert "(nothing is committed in 3 partitions: counted from the start of the log)" in said
    assert isinstance(described, list)
    assert described[0]["total_lag"] == 1
    members = document["members"]
    assert isinstance(members, list)
    assert [member["client"] for member in members] == ["app"]
    assert f"{topic}-0" in members[0]["owns"]
    events = document["events"]
    assert isinstance(events, list)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "member joined"
    assert "rebalance started" in kinds


def test_a_transaction_that_blocks_a_reader_is_named(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"etl-{topic}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    kafka("produce", topic, "behind", "-p", "0")
    consumer = consumer_of(
        bootstrap, group_name, "classic", **{"isolation.level": "read_committed"}
    )
    consumer.subscribe([topic])

    def is_found() -> bool:
        consumer.poll(0.05)
        return has_finding(kafka, group_name, f"transaction 'etl-{topic}' of producer")

    try:
        wait_until(is_found)
        [what] = [f for f in findings(kafka, group_name) if "transaction" in f]
        assert f"stop at offset 0 of {topic}-0, 2 records before the end" in what
        assert "(Ongoing) is open for" in what
    finally:
        producer.abort_transaction()
        consumer.close()
    # An abort is decided when it is answered; its marker is under way.
    wait_until(lambda: not has_finding(kafka, group_name, "transaction"))


def test_a_topic_that_does_not_exist_is_named(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    consumer = consumer_of(bootstrap, group_name, "consumer")
    consumer.subscribe([topic, f"{topic}-misspelt"])

    def is_found() -> bool:
        consumer.poll(0.05)
        ran = kafka("group", "explain", group_name)
        return f"subscribes to {topic}-misspelt, which does not exist" in ran.stdout

    wait_until(is_found)
    assert f"subscribes to {topic}," not in kafka("group", "explain", group_name).stdout
    consumer.close()


def test_a_stable_group_has_no_findings(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    consumer = consumer_of(bootstrap, group_name, "consumer")
    consumer.subscribe([topic])

    def is_stable() -> bool:
        consumer.poll(0.05)
        ran = kafka("group", "explain", group_name)
        return "Stable" in ran.stdout and "- " not in ran.stdout.split("\n\n")[1]

    wait_until(is_stable)
    consumer.close()


def test_a_share_group_names_the_member_that_has_acquired_records(
    kafka: Run, topic: str, group_name: str, bootstrap: str
) -> None:
    assert kafka("group", "explain", group_name).exit_code == 1, "but now there are coordinators"
    with WireClient(bootstrap) as wire:
        member = "m" * 22
        configured = kafka("config", "set", "group", group_name, "share.auto.offset.reset=earliest")
        assert configured.exit_code == 0, configured.stderr
        kafka("produce", topic, "one", "two", "-p", "0")

        def joins() -> bool:
            request = ShareGroupHeartbeatRequest(
                group_id=group_name, member_id=member, subscribed_topic_names=[topic]
            )
            answer = wire.ask(request, 1, ShareGroupHeartbeatResponse)
            return answer.error_code == 0 and answer.assignment is not None

        wait_until(joins)
        # Nobody has fetched: the group's config says where it would start.
        assert lags_from(kafka, group_name)[0] == (2, "share.auto.offset.reset=earliest")
        latest = kafka("config", "set", "group", group_name, "share.auto.offset.reset=latest")
        assert latest.exit_code == 0, latest.stderr
        assert lags_from(kafka, group_name)[0] == (0, "share.auto.offset.reset=latest")
        kafka("config", "set", "group", group_name, "share.auto.offset.reset=by_duration:PT1H")
        counted_from = "share.auto.offset.reset=by_duration:PT1H"
        assert lags_from(kafka, group_name)[0] == (2, counted_from)
        kafka("config", "set", "group", group_name, "share.auto.offset.reset=earliest")
        topic_id = (
            wire.ask(
                MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12, MetadataResponse
            )
            .topics[0]
            .topic_id
        )

        def fetches() -> bool:
            partition = ShareRequestPartition(partition_index=0)
            request = ShareFetchRequest(
                group_id=group_name,
                member_id=member,
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=100,
                batch_size=100,
                topics=[ShareRequestTopic(topic_id=topic_id, partitions=[partition])],
            )
            answer = wire.ask(request, 2, ShareFetchResponse)
            return any(p.acquired_records for t in answer.responses for p in t.partitions)

        wait_until(fetches)
        assert has_finding(kafka, group_name, f"{topic}-0 has 2 records acquired by members")
        # The start offsets are reported when they are written.
        wait_until(lambda: lags_from(kafka, group_name)[0] == (2, "share start offset"))
