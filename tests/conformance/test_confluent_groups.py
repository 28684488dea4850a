"""confluent-kafka (librdkafka): consumer groups of real clients."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.routing import ARE_RESTARTED
from tests.conformance.test_confluent_kafka import (
    TIMEOUT_S,
    Record,
    new_producer,
    send_all,
    take,
    value_of,
)

Partitions = frozenset[int]


class Member:
    """A consumer in a group, driven by the test; it knows what it owns and was called for."""

    def __init__(
        self, cluster: DialogueCluster, group: str, topic: str, **settings: object
    ) -> None:
        self.taken: list[Message] = []
        self.assigned_count = 0
        self.revoked: list[Partitions] = []
        self.lost_count = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 100,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned_count += 1

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked.append(frozenset(each.partition for each in partitions))

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost_count += 1

    @property
    def owned(self) -> Partitions:
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
    # A rebalance begins again with each coordinator that is stopped.
    deadline = time.monotonic() + TIMEOUT_S * (3 if ARE_RESTARTED else 1)
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        for member in members:
            member.poll()


def is_shared(members: list[Member], count: int) -> bool:
    """Whether the members own all partitions, each exactly one of them, and none has nothing."""
    owned = [member.owned for member in members]
    return all(owned) and Counter(each for part in owned for each in part) == Counter(range(count))


@pytest.fixture
def join(cluster: DialogueCluster, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the test's group; they are closed after the test."""
    with ExitStack() as stack:

        def make(topic: str, **settings: object) -> Member:
            member = Member(cluster, group, topic, **settings)
            stack.callback(member.consumer.close)
            return member

        yield make


Join = Callable[..., Member]
STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_partitions_as_they_come_and_go(
    cluster: DialogueCluster, join: Join, strategy: str
) -> None:
    topic = cluster.new_topic(6)
    settings = {"partition.assignment.strategy": strategy}
    first = join(topic, **settings)
    run_until(lambda: is_shared([first], 6), first, what="one has all")
    second = join(topic, **settings)
    run_until(lambda: is_shared([first, second], 6), first, second, what="two share")
    third = join(topic, **settings)
    members = [first, second, third]
    run_until(lambda: is_shared(members, 6), *members, what="three share")
    records: list[Record] = [
        {"value": b"%d" % number, "partition": number % 6} for number in range(60)
    ]
    send_all(new_producer(cluster), topic, records)
    run_until(
        lambda: sum(len(member.taken) for member in members) >= 60, *members, what="all is read"
    )
    values = [value_of(message) for member in members for message in member.taken]
    assert sorted(values) == sorted(b"%d" % number for number in range(60))
    first.consumer.close()
    run_until(lambda: is_shared(members[1:], 6), *members[1:], what="two are left")


def test_a_cooperative_rebalance_leaves_what_stays_alone(
    cluster: DialogueCluster, join: Join
) -> None:
    """KIP-429: a member gives up only what another one gets."""
    topic = cluster.new_topic(6)
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    first = join(topic, **settings)
    run_until(lambda: is_shared([first], 6), first, what="one has all")
    second = join(topic, **settings)
    run_until(lambda: is_shared([first, second], 6), first, second, what="two share")
    assert first.revoked == [second.owned]
    assert second.revoked == []
    assert len(first.owned) == len(second.owned) == 3


def test_a_static_member_comes_back_to_its_partitions(cluster: DialogueCluster, join: Join) -> None:
    """KIP-345: a restart within the session timeout makes nobody rebalance."""
    topic = cluster.new_topic(4)
    stays = join(topic, group_instance_id="stays")
    leaves = join(topic, group_instance_id="leaves")
    run_until(lambda: is_shared([stays, leaves], 4), stays, leaves, what="two share")
    before = leaves.owned
    seen = (stays.assigned_count, list(stays.revoked))
    leaves.consumer.close()
    back = join(topic, group_instance_id="leaves")
    run_until(lambda: bool(back.owned), stays, back, what="the member is back")
    assert back.owned == before
    assert (stays.assigned_count, stays.revoked) == seen


def test_a_second_member_of_one_name_fences_the_first(cluster: DialogueCluster, join: Join) -> None:
    """KIP-345: two with one instance id are a mistake, and the older one learns of it."""
    topic = cluster.new_topic(2)
    old = join(topic, group_instance_id="one")
    run_until(lambda: is_shared([old], 2), old, what="the first has all")
    new = join(topic, group_instance_id="one")
    run_until(lambda: is_shared([new], 2), new, what="the second has all")
    with pytest.raises(KafkaException) as fenced:
        run_until(lambda: False, _Raising(old), what="the first is fenced")
    assert fenced.value.args[0].code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)


class _Raising(Member):
    """A member whose errors are raised as they are."""

    def __init__(self, member: Member) -> None:
        self.consumer = member.consumer

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error():
            raise KafkaException(message.error())


def test_a_group_goes_on_where_it_stopped(cluster: DialogueCluster, join: Join) -> None:
    """Commits are kept for those who come later."""
    topic = cluster.new_topic()
    send_all(new_producer(cluster), topic, [{"value": b"%d" % number} for number in range(100)])
    first = join(topic)
    messages = take(first.consumer, 40)
    offset = TopicPartition(topic, 0, 40, metadata="forty", leader_epoch=0)
    (stored,) = first.consumer.commit(offsets=[offset], asynchronous=False)
    assert stored.error is None
    assert [message.offset() for message in messages] == list(range(40))
    (found,) = first.consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    assert (found.offset, found.metadata) == (40, "forty")
    first.consumer.close()
    second = join(topic)
    assert [message.offset() for message in take(second.consumer, 60)] == list(range(40, 100))


def test_automatic_commits_arrive_on_close(cluster: DialogueCluster, join: Join) -> None:
    topic = cluster.new_topic()
    send_all(new_producer(cluster), topic, [{"value": b"%d" % number} for number in range(10)])
    first = join(topic, enable_auto_commit=True, auto_commit_interval_ms=60_000)
    take(first.consumer, 7)
    first.consumer.close()
    second = join(topic)
    (found,) = second.consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    assert found.offset == 7


def test_a_member_that_stops_polling_is_replaced(cluster: DialogueCluster, join: Join) -> None:
    """max.poll.interval.ms: the client leaves by itself, and its partitions move."""
    topic = cluster.new_topic(2)
    stuck = join(topic, max_poll_interval_ms=6000, session_timeout_ms=6000)
    run_until(lambda: is_shared([stuck], 2), stuck, what="the first has all")
    other = join(topic)
    run_until(lambda: is_shared([other], 2), other, what="the second has all")

    def is_told() -> bool:
        stuck.consumer.poll(0.02)  # It also returns the error of not having polled.
        return bool(stuck.revoked)

    # Closed before that, the client may wait for itself: its callback calls rd_kafka_assign when
    # nobody serves that any more.
    run_until(is_told, other, what="the first one hears of it")


def test_groups_do_not_disturb_each_other(cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(2)
    members = [Member(cluster, unique("group"), topic) for _ in range(4)]
    send_all(
        new_producer(cluster),
        topic,
        [{"value": b"%d" % number, "partition": number % 2} for number in range(20)],
    )
    try:
        run_until(
            lambda: all(len(member.taken) == 20 for member in members),
            *members,
            what="each group reads everything",
        )
    finally:
        for member in members:
            member.consumer.close()


def test_a_pattern_finds_topics_that_come_later(cluster: DialogueCluster, join: Join) -> None:
    prefix = unique("pattern")
    one = cluster.new_topic(2, name=f"{prefix}-one")
    member = join(f"^{prefix}-.*", topic_metadata_refresh_interval_ms=200)
    run_until(lambda: len(member.consumer.assignment()) == 2, member, what="the first topic")
    two = cluster.new_topic(3, name=f"{prefix}-two")
    run_until(lambda: len(member.consumer.assignment()) == 5, member, what="the second topic")
    assert {each.topic for each in member.consumer.assignment()} == {one, two}


def test_a_member_learns_of_new_partitions(cluster: DialogueCluster, join: Join) -> None:
    topic = cluster.new_topic(1)
    member = join(topic, topic_metadata_refresh_interval_ms=200)
    run_until(lambda: is_shared([member], 1), member, what="one partition")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT_S)
    run_until(lambda: is_shared([member], 3), member, what="three partitions")
