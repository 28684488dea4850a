"""aiokafka: a client for asyncio with a codec, a group protocol and a record builder of its own."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from tests.conformance.dialogue import DialogueCluster, now_ms, unique

TIMEOUT_S = 30.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own, within the time limit."""

    async def limited() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await test()

    asyncio.run(limited())


async def take(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    """That many records, within the time limit."""
    taken: list[ConsumerRecord] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(taken) < count:
            found = await consumer.getmany(timeout_ms=500, max_records=count - len(taken))
            for records in found.values():
                taken += records
    return taken


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Return when it is so."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


def test_a_record_comes_back_whole(cluster: DialogueCluster, topic: str) -> None:
    now = now_ms()
    sent: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]] = [
        (b"k", b"v", (("a", b"1"), ("a", b"2"), ("empty", b""))),
        (None, b"keyless", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
    ]

    async def test() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            for index, (key, value, headers) in enumerate(sent):
                metadata = await producer.send_and_wait(
                    topic, value, key, timestamp_ms=now + index, headers=list(headers)
                )
                assert (metadata.offset, metadata.timestamp) == (index, now + index)
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            for index, record in enumerate(await take(consumer, 4)):
                assert (record.key, record.value, record.headers) == sent[index]
                assert (record.timestamp, record.timestamp_type) == (now + index, 0)

    run(test)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize(("acks", "is_idempotent"), [(0, False), (1, False), ("all", True)])
def test_every_compression_and_acknowledgement(
    cluster: DialogueCluster, topic: str, codec: str | None, acks: int | str, is_idempotent: bool
) -> None:
    values = [b"%d " % number * 20 for number in range(300)]

    async def test() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            compression_type=codec,
            acks=acks,
            enable_idempotence=is_idempotent,
            linger_ms=5,
        ) as producer:
            for value in values:
                await producer.send(topic, value)
            await producer.flush()
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            assert [record.value for record in await take(consumer, 300)] == values

    run(test)


def test_a_record_that_is_too_large_is_refused(cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(configs={"max.message.bytes": "1000"})

    async def test() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 2000)
            assert (await producer.send_and_wait(topic, b"small")).offset == 0

    run(test)


def test_a_consumer_looks_around(cluster: DialogueCluster) -> None:
    """Offsets by time, positions, seeking, pausing, and an offset that is out of range."""
    topic = cluster.new_topic_of_any_age(2)
    even, odd = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def test() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=5, compression_type="snappy"
        ) as producer:
            for number in range(100):
                await producer.send(
                    topic, b"%d" % number, partition=number % 2, timestamp_ms=1000 + number
                )
            await producer.flush()
        async with AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="none"
        ) as consumer:
            consumer.assign([even, odd])
            found = await consumer.offsets_for_times({even: 1041, odd: 5000})
            assert (found[even].offset, found[even].timestamp, found[odd]) == (21, 1042, None)
            assert await consumer.end_offsets([even, odd]) == {even: 50, odd: 50}
            consumer.seek(even, 48)
            await consumer.seek_to_end(odd)
            assert await consumer.position(odd) == 50
            assert [record.value for record in await take(consumer, 2)] == [b"96", b"98"]
            consumer.pause(even)
            await consumer.seek_to_beginning(even, odd)
            assert {record.partition for record in await take(consumer, 50)} == {1}
            consumer.resume(even)
            assert {record.partition for record in await take(consumer, 50)} == {0}
            consumer.seek(even, 1000)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone(even)

    run(test)


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    """What a member owns, as its listener hears of it."""

    def __init__(self) -> None:
        self.owned: set[int] = set()

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.owned -= {each.partition for each in revoked}

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.owned = {each.partition for each in assigned}


def test_members_share_and_hand_over(cluster: DialogueCluster, group: str) -> None:
    topic = cluster.new_topic(4)

    async def member(listener: Rebalances) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )
        consumer.subscribe([topic], listener=listener)
        await consumer.start()
        return consumer

    async def test() -> None:
        one, other = Rebalances(), Rebalances()
        first = await member(one)
        await eventually(lambda: one.owned == {0, 1, 2, 3}, "one has all")
        second = await member(other)
        await eventually(
            lambda: (
                len(one.owned) == len(other.owned) == 2 and one.owned | other.owned == {0, 1, 2, 3}
            ),
            "two share",
        )
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(40):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)
        taken = await take(first, 20) + await take(second, 20)
        assert {record.value for record in taken} == {b"%d" % number for number in range(40)}
        await first.commit()
        assert await first.committed(TopicPartition(topic, min(one.owned))) == 10
        await first.stop()
        await eventually(lambda: other.owned == {0, 1, 2, 3}, "one is left")
        await second.stop()

    run(test)


def test_a_group_goes_on_where_it_stopped(cluster: DialogueCluster, topic: str, group: str) -> None:
    partition = TopicPartition(topic, 0)

    def consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_instance_id="static",
        )

    async def test() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(20):
                await producer.send_and_wait(topic, b"%d" % number)
        async with consumer() as first:
            await take(first, 12)
            await first.commit({partition: OffsetAndMetadata(12, "twelve")})
        async with consumer() as second:
            assert [record.offset for record in await take(second, 8)] == list(range(12, 20))

    run(test)


def test_the_admin_client(cluster: DialogueCluster, group: str) -> None:
    name = unique("topic")

    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "5"})])
            with cluster.connect() as wire:
                cluster.wait_for_topic(wire, name, 2)
                assert name in await admin.list_topics()
                await admin.create_partitions({name: NewPartitions(3)})
                cluster.wait_for_topic(wire, name, 3)
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            resource = ConfigResource(ConfigResourceType.TOPIC, name)
            (answer,) = await admin.describe_configs([resource])
            configs = {config[0]: config[1] for config in answer.resources[0][4]}
            assert configs["retention.ms"] == "5"
            assert (await admin.describe_cluster())["brokers"]
            assert await admin.list_consumer_group_offsets(group) == {}
            await admin.delete_topics([name])
        finally:
            await admin.close()

    run(test)


def test_transactions_are_all_or_nothing(cluster: DialogueCluster, topic: str) -> None:
    async def test() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=unique("tx")
        ) as producer:
            for value, is_commit in ((b"kept", True), (b"dropped", False), (b"too", True)):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value)
                await (producer.commit_transaction() if is_commit else producer.abort_transaction())
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            assert [record.value for record in await take(consumer, 2)] == [b"kept", b"too"]

    run(test)
