"""All metrics of a node, but those that clients push: what docs/metrics.md is generated from.

A process reads them by these names (registry.py), and reads no other.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from odradek.node.metrics.family import MetricFamily, MetricKind, SeriesBound

_Families = Iterator[MetricFamily]
_EVERY: Final = "every"
_SUPERVISOR: Final = "supervisor"
_CONTROLLER: Final = "controller"
_ROUTER: Final = "router"
_WORKER: Final = "worker"


def _counter(
    name: str, process: str, text: str, *labels: str, bound: SeriesBound = SeriesBound.FIXED
) -> MetricFamily:
    return MetricFamily(
        name=name, kind=MetricKind.COUNTER, process=process, help=text, labels=labels, bound=bound
    )


def _gauge(
    name: str, process: str, text: str, *labels: str, bound: SeriesBound = SeriesBound.FIXED
) -> MetricFamily:
    return MetricFamily(
        name=name, kind=MetricKind.GAUGE, process=process, help=text, labels=labels, bound=bound
    )


def _histogram(name: str, process: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(
        name=name, kind=MetricKind.HISTOGRAM, process=process, help=text, labels=labels
    )


def _of_processes() -> _Families:
    yield _counter("process_cpu_seconds_total", _EVERY, "User and system CPU time spent")
    yield _gauge("process_resident_memory_bytes", _EVERY, "Resident memory size")
    yield _gauge("process_virtual_memory_bytes", _EVERY, "Virtual memory size")
    yield _gauge(
        "process_start_time_seconds", _EVERY, "Start time of the process since the Unix epoch"
    )
    yield _gauge("process_open_fds", _EVERY, "Open file descriptors")
    yield _gauge("process_max_fds", _EVERY, "Maximum number of open file descriptors")


def _of_the_supervisor() -> _Families:
    yield MetricFamily(
        name="odradek_build_info",
        kind=MetricKind.INFO,
        process=_SUPERVISOR,
        help="The version of Odradek and of Python; the value is 1",
        labels=("version", "python_version"),
    )
    yield _gauge("odradek_uptime_seconds", _SUPERVISOR, "Time since the node was started")
    yield _counter(
        "odradek_process_restarts_total",
        _SUPERVISOR,
        "How often the supervisor restarted a process",
        "process",
    )
    yield _gauge("odradek_process_ready", _SUPERVISOR, "1 if a process is ready", "process")
    yield _gauge(
        "odradek_processes_not_scraped",
        _SUPERVISOR,
        "Processes whose metrics are not in this answer: they are not ready, or were too slow",
    )
    yield _gauge(
        "odradek_offline_log_directories",
        _SUPERVISOR,
        "Log directories that are offline; the data folder is if it cannot be written",
    )
    yield _counter(
        "odradek_storage_problems_total",
        _SUPERVISOR,
        "How often processes reported that they could not write their files",
    )
    yield _counter(
        "odradek_config_file_changes_total",
        _SUPERVISOR,
        "Changes of the configuration file that were applied or refused",
        "result",
    )
    yield _gauge(
        "odradek_config_file_refused",
        _SUPERVISOR,
        "1 while the configuration file is not valid and an older one is in effect",
    )
    yield _gauge(
        "odradek_config_restart_pending",
        _SUPERVISOR,
        "Settings that have changed in the configuration file and need a restart",
    )
    yield _gauge(
        "odradek_config_settings_refused",
        _SUPERVISOR,
        "1 while what is set for this node through the cluster is not in effect",
    )
    yield _counter(
        "odradek_processes_replaced_total",
        _SUPERVISOR,
        "Processes that were replaced to start with a changed configuration",
    )


def _of_the_controller() -> _Families:
    yield _gauge("odradek_metadata_offset", _CONTROLLER, "Entries of the metadata log applied")
    yield _gauge("odradek_raft_term", _CONTROLLER, "The quorum's term, as this node knows it")
    yield _gauge(
        "odradek_raft_leader_id", _CONTROLLER, "The node that leads the quorum; -1 if none is known"
    )
    yield _counter("odradek_raft_elections_total", _CONTROLLER, "Elections that the node has begun")
    yield _gauge("odradek_raft_last_index", _CONTROLLER, "The last entry of the metadata log")
    yield _gauge("odradek_raft_committed_index", _CONTROLLER, "The last entry known as committed")
    yield _gauge("odradek_raft_applied_index", _CONTROLLER, "The last entry applied")
    yield _gauge("odradek_raft_is_leader", _CONTROLLER, "1 at the active controller")
    yield _gauge("odradek_raft_is_voter", _CONTROLLER, "1 where the node votes")
    yield _gauge("odradek_commands_pending", _CONTROLLER, "Commands that are not answered yet")
    yield _counter(
        "odradek_peer_messages_lost_total",
        _CONTROLLER,
        "Messages between nodes that were dropped, or refused because of the sender",
        "reason",
    )
    yield _gauge(
        "odradek_cluster_secrets",
        _CONTROLLER,
        "Secrets that the node accepts: two while the secret is replaced",
    )
    yield _gauge(
        "odradek_peers_with_other_secrets",
        _CONTROLLER,
        "Nodes whose cluster secrets are not those of this node, in the same order",
    )


def _of_the_cluster() -> _Families:
    yield _gauge(
        "odradek_brokers",
        _CONTROLLER,
        "Brokers of the cluster, active and fenced; at the active controller only",
        "state",
    )
    yield _gauge(
        "odradek_topics",
        _CONTROLLER,
        "Topics of the cluster; at the active controller only",
        "scope",
    )
    yield _gauge(
        "odradek_offline_partitions",
        _CONTROLLER,
        "Partitions without a leader; at the active controller only",
        "scope",
    )


def _of_partitions() -> _Families:
    labels = ("topic", "partition")
    yield _gauge(
        "odradek_log_start_offset",
        _WORKER,
        "The first offset of a replica's log",
        *labels,
        bound=SeriesBound.OMITTED,
    )
    yield _gauge(
        "odradek_log_end_offset",
        _WORKER,
        "The offset that the next record of a replica's log gets",
        *labels,
        bound=SeriesBound.OMITTED,
    )
    yield _gauge(
        "odradek_log_size_bytes",
        _WORKER,
        "Bytes of batches of a replica, deleted ones included until their segment is dropped",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _gauge(
        "odradek_archive_held_bytes",
        _WORKER,
        "Bytes of a leader's log that retention would have deleted at its last check, and that wait"
        " for the group of odradek.archive.group",
        *labels,
        bound=SeriesBound.SUM,
    )
    for name, process, text in (
        (
            "odradek_archive_lost_bytes_total",
            _WORKER,
            "Bytes that retention deleted although the group of odradek.archive.group had not"
            " committed them: the partition was above odradek.archive.max.bytes or .max.ms",
        ),
        (
            "odradek_topic_received_bytes_total",
            _WORKER,
            "Bytes of batches that producers have written",
        ),
        ("odradek_topic_received_records_total", _WORKER, "Records that producers have written"),
        (
            "odradek_topic_sent_bytes_total",
            _ROUTER,
            "Bytes of batches in the responses to Fetch",
        ),
        (
            "odradek_topic_sent_records_total",
            _ROUTER,
            "Records in the responses to Fetch, by their offsets",
        ),
    ):
        yield _counter(name, process, text, "topic", bound=SeriesBound.SUM)


def _of_storage() -> _Families:
    yield _counter("odradek_appends_total", _WORKER, "Appends committed")
    yield _histogram(
        "odradek_worker_turn_duration_seconds",
        _WORKER,
        "A turn: all requests that have arrived are carried out and committed",
    )
    yield _counter(
        "odradek_worker_spin_seconds_total",
        _WORKER,
        "CPU time in which the worker waited for the next request of a single client",
    )
    yield _counter("odradek_appended_bytes_total", _WORKER, "Bytes of record batches committed")
    yield _counter(
        "odradek_storage_errors_total",
        _WORKER,
        "Appends and deletions of records that failed with a storage error",
    )
    yield _gauge(
        "odradek_batches_in_preparation",
        _WORKER,
        "Produced batches whose records are checked beside the turns",
    )
    yield _gauge("odradek_partitions", _WORKER, "Partition replicas of the worker")
    yield _gauge(
        "odradek_store_size_bytes", _WORKER, "Disk space that the files of a store take", "store"
    )
    yield _gauge("odradek_store_segments", _WORKER, "Segments of a store", "store")
    yield _counter(
        "odradek_segment_rewrites_total",
        _WORKER,
        "Segments written by compaction, merging or reclaiming of space",
        "store",
    )
    yield _gauge(
        "odradek_disk_size_bytes", _WORKER, "Size of the disk with a log directory", "directory"
    )
    yield _gauge(
        "odradek_disk_free_bytes",
        _WORKER,
        "Free space on the disk with a log directory",
        "directory",
    )
    yield _gauge(
        "odradek_replica_moves",
        _WORKER,
        "Replicas that are being moved to another log directory",
    )
    yield _counter(
        "odradek_replica_moved_bytes_total",
        _WORKER,
        "Bytes of batches copied to other log directories",
    )


def _of_replication() -> _Families:
    yield _counter(
        "odradek_replication_sent_bytes_total", _WORKER, "Bytes of batches sent to followers"
    )
    yield _counter(
        "odradek_replication_fetched_bytes_total",
        _WORKER,
        "Bytes of batches fetched from leaders",
    )
    yield _histogram(
        "odradek_replication_wait_duration_seconds",
        _WORKER,
        "How long committed appends of acks=all wait for the in-sync replicas",
    )
    yield _gauge(
        "odradek_replication_lag_records",
        _WORKER,
        "Records by which the followers of the worker lag behind their leaders",
    )
    yield _gauge(
        "odradek_under_replicated_partitions",
        _WORKER,
        "Partitions led by the worker that have fewer in-sync replicas than replicas",
    )
    yield _gauge(
        "odradek_under_min_isr_partitions",
        _WORKER,
        "Partitions led by the worker that have fewer in-sync replicas than min.insync.replicas",
    )
    yield _counter(
        "odradek_isr_changes_total",
        _WORKER,
        "Changes of the ISRs of partitions led by the worker: shrunk or expanded",
        "change",
    )
    yield _counter(
        "odradek_worker_connections_refused_total",
        _WORKER,
        "Connections to the workers' ports without the cluster's secret",
    )


def _of_connections() -> _Families:
    yield _gauge("odradek_connections", _ROUTER, "Client connections")
    yield _gauge("odradek_connections_handed_over", _ROUTER, "Connections served by workers")
    yield _counter("odradek_connection_handovers_total", _ROUTER, "Handed over to workers")
    yield _counter(
        "odradek_connection_events_total",
        _ROUTER,
        "Connections accepted, refused, delayed by a limit, and closed because the client was"
        " idle, half-open or stalled",
        "event",
    )
    yield _counter(
        "odradek_connections_throttled_total",
        _ROUTER,
        "Connections that were closed because their address connects too often",
    )
    yield _counter(
        "odradek_protocol_errors_total", _ROUTER, "Connections closed because of malformed bytes"
    )
    yield _counter("odradek_received_bytes_total", _ROUTER, "Bytes received from clients")
    yield _counter("odradek_sent_bytes_total", _ROUTER, "Bytes sent to clients")
    yield _counter(
        "odradek_arena_waits_total",
        _ROUTER,
        "How often a connection waited for room for its requests (arena.bytes)",
    )
    yield _gauge("odradek_arena_used_bytes", _ROUTER, "Bytes of clients' requests in memory")
    yield _counter("odradek_tls_handshakes_total", _ROUTER, "TLS handshakes, by outcome", "outcome")
    yield _counter(
        "odradek_tls_reloads_total",
        _ROUTER,
        "New key stores, trust stores and TLS settings of a listener, by outcome",
        "listener",
        "outcome",
    )
    yield _gauge(
        "odradek_tls_certificate_remaining_seconds",
        _ROUTER,
        "Until the certificate of a listener expires",
        "listener",
    )
    yield _gauge(
        "odradek_tls_reload_problem",
        _ROUTER,
        "1 if the newest key or trust store of a listener cannot be used: the last one is",
        "listener",
    )
    yield _gauge(
        "odradek_listeners_closed",
        _ROUTER,
        "Listeners of the configuration that cannot be opened: see the log",
    )
    yield _gauge(
        "odradek_listener_problems",
        _ROUTER,
        "Problems that keep clients from a listener, or soon will; the log has their texts",
        "listener",
    )


def _of_requests() -> _Families:
    yield _counter("odradek_requests_total", _ROUTER, "Requests of clients", "api", "version")
    yield _counter(
        "odradek_request_errors_total",
        _ROUTER,
        "Error codes in responses, of whole requests and of their parts",
        "api",
        "error",
    )
    yield _histogram(
        "odradek_request_duration_seconds",
        _ROUTER,
        "From the read of a request to the write of its response, with the wait of a fetch for"
        " records; one in 16 of produce, fetch, group and share requests, all others",
        "api",
    )
    yield _histogram(
        "odradek_request_stage_duration_seconds",
        _ROUTER,
        "The stages of these requests: in the queue of the connection, in the handler with all it"
        " waits for, and until the response is written",
        "api",
        "stage",
    )
    yield _histogram(
        "odradek_worker_request_duration_seconds",
        _ROUTER,
        "Every sixteenth request to a worker: the bus, turns and the wait for followers",
    )
    yield _histogram(
        "odradek_bus_duration_seconds",
        _ROUTER,
        "One in 256 requests to workers: until the worker has read it, and until the reply is read",
        "direction",
    )
    yield _histogram(
        "odradek_event_loop_delay_seconds",
        _ROUTER,
        "How late the loop's timers fire, measured four times a second",
    )
    yield _gauge("odradek_delayed_fetches", _ROUTER, "Fetch requests that wait for records")
    yield _gauge("odradek_fetch_sessions", _ROUTER, "Fetch sessions")
    yield _gauge(
        "odradek_worker_requests_pending", _ROUTER, "Requests that workers have not answered"
    )
    yield _gauge("odradek_acls", _ROUTER, "Access control entries")
    yield _counter(
        "odradek_authorizations_denied_total",
        _ROUTER,
        "Operations on resources that the authorizer has denied",
    )
    yield _counter(
        "odradek_authentications_total",
        _ROUTER,
        "Ends of SASL authentications, and sessions that expired without a new one",
        "listener",
        "mechanism",
        "outcome",
    )
    yield _counter(
        "odradek_audit_log_lost_total",
        _ROUTER,
        "Lines of the audit log that could not be written",
    )


def _of_quotas() -> _Families:
    labels = ("quota", "user", "client_id")
    omitted = SeriesBound.OMITTED
    yield _gauge(
        "odradek_quota_use",
        _ROUTER,
        "Use of a client quota: bytes per second, or percent of a thread's time",
        *labels,
        bound=omitted,
    )
    yield _gauge(
        "odradek_quota_limit",
        _ROUTER,
        "The limit of a client quota, in the unit of its use",
        *labels,
        bound=omitted,
    )
    yield _counter(
        "odradek_quota_throttles_total",
        _ROUTER,
        "Requests above a client quota",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _counter(
        "odradek_quota_throttled_seconds_total",
        _ROUTER,
        "Time for which clients had to wait because of a client quota",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _gauge(
        "odradek_quotas_omitted",
        _ROUTER,
        "Client quotas in use over the limit of those that have metrics",
    )


def _of_coordinators() -> _Families:
    labels = ("group", "topic", "partition")
    yield _gauge(
        "odradek_group_lag_records",
        _ROUTER,
        "Records up to the high watermark that a group coordinated here has not read",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _gauge(
        "odradek_group_lag_bytes",
        _ROUTER,
        "Bytes of the records that a group coordinated here has not read",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _gauge(
        "odradek_group_lag_seconds",
        _ROUTER,
        "Age of the oldest record that a group coordinated here has not read",
        *labels,
        bound=SeriesBound.MAX,
    )
    yield _gauge(
        "odradek_group_lag_uncommitted_partitions",
        _ROUTER,
        "Partitions whose lag is counted from the log start, as nothing is committed",
        *labels,
        bound=SeriesBound.SUM,
    )
    yield _gauge(
        "odradek_group_lag_series_omitted",
        _ROUTER,
        "Series of group lag whose group ids are too long for a label",
    )
    yield _counter(
        "odradek_ephemeral_groups_deleted_total",
        _ROUTER,
        "Ephemeral groups that were deleted after their last member had left",
    )
    yield _gauge("odradek_groups", _ROUTER, "Groups coordinated here, with and without members")
    yield _gauge(
        "odradek_transactions",
        _ROUTER,
        "Transactions coordinated here that are ongoing, or prepared: their markers are written",
        "state",
    )
    yield _gauge(
        "odradek_oldest_transaction_seconds",
        _ROUTER,
        "Age of the oldest transaction coordinated here that is not complete; 0 without one",
    )
    yield _gauge(
        "odradek_hanging_transactions",
        _ROUTER,
        "Transactions open in partitions led here that no coordinator knows",
    )
    yield _counter(
        "odradek_hanging_transactions_aborted_total",
        _ROUTER,
        "Hanging transactions that were aborted",
    )
    yield _gauge("odradek_share_sessions", _ROUTER, "Share sessions")
    yield _gauge("odradek_share_partitions", _ROUTER, "Partitions of share groups led here")
    yield _counter(
        "odradek_dead_letters_total",
        _ROUTER,
        "Records that share groups gave up: written to a dead-letter topic, or dropped",
        "result",
    )


def _of_telemetry() -> _Families:
    yield _counter(
        "odradek_telemetry_pushes_total",
        _ROUTER,
        "Pushes of client metrics (KIP-714), by the error code of the answer",
        "error",
    )
    yield _counter(
        "odradek_telemetry_points_omitted_total",
        _ROUTER,
        "Data points of client metrics over the limits",
    )
    yield _gauge(
        "odradek_telemetry_instances",
        _ROUTER,
        "Client instances that ask what metrics to push (KIP-714)",
    )
    yield _gauge("odradek_telemetry_series", _ROUTER, "Series of client metrics")
    yield MetricFamily(
        name="odradek_telemetry_client_info",
        kind=MetricKind.INFO,
        process=_ROUTER,
        help="Clients that push metrics, with what else they tell of themselves; the value is 1",
        labels=("client_id", "client_instance_id", "software_name", "software_version", "host"),
        bound=SeriesBound.OMITTED,
    )


SECTIONS: Final[Mapping[str, tuple[MetricFamily, ...]]] = {
    "Processes": tuple(_of_processes()),
    "The node": tuple(_of_the_supervisor()),
    "Metadata and the quorum": tuple(_of_the_controller()),
    "The cluster": tuple(_of_the_cluster()),
    "Topics and partitions": tuple(_of_partitions()),
    "Storage": tuple(_of_storage()),
    "Replication": tuple(_of_replication()),
    "Connections": tuple(_of_connections()),
    "Requests": tuple(_of_requests()),
    "Client quotas": tuple(_of_quotas()),
    "Groups and transactions": tuple(_of_coordinators()),
    "Metrics of clients": tuple(_of_telemetry()),
}
"""By the heading in docs/metrics.md."""

FAMILIES: Final[Mapping[str, MetricFamily]] = {
    family.name: family for families in SECTIONS.values() for family in families
}
