"""Clients of one topic, while a test injects faults."""

import time
from collections.abc import Callable, Container, Iterable, Sequence

from tests.e2e.checker import Log, ObservedHistory
from tests.e2e.load import PACE_S, Reader, Stream, Writer, read_log
from tests.support.waiting import wait_until

WAIT_S = 60.0


class Workload:
    """Writers to all partitions of a topic and a group that reads it. `history` has their
    observations.

    `bootstrap` are the addresses of the writers and readers; further writers use the addresses in
    `aside`. The readers are in the `racks` in turn. Patient readers tolerate that commits fail for
    a while.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition_count: int,
        *,
        group: str = "shippers",
        reader_count: int = 2,
        aside: Iterable[str] = (),
        racks: Sequence[str] = ("",),
        pace_s: float = PACE_S,
        is_steady: bool = False,
        is_patient: bool = False,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.partition_count = partition_count
        self.history = ObservedHistory()
        self.writers = [
            Writer(
                address,
                topic,
                partition_count,
                self.history,
                number,
                pace_s=pace_s,
                is_steady=is_steady,
            )
            for number, address in enumerate((bootstrap, *aside))
        ]
        self.readers = [
            Reader(
                bootstrap,
                topic,
                group,
                f"reader-{number}",
                self.history,
                rack=racks[number % len(racks)],
                is_patient=is_patient,
            )
            for number in range(reader_count)
        ]

    def begin(self) -> None:
        """Start the clients; returns when every partition is written to and read."""
        for client in (*self.writers, *self.readers):
            client.start()
        wait_until(self._is_everything_assigned, timeout_s=WAIT_S, what="the group has settled")
        self.wait_for_progress()

    def wait_for_progress(
        self, timeout_s: float = WAIT_S, *, without: Container[int] = (), reads: bool = True
    ) -> None:
        """Wait until every writer, but those in `without`, has a new record in every partition, and
        (if `reads`) the group has read it."""
        marks = [writer.next_number for writer in self.writers]
        streams = [stream for stream in self._streams() if stream.producer not in without]

        def has_progress(newest: Callable[[Stream], int]) -> bool:
            return all(newest(stream) >= marks[stream.producer] for stream in streams)

        wait_until(
            lambda: has_progress(self._written),
            timeout_s=timeout_s,
            what="every partition takes new records",
        )
        if not reads:
            return
        wait_until(
            lambda: has_progress(self._read),
            timeout_s=timeout_s,
            what="the group reads new records of every partition",
        )

    def measure(self, action: Callable[[], None]) -> float:
        """Do something to the broker and wait until the clients make progress. Returns the
        longest time, in seconds, without an acknowledgement in a partition."""
        begin = time.monotonic()
        action()
        self.wait_for_progress()
        end = time.monotonic()
        return max(writer.longest_gap_s(begin, end) for writer in self.writers)

    def assignments(self) -> list[int]:
        """The number of assignments of each reader."""
        return [reader.assignments for reader in self.readers]

    def end(self) -> None:
        """Stop writing and reading, then read the whole log."""
        for writer in self.writers:
            writer.stop()
        wait_until(
            lambda: all(self._read(stream) >= self._written(stream) for stream in self._streams()),
            timeout_s=WAIT_S,
            what="all is read",
        )
        for reader in self.readers:
            reader.stop()
        self.history.log = self.log()

    def unacknowledged(self) -> int:
        """Records that were sent and never acknowledged."""
        return len(self.history.sent) - len(self.history.acknowledged)

    def log(self) -> Log:
        """The records of the topic."""
        return read_log(self.bootstrap, self.topic, range(self.partition_count))

    def _streams(self) -> Iterable[Stream]:
        for producer in range(len(self.writers)):
            for partition in range(self.partition_count):
                yield Stream(producer, partition)

    def _written(self, stream: Stream) -> int:
        return self.writers[stream.producer].newest[stream.partition]

    def _read(self, stream: Stream) -> int:
        return max((reader.newest.get(stream, -1) for reader in self.readers), default=-1)

    def _is_everything_assigned(self) -> bool:
        assigned = [reader.partitions for reader in self.readers]
        return all(assigned) and set().union(*assigned) == set(range(self.partition_count))
