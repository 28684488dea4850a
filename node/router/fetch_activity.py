"""Fetch activity: the latest fetch of each partition, by connection.

It distinguishes a consumer that is paused, or whose application does not poll, from one that has
nothing to read; fetch sessions do not, and not every client has one. The latest fetch is kept as a
reference to its partitions. Only when the next fetch may leave out some of them are they copied one
by one, so that incremental fetches cost the same for any number of partitions. Entries go with
their connection. It counts what is sent of each topic, too. Written by handlers/fetch.py, read by
handlers/explanations.py and router_metrics.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from odradek.node.router.fetch_sessions import CachedPartition, TopicKey
from odradek.protocol.messages.diagnostics import ExplainedReader

PARTITIONS_MAX: Final = 20_000
"""Partitions kept for one connection. Above that its earlier fetches are dropped."""

_NOTHING: Final = (0, 0)


@dataclass(slots=True, eq=False)
class ConnectionFetches:
    """The fetches of one connection."""

    client_id: str = ""
    client_host: str = ""
    last_ms: int = 0
    session_id: int = 0
    is_read_committed: bool = False
    last: Sequence[CachedPartition] = ()
    """The partitions of the latest fetch. Not modified any more."""
    earlier: dict[tuple[TopicKey, int], tuple[int, int]] = field(default_factory=dict)
    """(time, offset) of earlier fetches. The latest fetch takes precedence."""
    errors: dict[tuple[TopicKey, int], int] = field(default_factory=dict)


class FetchActivity:
    """The fetches of all connections of one router."""

    __slots__ = ("_connections", "sent")

    def __init__(self) -> None:
        self._connections: dict[int, ConnectionFetches] = {}
        self.sent: dict[TopicKey, tuple[int, int]] = {}
        """Bytes and number of the records in responses, by topic."""

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
        """The connection fetches these partitions: all partitions of its fetch session (0: no
        session). `is_reduced` says that this fetch removed some from the session."""
        fetches = self._connections.get(connection_id)
        if fetches is None:
            fetches = self._connections[connection_id] = ConnectionFetches()
        fetches.client_id, fetches.client_host = client_id, client_host
        fetches.is_read_committed = is_read_committed
        if is_reduced or not session_id or session_id != fetches.session_id:
            earlier, fetched_ms = fetches.earlier, fetches.last_ms
            if len(earlier) > PARTITIONS_MAX:
                earlier.clear()
            for cached in fetches.last:
                earlier[cached.topic, cached.partition] = (fetched_ms, cached.fetch_offset)
        fetches.last, fetches.session_id = partitions, session_id
        fetches.last_ms = now_ms
        if fetches.errors:
            fetches.errors.clear()

    def of_connection(self, connection_id: int) -> ConnectionFetches | None:
        """Whoever sees that the latest fetch is sent again sets its `last_ms`. Valid until the
        connection is closed."""
        return self._connections.get(connection_id)

    def repeat(self, connection_id: int, now_ms: int) -> None:
        """The connection's latest fetch was sent again."""
        fetches = self._connections.get(connection_id)
        if fetches is not None:
            fetches.last_ms = now_ms

    def record_sent(self, sent: Iterable[tuple[TopicKey, int, int]]) -> None:
        """A response has records: for each partition its topic, their bytes, and their number."""
        known = self.sent
        for topic, byte_count, record_count in sent:
            before = known.get(topic, _NOTHING)
            known[topic] = before[0] + byte_count, before[1] + record_count

    def record_error(
        self, connection_id: int, topic: TopicKey, partition: int, error_code: int
    ) -> None:
        """The connection's latest fetch of the partition returned an error."""
        fetches = self._connections.get(connection_id)
        if fetches is not None:
            fetches.errors[topic, partition] = error_code

    def remove_connection(self, connection_id: int) -> None:
        """The connection is closed."""
        self._connections.pop(connection_id, None)

    def of_topic(self, name: str, topic_id: bytes, now_ms: int) -> dict[int, list[ExplainedReader]]:
        """The latest fetches by partition of a topic, by name or by id. Scans all entries."""
        readers: dict[int, list[ExplainedReader]] = {}
        names = (name, topic_id)
        for fetches in self._connections.values():
            latest = {key: fetch for key, fetch in fetches.earlier.items() if key[0] in names}
            for cached in fetches.last:
                if cached.topic in names:
                    fetch = (fetches.last_ms, cached.fetch_offset)
                    latest[cached.topic, cached.partition] = fetch
            for key, (fetched_ms, offset) in latest.items():
                reader = ExplainedReader(
                    client_id=fetches.client_id,
                    client_host="/" + fetches.client_host,
                    idle_ms=max(now_ms - fetched_ms, 0),
                    fetch_idle_ms=max(now_ms - fetches.last_ms, 0),
                    offset=offset,
                    is_read_committed=fetches.is_read_committed,
                    error_code=fetches.errors.get(key, 0),
                )
                readers.setdefault(key[1], []).append(reader)
        return readers
