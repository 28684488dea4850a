"""The latest metrics of each client instance that pushes them to this broker: for /metrics and
`odradek client show`.

A push replaces the values of the one before; deltas are added up. A series is kept for
PUSHES_KEPT pushes that do not have it, all of a client until some intervals after its last push: a
client may go on at another broker. Bounded: series over SERIES_MAX of all clients are only
counted, as are those over the limits of otlp.py. Time is an argument: monotonic, in milliseconds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from odradek.node.metrics.families import FAMILIES
from odradek.node.metrics.registry import Sample
from odradek.protocol.errors import ProtocolError
from odradek.protocol.types import Uuid, uuid_to_text

SERIES_MAX: Final = 5_000
"""Series of all clients."""
PUSHES_KEPT: Final = 3
CLIENTS_MAX: Final = 16_384
TERMINATED_KEPT_MS: Final = 60_000
"""How long the metrics of a client are kept that has pushed its last: until they are scraped."""
CLIENT_LABEL_BYTES_MAX: Final = 256
"""A client whose id is longer is not exported."""
CLIENT_INFO: Final = FAMILIES["odradek_telemetry_client_info"]
HELP: Final = "Pushed by clients (KIP-714)"

Labels: TypeAlias = tuple[tuple[str, str], ...]

_EXPIRY_CHECK_MS: Final = 10_000


class PushedSeries(NamedTuple):
    """A metric of a client. `kind` is counter or gauge; `source_name` as the client names it."""

    name: str
    labels: Labels
    kind: str
    source_name: str


class TooManyPointsError(ProtocolError):
    """A push has more data points, or parts around them, than a broker reads."""


@dataclass(slots=True)
class PushedMetrics:
    """What one push says. `deltas` are added to what was there, `values` replace it."""

    values: dict[PushedSeries, float] = field(default_factory=dict)
    deltas: dict[PushedSeries, float] = field(default_factory=dict)
    resource: Labels = ()
    """The attributes of the client, such as its group id."""
    omitted_count: int = 0
    """Data points over the limits."""


class PushingClient(NamedTuple):
    """A client instance as it was when it pushed."""

    instance_id: Uuid
    client_id: str
    software_name: str
    software_version: str
    host: str


class _Value:
    __slots__ = ("pushed_at", "sample")

    def __init__(self, sample: Sample, pushed_at: int) -> None:
        self.sample = sample
        self.pushed_at = pushed_at
        """The number of the push that had it last."""


class ClientMetrics:
    """The metrics of one client instance."""

    __slots__ = (
        "client",
        "expires_ms",
        "is_terminated",
        "last_push_ms",
        "omitted_count",
        "push_count",
        "resource",
        "values",
    )

    def __init__(self, client: PushingClient) -> None:
        self.client = client
        self.resource: Labels = ()
        self.values: dict[PushedSeries, _Value] = {}
        self.last_push_ms = self.expires_ms = 0
        self.push_count = 0
        self.omitted_count = 0
        """Data points of the last push over the limits."""
        self.is_terminated = False

    @property
    def is_exported(self) -> bool:
        """Whether its id fits into a label."""
        return len(self.client.client_id.encode()) <= CLIENT_LABEL_BYTES_MAX

    def series(self) -> Iterator[tuple[PushedSeries, float]]:
        """The series with their values."""
        for key, value in self.values.items():
            yield key, value.sample.value


class ClientMetricsStore:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._clients: dict[Uuid, ClientMetrics] = {}
        self.series_count = 0
        self.omitted_count = 0
        """Data points over the limits, since the start."""
        self._next_check_ms = 0

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, instance_id: Uuid) -> ClientMetrics | None:
        """The metrics of an instance; None if it has pushed none lately."""
        return self._clients.get(instance_id)

    def clients(self, now_ms: int) -> Iterable[ClientMetrics]:
        """Those that have pushed lately."""
        self._expire(now_ms)
        return self._clients.values()

    def record(
        self,
        client: PushingClient,
        pushed: PushedMetrics,
        *,
        now_ms: int,
        kept_ms: int,
        is_terminating: bool,
    ) -> None:
        """A push. The metrics are kept for `kept_ms`, or until the next push."""
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + _EXPIRY_CHECK_MS
            self._expire(now_ms)
        metrics = self._clients.get(client.instance_id)
        if metrics is None:
            if len(self._clients) >= CLIENTS_MAX:
                omitted_count = len(pushed.values) + len(pushed.deltas)
                self.omitted_count += pushed.omitted_count + omitted_count
                return
            metrics = self._clients[client.instance_id] = ClientMetrics(client)
        elif metrics.client != client:
            self.series_count -= len(metrics.values)
            metrics.values.clear()
            metrics.client = client
        metrics.push_count += 1
        metrics.resource = pushed.resource
        metrics.last_push_ms = now_ms
        metrics.is_terminated = is_terminating
        metrics.expires_ms = now_ms + (TERMINATED_KEPT_MS if is_terminating else kept_ms)
        metrics.omitted_count = pushed.omitted_count
        self._drop_absent(metrics)
        for key, number in pushed.values.items():
            self._set(metrics, key, number, is_delta=False)
        for key, number in pushed.deltas.items():
            self._set(metrics, key, number, is_delta=True)
        self.omitted_count += metrics.omitted_count

    def samples(self, now_ms: int) -> list[Sample]:
        """All series for the exposition, and one that describes each client."""
        samples = []
        for metrics in self.clients(now_ms):
            if metrics.values and metrics.is_exported:
                samples.append(_client_sample(metrics))
                samples += [value.sample for value in metrics.values.values()]
        return samples

    def _expire(self, now_ms: int) -> None:
        for metrics in [each for each in self._clients.values() if each.expires_ms <= now_ms]:
            self.series_count -= len(metrics.values)
            del self._clients[metrics.client.instance_id]

    def _set(
        self, metrics: ClientMetrics, key: PushedSeries, number: float, *, is_delta: bool
    ) -> None:
        value = metrics.values.get(key)
        if value is not None:
            if is_delta:
                number += value.sample.value
            labels = value.sample.labels
        elif self.series_count >= SERIES_MAX:
            metrics.omitted_count += 1
            return
        else:
            self.series_count += 1
            client = metrics.client
            labels = (
                ("client_id", client.client_id),
                ("client_instance_id", uuid_to_text(client.instance_id)),
                *key.labels,
            )
        sample = Sample(key.name, key.kind, HELP, number, labels)
        metrics.values[key] = _Value(sample, metrics.push_count)

    def _drop_absent(self, metrics: ClientMetrics) -> None:
        oldest = metrics.push_count - PUSHES_KEPT
        absent = [key for key, value in metrics.values.items() if value.pushed_at < oldest]
        for key in absent:
            del metrics.values[key]
        self.series_count -= len(absent)


def _client_sample(metrics: ClientMetrics) -> Sample:
    client = metrics.client
    labels = {
        "client_id": client.client_id,
        "client_instance_id": uuid_to_text(client.instance_id),
        "software_name": client.software_name,
        "software_version": client.software_version,
        "host": client.host,
    }
    for name, text in metrics.resource:
        labels.setdefault(name, text)
    return Sample(
        CLIENT_INFO.name,
        CLIENT_INFO.kind,
        CLIENT_INFO.help,
        1.0,
        tuple(labels.items()),
    )
