"""Records in topics of a real broker, sent by librdkafka: plain, in transactions, deleted again."""

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.waiting import wait_until

TIMEOUT_S = 30.0
Headers = Sequence[tuple[str, bytes | None]]


class TopicRecords:
    """Sends to one cluster and changes its topics."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties: dict[str, str | int | float | bool] = dict(properties)
        self._admin = AdminClient(self._properties)

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic that keeps records of any age; returns when its partitions have
        leaders."""
        new = NewTopic(topic, partitions, config={"retention.ms": "-1", **(configs or {})})
        self._admin.create_topics([new])[topic].result(TIMEOUT_S)
        wait_until(lambda: self._led(topic) == partitions, what=f"{topic} has leaders")

    def recreate(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and create another one of its name."""
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wait_until(lambda: self._created_again(topic, partitions), what=f"{topic} is created again")
        wait_until(lambda: self._led(topic) == partitions, what=f"{topic} has leaders")

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions."""
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(TIMEOUT_S)
        wait_until(lambda: self._led(topic) == total, what=f"{topic} has {total} partitions")

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """DeleteRecords: the log starts at this offset."""
        wanted = TopicPartition(topic, partition, offset)
        self._admin.delete_records([wanted])[wanted].result(TIMEOUT_S)

    def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | None = None,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send records to one partition, in order; returns when all are acknowledged."""
        producer = Producer({**self._properties, "linger.ms": 5, **(properties or {})})
        for index, value in enumerate(values):
            own = headers[index] if headers else None
            producer.produce(
                topic,
                value=value,
                key=keys[index] if keys else None,
                partition=partition,
                timestamp=timestamps[index] if timestamps else 0,
                headers=list(own) if own else None,
                on_delivery=_raise,
            )
            if index % 10_000 == 0:
                producer.poll(0)
        _flush(producer)

    def open_transaction(
        self, transactional_id: str, topic: str, values: Iterable[bytes], *, partition: int = 0
    ) -> Producer:
        """Send records in a transaction that stays open: commit or abort it."""
        producer = Producer({**self._properties, "transactional.id": transactional_id})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=value, partition=partition, on_delivery=_raise)
        _flush(producer)
        return producer

    def commit(self, transactional_id: str, topic: str, values: Iterable[bytes]) -> None:
        """A committed transaction."""
        self.open_transaction(transactional_id, topic, values).commit_transaction(TIMEOUT_S)

    def abort(self, transactional_id: str, topic: str, values: Iterable[bytes]) -> None:
        """An aborted transaction."""
        self.open_transaction(transactional_id, topic, values).abort_transaction(TIMEOUT_S)

    def _led(self, topic: str) -> int:
        found = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        return sum(each.leader >= 0 for each in found.partitions.values())

    def _created_again(self, topic: str, partitions: int) -> bool:
        try:
            self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True


def _raise(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def _flush(producer: Producer) -> None:
    """Wait for all acknowledgements."""
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("not all records were acknowledged")
