"""Members of one group through librdkafka, and the duration of rebalances.

Each member is a thread that polls. The members' callbacks show the assignment. A group is stable
when every partition has one owner, the members' partition counts differ by at most one, and nothing
has changed for SETTLED_S. Durations end at the last change, not at the end of SETTLED_S.
"""

import threading
import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

SETTLED_S = 3.0
"""For how long nothing must change."""
TIMEOUT_S = 90.0
_POLL_S = 0.1
_CHECK_INTERVAL_S = 0.02


def is_balanced(owned: list[set[int]], partition_count: int) -> bool:
    """Whether every partition has one owner and the counts of the members differ by at most one."""
    everything = [partition for partitions in owned for partition in partitions]
    if len(everything) != partition_count or len(set(everything)) != partition_count:
        return False
    sizes = [len(partitions) for partitions in owned]
    return max(sizes) - min(sizes) <= 1


class GroupMembers:
    """A group that grows and shrinks. The end of the block closes all members."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int, protocol: str) -> None:
        """`protocol`: classic or consumer (KIP-848)."""
        self._settings: dict[str, str | int | bool] = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-members",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._topic = topic
        self._partition_count = partition_count
        self._members: list[_Member] = []
        self.changed_at = 0.0

    def join(self, count: int = 1) -> float:
        """Add `count` members at once; returns the seconds until the group was stable."""
        began = self.changed_at = time.monotonic()
        for _ in range(count):
            self._members.append(_Member(self, self._settings, self._topic))
        return self._seconds_until_settled(began)

    def leave(self) -> float:
        """Close the first member; returns the seconds until the others owned its partitions."""
        began = self.changed_at = time.monotonic()
        self._members.pop(0).close()
        return self._seconds_until_settled(began)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self._members:
            member.stop()
        for member in self._members:
            member.close()

    def _seconds_until_settled(self, began: float) -> float:
        while time.monotonic() < began + TIMEOUT_S:
            owned = [set(member.owned) for member in self._members]
            is_quiet = time.monotonic() - self.changed_at > SETTLED_S
            if is_quiet and is_balanced(owned, self._partition_count):
                return self.changed_at - began
            time.sleep(_CHECK_INTERVAL_S)
        raise RuntimeError(f"the group did not become stable: {owned}")


class _Member:
    def __init__(
        self, members: GroupMembers, settings: dict[str, str | int | bool], topic: str
    ) -> None:
        self.owned: set[int] = set()
        self._members = members
        self._consumer = Consumer(settings)
        self._is_stopping = False
        self._consumer.subscribe(
            [topic], on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True

    def close(self) -> None:
        """Leave the group and wait until that is done."""
        self.stop()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._is_stopping:
            self._consumer.poll(_POLL_S)
        self._consumer.close()

    def _gained(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {each.partition for each in partitions}
        self._members.changed_at = time.monotonic()

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {each.partition for each in partitions}
        self._members.changed_at = time.monotonic()
