"""What a worker's metrics are read from. The families are declared in node/metrics/families.py.

Nothing is counted here: each function reads what the worker's parts have, when the metrics are
scraped. Called by process.py.
"""

from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.metrics.registry import Metrics
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.node.worker.replica_moves import ReplicaMoves
from odradek.node.worker.replication import Replication
from odradek.node.worker.turnaround_spin import TurnaroundSpin
from odradek.node.worker.turns import TurnExecutor


def register_storage_metrics(
    metrics: Metrics,
    partitions: HostedPartitions,
    turns: TurnExecutor,
    turn_times: DurationHistogram,
    spin: TurnaroundSpin,
) -> None:
    """Appends and stores."""
    read = metrics.read
    metrics.read_histogram("odradek_worker_turn_duration_seconds", lambda: [((), turn_times)])
    read("odradek_appends_total", lambda: turns.appended_count)
    read("odradek_worker_spin_seconds_total", lambda: spin.spun_s)
    read("odradek_appended_bytes_total", lambda: turns.appended_bytes)
    read("odradek_storage_errors_total", lambda: turns.failed_count)
    read("odradek_batches_in_preparation", lambda: turns.preparation.thread.count)
    read(
        "odradek_partitions",
        lambda: sum(len(store.partitions()) for store in partitions.stores.values()),
    )


def register_replication_metrics(
    metrics: Metrics, replication: Replication, moves: ReplicaMoves
) -> None:
    """Replicas, on this node and on others."""
    read, server, fetchers = metrics.read, replication.server, replication.fetchers
    metrics.read_histogram(
        "odradek_replication_wait_duration_seconds", lambda: [((), replication.wait_times)]
    )
    read("odradek_replica_moves", lambda: moves.count)
    read("odradek_replica_moved_bytes_total", lambda: moves.moved_bytes)
    read("odradek_replication_sent_bytes_total", lambda: server.sent_bytes)
    read("odradek_replication_fetched_bytes_total", lambda: fetchers.fetched_bytes)
    read("odradek_replication_lag_records", lambda: fetchers.lag)
    read("odradek_under_replicated_partitions", lambda: replication.under_replicated_count)
    read("odradek_under_min_isr_partitions", lambda: replication.under_min_isr_count)
    read(
        "odradek_isr_changes_total",
        lambda: {
            "shrunk": replication.isr_shrink_count,
            "expanded": replication.isr_expand_count,
        },
    )
    read("odradek_worker_connections_refused_total", lambda: server.refused_count)
