"""What a router's metrics are read from. The families are declared in node/metrics/families.py.

Nothing is counted here: each function reads what the router's parts have, when the metrics are
scraped. Called by process.py.
"""

from collections.abc import Callable

from odradek.coordinator.transaction.shard import TransactionShard
from odradek.coordinator.transaction.transaction_metadata import TransactionState
from odradek.node.bus.arena import Arena
from odradek.node.metrics.registry import Metrics
from odradek.node.router.audit_log import AuditLog
from odradek.node.router.client_listeners import ClientListeners
from odradek.node.router.client_quotas import USES_REPORTED_MAX, ClientQuotas, QuotaUse
from odradek.node.router.connection_handover import ConnectionHandover
from odradek.node.router.context import Services
from odradek.node.router.dispatch import Dispatcher
from odradek.node.router.group_lag_metrics import GroupLagMetrics
from odradek.node.router.response_errors import error_name
from odradek.node.router.sasl_authentication import SaslAuthenticator
from odradek.node.router.shards.loop_delay import LoopDelayMonitor
from odradek.node.router.telemetry.receiver import TelemetryReceiver
from odradek.node.router.tls_listeners import TlsListeners
from odradek.node.router.transactions.watchdog import Watchdog
from odradek.node.router.worker_client import WorkerClient
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import RequestTimes
from odradek.node.wire.socket_server import SocketServer
from odradek.protocol.apis import ApiKey

_CONNECTION_EVENTS = {
    "accepted": "connections_accepted",
    "refused": "connections_refused",
    "delayed": "connections_delayed",
    "idle_closed": "connections_idle_closed",
    "half_open_closed": "connections_half_open_closed",
    "stalled_closed": "connections_stalled_closed",
}


def register_wire_metrics(
    metrics: Metrics,
    socket_server: "SocketServer[Connection, Slot]",
    listeners: ClientListeners,
    tls_listeners: TlsListeners,
    arena: Arena,
    handover: ConnectionHandover,
) -> None:
    """Connections, their bytes and TLS."""
    read, counters = metrics.read, socket_server.counters
    read("odradek_connections", lambda: len(socket_server.connections))
    read("odradek_connections_handed_over", lambda: handover.count)
    read("odradek_connection_handovers_total", lambda: handover.handed_over_count)
    read(
        "odradek_connection_events_total",
        lambda: {event: getattr(counters, name) for event, name in _CONNECTION_EVENTS.items()},
    )
    read(
        "odradek_connections_throttled_total",
        lambda: socket_server.connection_rates.throttle_count,
    )
    read("odradek_protocol_errors_total", lambda: counters.protocol_errors)
    read("odradek_received_bytes_total", lambda: counters.received_bytes)
    read("odradek_sent_bytes_total", lambda: counters.sent_bytes)
    read("odradek_arena_waits_total", lambda: counters.starvations)
    read("odradek_arena_used_bytes", lambda: arena.used_bytes)
    read(
        "odradek_tls_handshakes_total",
        lambda: {
            "completed": counters.tls_handshakes,
            "failed": counters.tls_handshakes_failed,
        },
    )
    read("odradek_tls_reloads_total", tls_listeners.reloads)
    read("odradek_tls_certificate_remaining_seconds", tls_listeners.seconds_left)
    read("odradek_tls_reload_problem", tls_listeners.problems)
    read("odradek_listeners_closed", lambda: len(listeners.problems))


def register_request_metrics(
    metrics: Metrics,
    services: Services,
    dispatcher: Dispatcher,
    authenticator: SaslAuthenticator,
    audit_log: AuditLog | None,
) -> None:
    """Requests, and what allows or denies them."""
    read = metrics.read
    read(
        "odradek_requests_total",
        lambda: {
            (ApiKey(key).name, str(version)): count
            for (key, version), count in dispatcher.request_counts.items()
        },
    )
    read(
        "odradek_request_errors_total",
        lambda: {
            (ApiKey(key).name, error_name(code)): count
            for (key, code), count in dispatcher.errors.counts.items()
        },
    )
    read("odradek_topic_sent_bytes_total", lambda: _sent_by_topic(services, 0))
    read("odradek_topic_sent_records_total", lambda: _sent_by_topic(services, 1))
    read("odradek_delayed_fetches", lambda: services.fetch_purgatory.parked_count)
    read("odradek_fetch_sessions", lambda: len(services.fetch_sessions))
    read("odradek_worker_requests_pending", lambda: services.worker_client.queued_count)
    read("odradek_acls", lambda: len(services.image.acls))
    read("odradek_authorizations_denied_total", lambda: services.authorizer.denied_count)
    read("odradek_authentications_total", lambda: authenticator.counts)
    if audit_log is not None:
        read("odradek_audit_log_lost_total", lambda: audit_log.lost_count)


def register_time_metrics(
    metrics: Metrics,
    request_times: RequestTimes,
    worker_client: WorkerClient,
    loop_delay: LoopDelayMonitor,
) -> None:
    """How long things take."""
    read = metrics.read_histogram
    read(
        "odradek_request_duration_seconds",
        lambda: [((ApiKey(key).name,), times) for key, times in request_times.totals()],
    )
    read(
        "odradek_request_stage_duration_seconds",
        lambda: [
            ((ApiKey(key).name, stage), times) for key, stage, times in request_times.stages()
        ],
    )
    read("odradek_worker_request_duration_seconds", lambda: [((), worker_client.times)])
    read(
        "odradek_bus_duration_seconds",
        lambda: [
            (("request",), worker_client.bus_request_times),
            (("reply",), worker_client.bus_reply_times),
        ],
    )
    read("odradek_event_loop_delay_seconds", lambda: [((), loop_delay.histogram)])


def register_quota_metrics(metrics: Metrics, quotas: ClientQuotas) -> None:
    """Client quotas in use."""

    def values(
        value: Callable[[QuotaUse], float],
    ) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {tuple(key): value(use) for key, use in quotas.report().items()}

    metrics.read("odradek_quota_use", values(quotas.rate))
    metrics.read("odradek_quota_limit", values(lambda use: use.limit))
    metrics.read("odradek_quota_throttles_total", values(lambda use: use.throttle_count))
    metrics.read(
        "odradek_quota_throttled_seconds_total", values(lambda use: use.throttled_ms / 1000)
    )
    metrics.read("odradek_quotas_omitted", lambda: max(0, quotas.use_count - USES_REPORTED_MAX))


def register_coordinator_metrics(
    metrics: Metrics, services: Services, lag: GroupLagMetrics, watchdog: Watchdog
) -> None:
    """Groups, transactions and share groups."""
    read, dead_letters = metrics.read, services.dead_letter_queue
    read("odradek_group_lag_records", lambda: lag.records)
    read("odradek_group_lag_bytes", lambda: lag.bytes)
    read("odradek_group_lag_seconds", lambda: lag.seconds)
    read("odradek_group_lag_uncommitted_partitions", lambda: lag.uncommitted)
    read("odradek_group_lag_series_omitted", lambda: lag.omitted_count)
    read(
        "odradek_ephemeral_groups_deleted_total",
        lambda: services.group_coordinator_type.deleted_ephemeral_count,
    )
    read(
        "odradek_groups",
        lambda: sum(
            len(shard.directory.group_ids()) for shard in services.group_coordinator.shards()
        ),
    )
    transactions = TransactionMetrics(services.transaction_coordinator.shards, services.now_ms)
    transactions.register(metrics)
    read("odradek_hanging_transactions", lambda: watchdog.hanging_count)
    read("odradek_hanging_transactions_aborted_total", lambda: watchdog.ended_count)
    read("odradek_share_sessions", lambda: len(services.share_sessions))
    read("odradek_share_partitions", lambda: services.share_partitions.count)
    read(
        "odradek_dead_letters_total",
        lambda: {
            "written": dead_letters.written_count,
            "dropped": dead_letters.dropped_count,
        },
    )


class TransactionMetrics:
    """The transactions of the active `shards` that are not complete."""

    def __init__(
        self, shards: Callable[[], list[TransactionShard]], now_ms: Callable[[], int]
    ) -> None:
        self._shards = shards
        self._now_ms = now_ms
        self._oldest_ms = 0

    def register(self, metrics: Metrics) -> None:
        """Have the families of transactions read: the second one as the first has found it."""
        metrics.read("odradek_transactions", self._by_state)
        metrics.read("odradek_oldest_transaction_seconds", lambda: self._oldest_ms / 1000)

    def _by_state(self) -> dict[str, float]:
        found = {"ongoing": 0.0, "prepared": 0.0}
        now_ms = self._now_ms()
        self._oldest_ms = 0
        for shard in self._shards():
            for _, transaction in shard.transactions.items():  # noqa: PERF102 - a timeline's table
                state = transaction.state
                if state is TransactionState.ONGOING or state.is_prepared:
                    found["prepared" if state.is_prepared else "ongoing"] += 1
                    self._oldest_ms = max(self._oldest_ms, now_ms - transaction.start_ms)
        return found


def _sent_by_topic(services: Services, index: int) -> dict[str, float]:
    """What Fetch has sent, by topic name: bytes (0) or records (1). Deleted topics are dropped."""
    image, counts = services.image, services.fetch_activity.sent
    found: dict[str, float] = {}
    for key, numbers in list(counts.items()):
        topic = (
            image.topics_by_name.get(key) if isinstance(key, str) else image.topics_by_id.get(key)
        )
        if topic is None:
            del counts[key]
        else:
            # Older versions of Fetch name topics, newer ones have their ids.
            found[topic.name] = found.get(topic.name, 0) + numbers[index]
    return found


def register_telemetry_metrics(metrics: Metrics, telemetry: TelemetryReceiver) -> None:
    """What clients push (KIP-714)."""
    read = metrics.read
    read("odradek_telemetry_pushes_total", lambda: dict(telemetry.push_counts))
    read("odradek_telemetry_points_omitted_total", lambda: telemetry.metrics.omitted_count)
    read("odradek_telemetry_instances", lambda: len(telemetry.instances))
    read("odradek_telemetry_series", lambda: telemetry.metrics.series_count)
    metrics.samples(telemetry.samples)
