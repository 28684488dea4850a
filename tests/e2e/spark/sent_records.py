"""A ledger of acknowledged sends: what a table or a topic must have after whatever was killed.

Records go to all partitions while brokers are killed and come back. librdkafka sends again what was
not acknowledged, and its idempotent producer writes nothing twice; any other outcome ends the test.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

PARTITIONS: Final = 3
FLUSH_S: Final = 120.0
BAD_EVERY: Final = 50


class SentRecords:
    """Sends records to one topic, and keeps which ones were acknowledged, with their places."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._numbers = count()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._failures: list[KafkaError] = []
        self.good: dict[tuple[int, int], int] = {}
        """(partition, offset) to the number in the record's JSON."""
        self.bad: set[tuple[int, int]] = set()
        """Places of the records that are no JSON."""
        self.values: dict[tuple[int, int], bytes] = {}
        """(partition, offset) to the value, of all records."""

    def send(self, records: int) -> None:
        """To all partitions in turn, without waiting; one in BAD_EVERY is no JSON."""
        for _ in range(records):
            number = next(self._numbers)
            is_bad = number % BAD_EVERY == 7
            value = b"{ %d" % number if is_bad else b'{"number": %d}' % number
            self._producer.produce(
                self._topic,
                value=value,
                partition=number % PARTITIONS,
                on_delivery=self._delivered(number, value, is_bad=is_bad),
            )
        self._producer.poll(0)

    def wait_for_all(self) -> None:
        """Until each record is acknowledged. AssertionError if one was refused."""
        assert self._producer.flush(FLUSH_S) == 0, "not all records were acknowledged"
        assert not self._failures, self._failures

    def _delivered(
        self, number: int, value: bytes, *, is_bad: bool
    ) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failures.append(error)
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            assert (partition, offset) not in self.values
            self.values[partition, offset] = value
            if is_bad:
                self.bad.add((partition, offset))
            else:
                self.good[partition, offset] = number

        return note
