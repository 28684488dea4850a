"""Who fetches what from this node: for every connection its latest fetch of each partition.

Nothing else knows it: a fetch leaves no trace, and sessions exist only for some clients. It is what
tells a consumer that is paused, or whose application does not poll, from one that has nothing to
read. A note is a reference to what the fetch asks for; only where the next fetch may leave some of
it out is it noted partition by partition, so that incremental fetches of a session cost the same
for any number of partitions. A connection that goes takes its notes along. Called by
handlers/fetch.py; read by handlers/explanations.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from odradek.node.router.fetch_sessions import CachedPartition, TopicKey

PARTITIONS_MAX: Final = 20_000
"""Of one connection; when it has fetched more of them, what was noted is forgotten."""


class LatestFetch(NamedTuple):
    """A connection's latest fetch of one partition."""

    client_id: str
    client_host: str
    idle_ms: int
    """Since it fetched this partition."""
    fetch_idle_ms: int
    """Since it fetched anything."""
    offset: int
    is_read_committed: bool
    error_code: int


class _ConnectionFetches:
    """One connection."""

    __slots__ = (
        "client_host",
        "client_id",
        "earlier",
        "errors",
        "is_read_committed",
        "last",
        "last_ms",
        "session_id",
    )

    def __init__(self) -> None:
        self.client_id = self.client_host = ""
        self.last_ms = self.session_id = 0
        self.is_read_committed = False
        self.last: Sequence[CachedPartition] = ()
        """What the latest fetch asks for; nobody changes it any more."""
        self.earlier: dict[tuple[TopicKey, int], tuple[int, int]] = {}
        """(when, offset) by fetches before; what the latest says of a partition counts more."""
        self.errors: dict[tuple[TopicKey, int], int] = {}


class FetchActivity:
    """All connections of one router."""

    __slots__ = ("_connections",)

    def __init__(self) -> None:
        self._connections: dict[int, _ConnectionFetches] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def record_fetch(
        self,
        connection_id: int,
        client_id: str,
        client_host: str,
        partitions: Sequence[CachedPartition],
        *,
        session_id: int,
        is_reduced: bool,
        is_read_committed: bool,
        now_ms: int,
    ) -> None:
        """The connection fetches these partitions. They are all that the fetch session has (0: none
        goes on), which has lost some with this fetch if `is_reduced`."""
        reader = self._connections.get(connection_id)
        if reader is None:
            reader = self._connections[connection_id] = _ConnectionFetches()
        reader.client_id, reader.client_host = client_id, client_host
        reader.is_read_committed = is_read_committed
        if is_reduced or not session_id or session_id != reader.session_id:
            earlier, noted_ms = reader.earlier, reader.last_ms
            if len(earlier) > PARTITIONS_MAX:
                earlier.clear()
            for wanted in reader.last:
                earlier[wanted.topic, wanted.partition] = (noted_ms, wanted.fetch_offset)
        reader.last, reader.session_id = partitions, session_id
        reader.last_ms = now_ms
        if reader.errors:
            reader.errors.clear()

    def record_error(
        self, connection_id: int, topic: TopicKey, partition: int, error_code: int
    ) -> None:
        """The connection's latest fetch of the partition was refused."""
        reader = self._connections.get(connection_id)
        if reader is not None:
            reader.errors[topic, partition] = error_code

    def remove_connection(self, connection_id: int) -> None:
        """The connection has gone."""
        self._connections.pop(connection_id, None)

    def of_topic(self, name: str, topic_id: bytes, now_ms: int) -> dict[int, list[LatestFetch]]:
        """Who fetches the partitions of a topic; clients ask for it by name or by id. Costs a look
        at every note there is."""
        found: dict[int, list[LatestFetch]] = {}
        names = (name, topic_id)
        for reader in self._connections.values():
            notes = {key: note for key, note in reader.earlier.items() if key[0] in names}
            for wanted in reader.last:
                if wanted.topic in names:
                    note = (reader.last_ms, wanted.fetch_offset)
                    notes[wanted.topic, wanted.partition] = note
            for key, (noted_ms, offset) in notes.items():
                reading = LatestFetch(
                    reader.client_id,
                    reader.client_host,
                    max(now_ms - noted_ms, 0),
                    max(now_ms - reader.last_ms, 0),
                    offset,
                    reader.is_read_committed,
                    reader.errors.get(key, 0),
                )
                found.setdefault(key[1], []).append(reading)
        return found
