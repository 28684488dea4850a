"""The consumer group protocol (KIP-848) with real clients: librdkafka and Kafka's own."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.conformance.dialogue import DialogueCluster
from tests.conformance.test_confluent_kafka import TIMEOUT_S, Record, new_producer, send_all
from tests.conformance.test_java_tools import CONFIGS, CONSUMER, GROUPS
from tests.support.java import run_java_tool, why_no_java_tools


class Member:
    """A consumer in a group, driven by the test."""

    def __init__(
        self, cluster: DialogueCluster, group: str, *topics: str, **settings: object
    ) -> None:
        self.taken: list[Message] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 200,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.consumer.subscribe(list(topics))

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that it has now."""
        return frozenset(each.partition for each in self.consumer.assignment())

    def poll(self) -> None:
        """Do a little work."""
        message = self.consumer.poll(0.02)
        if message is not None:
            assert message.error() is None, message.error()
            self.taken.append(message)


def run_until(condition: Callable[[], bool], *members: Member, what: str) -> None:
    """Let the members work until it is so."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + TIMEOUT_S, f"not in time: {what}"
        for member in members:
            member.poll()


def is_shared(members: list[Member], count: int) -> bool:
    """Whether the members own all partitions, each exactly one of them, and as evenly as can be."""
    owned = [member.owned for member in members]
    sizes = [len(part) for part in owned]
    # On the way there a member may still have one more, which it gives up after it has read it.
    is_even = max(sizes) - min(sizes) <= 1
    return is_even and Counter(each for part in owned for each in part) == Counter(range(count))


@pytest.fixture
def join(cluster: DialogueCluster, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the test's group; they are closed after the test."""
    with ExitStack() as stack:

        def make(*topics: str, **settings: object) -> Member:
            member = Member(cluster, group, *topics, **settings)
            stack.callback(member.consumer.close)
            return member

        yield make


Join = Callable[..., Member]


def number_records(cluster: DialogueCluster, topic: str, count: int, partitions: int) -> None:
    records: list[Record] = [
        {"value": b"%d" % number, "partition": number % partitions} for number in range(count)
    ]
    send_all(new_producer(cluster), topic, records)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_as_they_come_and_go(
    cluster: DialogueCluster, join: Join, assignor: str
) -> None:
    topic = cluster.new_topic(6)
    settings = {"group_remote_assignor": assignor}
    first = join(topic, **settings)
    run_until(lambda: is_shared([first], 6), first, what="one has all")
    second = join(topic, **settings)
    run_until(lambda: is_shared([first, second], 6), first, second, what="two share")
    third = join(topic, **settings)
    members = [first, second, third]
    run_until(lambda: is_shared(members, 6), *members, what="three share")
    number_records(cluster, topic, 60, 6)
    run_until(lambda: sum(len(m.taken) for m in members) >= 60, *members, what="all is read")
    values = sorted(message.value() or b"" for member in members for message in member.taken)
    assert values == sorted(b"%d" % number for number in range(60))
    first.consumer.close()
    run_until(lambda: is_shared(members[1:], 6), *members[1:], what="two are left")


def test_offsets_are_committed_with_the_members_epoch_and_found_again(
    cluster: DialogueCluster, join: Join
) -> None:
    topic = cluster.new_topic(2)
    number_records(cluster, topic, 10, 2)
    first = join(topic)
    run_until(lambda: len(first.taken) == 10, first, what="all is read")
    first.consumer.commit(asynchronous=False)
    first.consumer.close()
    second = join(topic)
    run_until(lambda: is_shared([second], 2), second, what="the next one has all")
    committed = second.consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert [each.offset for each in committed] == [5, 5]
    number_records(cluster, topic, 2, 2)
    run_until(lambda: len(second.taken) == 2, second, what="only news is read")


def test_partitions_that_are_added_and_topics_that_are_made_are_assigned(
    cluster: DialogueCluster, join: Join
) -> None:
    topic = cluster.new_topic(2)
    member = join(topic)
    run_until(lambda: is_shared([member], 2), member, what="one has all")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    run_until(lambda: is_shared([member], 5), member, what="one has what is new")


def test_a_static_member_that_restarts_keeps_its_partitions(
    cluster: DialogueCluster, join: Join
) -> None:
    topic = cluster.new_topic(4)
    first = join(topic, group_instance_id="one")
    second = join(topic, group_instance_id="two")
    members = [first, second]
    run_until(lambda: is_shared(members, 4), *members, what="two share")
    had = first.owned
    first.consumer.close()
    again = join(topic, group_instance_id="one")
    run_until(lambda: is_shared([again, second], 4), again, second, what="it is back")
    assert again.owned == had


def test_a_group_goes_from_the_classic_protocol_to_the_consumer_protocol_and_back(
    cluster: DialogueCluster, join: Join
) -> None:
    topic = cluster.new_topic(4)
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 100,
    }
    first = join(topic, **classic)
    second = join(topic, **classic)
    members = [first, second]
    run_until(lambda: is_shared(members, 4), *members, what="two classic members share")
    third = join(topic)
    members.append(third)
    run_until(lambda: is_shared(members, 4), *members, what="one of them speaks 848")
    third.consumer.close()
    run_until(lambda: is_shared(members[:2], 4), *members[:2], what="the classic ones are left")
    for member in members[:2]:
        member.consumer.close()
    last = join(topic)
    run_until(lambda: is_shared([last], 4), last, what="all speak 848")


def test_the_admin_client_tells_the_group_as_it_is(
    cluster: DialogueCluster, join: Join, group: str
) -> None:
    topic = cluster.new_topic(3)
    member = join(topic, client_id="tester")
    run_until(lambda: is_shared([member], 3), member, what="one has all")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    [found] = [each for each in listed.valid if each.group_id == group]
    assert found.state is ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert described.state is ConsumerGroupState.STABLE
    [told] = described.members
    assert told.client_id == "tester"
    partitions = {each.partition for each in told.assignment.topic_partitions}
    assert partitions == {0, 1, 2}
    member.consumer.close()
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
@pytest.mark.parametrize("by", ["--topic", "--include"])
def test_kafkas_console_consumer_reads_with_the_consumer_protocol(
    cluster: DialogueCluster, group: str, tmp_path: Path, by: str
) -> None:
    topic = cluster.new_topic(3)
    number_records(cluster, topic, 30, 3)
    done = run_java_tool(
        CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, by, topic, "--group", group),
        *("--from-beginning", "--max-messages", "30", "--timeout-ms", "30000"),
        *("--command-property", "group.protocol=consumer"),
        directory=tmp_path,
        timeout_s=60.0,
    )
    assert sorted(done.stdout.split()) == sorted(str(number) for number in range(30)), done.stderr
    told = run_java_tool(
        GROUPS,
        *("--bootstrap-server", cluster.bootstrap, "--describe", "--group", group, "--verbose"),
        directory=tmp_path,
        timeout_s=60.0,
    )
    assert topic in told.stdout, told.stderr


@pytest.mark.java
@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafkas_tool_sets_what_a_group_has_of_its_own(
    cluster: DialogueCluster, group: str, tmp_path: Path
) -> None:
    def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
        named = ("--entity-type", "groups", "--entity-name", group)
        at = ("--bootstrap-server", cluster.bootstrap)
        return run_java_tool(CONFIGS, *at, *named, *arguments, directory=tmp_path, timeout_s=60.0)

    done = tool("--alter", "--add-config", "consumer.session.timeout.ms=50000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "consumer.session.timeout.ms=50000" in tool("--describe").stdout
    refused = tool("--alter", "--add-config", "consumer.session.timeout.ms=1")
    assert "InvalidConfigurationException" in refused.stdout + refused.stderr
