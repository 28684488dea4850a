"""For each alert of monitoring.py: series of a cluster in which it fires, as `promtool test rules`
takes them, and what the alert then says.

A cluster of three nodes is well for ten minutes (HEALTHY), then something is wrong at the first of
them, and after a time it is well again. The names and labels are those of node/metrics/families.py.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from odradek.node.metrics.families import FAMILIES
from tests.support.monitoring import ALERTS, METRICS

PREFIX: Final = "odradek_"
CLUSTER: Final = {"namespace": "events", "job": "kafka"}
NODES: Final = tuple({**CLUSTER, "instance": f"kafka-{index}:9090"} for index in range(3))
NODE: Final = NODES[0]
WELL_MINUTES: Final = 10
MORE_MINUTES: Final = 10
"""How long an alert fires at least."""
CALM_MINUTES: Final = 30
"""After this time of health nothing fires: more than the longest range of an expression."""


class Rises(NamedTuple):
    """A counter that rises by so much a minute."""

    by: float


Value = float | Rises | None
"""Of a series: constant, rising, or None for no series."""
DAY_S: Final = 86_400.0


class AlertCase(NamedTuple):
    """`broken` has the values that make the alert true, of series of the first node (of that with
    an index, if there is one before the name). It fires `minutes` after the first of these values,
    with `labels` and `summary`, and no other alert does."""

    broken: Mapping[str, Value]
    minutes: int
    labels: Mapping[str, str]
    summary: str


HEALTHY: Final[Mapping[str, Value]] = {
    "up": 1,
    "uptime_seconds": Rises(60),
    "process_ready{process=worker-0}": 1,
    "process_restarts_total{process=worker-0}": 1,
    "raft_is_leader": 0,
    "under_replicated_partitions": 0,
    "under_min_isr_partitions": 0,
    "disk_free_bytes{directory=/data}": 60e9,
    "disk_size_bytes{directory=/data}": 100e9,
    "offline_log_directories": 0,
    "storage_errors_total": 2,
    "event_loop_delay_seconds_bucket{le=0.002097152}": Rises(239),
    "event_loop_delay_seconds_bucket{le=1.073741824}": Rises(240),
    "event_loop_delay_seconds_bucket{le=+Inf}": Rises(240),
    "listener_problems{listener=EXTERNAL}": 0,
    "listeners_closed": 0,
    "tls_reload_problem{listener=EXTERNAL}": 0,
    "tls_certificate_remaining_seconds{listener=EXTERNAL}": 60 * DAY_S,
    "config_file_refused": 0,
    "config_settings_refused": 0,
    "config_restart_pending": 0,
    "peers_with_other_secrets": 0,
    "peer_messages_lost_total{reason=dropped}": Rises(1),
    "peer_messages_lost_total{reason=refused}": 7,
    "audit_log_lost_total": 0,
    "authentications_total{listener=EXTERNAL,mechanism=PLAIN,outcome=success}": Rises(600),
    "authentications_total{listener=EXTERNAL,mechanism=PLAIN,outcome=failure}": Rises(6),
    "group_lag_seconds{group=billing,topic=orders}": 2,
    "archive_held_bytes{topic=orders,partition=0}": 0,
    "archive_held_bytes{topic=orders,partition=1}": 0,
    "archive_lost_bytes_total{topic=orders}": 7e6,
    "oldest_transaction_seconds": 3,
    "hanging_transactions": 0,
    "dead_letters_total{result=written}": Rises(5),
    "dead_letters_total{result=dropped}": 0,
}
"""The series of each node."""
ACTIVE_CONTROLLER: Final[Mapping[str, Value]] = {
    "raft_is_leader": 1,
    "brokers{state=active}": 3,
    "brokers{state=fenced}": 0,
    "offline_partitions{scope=user}": 0,
    "offline_partitions{scope=internal}": 0,
}
"""Those of the last node, which is the active controller."""

_LISTENER: Final = {**NODE, "listener": "EXTERNAL"}
_GONE: Final[Mapping[str, Value]] = {**dict.fromkeys(HEALTHY), "up": 0}
_ROUTER: Final = {**NODE, "process": "router-0"}
_CONTROLLER: Final = {**NODE, "process": "controller"}
_SUPERVISOR: Final = {**NODE, "process": "supervisor"}
CASES: Final[Mapping[str, AlertCase]] = {
    "OdradekNodeDown": AlertCase(_GONE, 1, NODE, "kafka-0:9090 does not answer"),
    "OdradekNoController": AlertCase(
        {"2/raft_is_leader": 0, **{f"2/{name}": None for name in list(ACTIVE_CONTROLLER)[1:]}},
        *(1, CLUSTER, "The cluster of kafka has no active controller"),
    ),
    "OdradekUnderReplicatedPartitions": AlertCase(
        {"under_replicated_partitions": 4},
        *(5, NODE, "4 partitions led by kafka-0:9090 lack replicas in sync"),
    ),
    "OdradekOfflinePartitions": AlertCase(
        {"2/offline_partitions{scope=user}": 2, "2/offline_partitions{scope=internal}": 1},
        *(1, CLUSTER, "3 partitions of kafka have no leader"),
    ),
    "OdradekUnderMinIsrPartitions": AlertCase(
        {"under_min_isr_partitions": 2},
        *(2, NODE, "2 partitions led by kafka-0:9090 refuse writes with acks=all"),
    ),
    "OdradekNodeFenced": AlertCase(
        {"2/brokers{state=active}": 2, "2/brokers{state=fenced}": 1},
        *(10, CLUSTER, "1 nodes of kafka are registered and do not take part"),
    ),
    "OdradekDiskFillsUp": AlertCase(
        {"disk_free_bytes{directory=/data}": 9.5e9},
        *(10, {**NODE, "directory": "/data"}),
        "9.5% of the disk with /data of kafka-0:9090 are free",
    ),
    "OdradekLogDirectoryOffline": AlertCase(
        {"offline_log_directories": 1},
        *(1, _SUPERVISOR, "kafka-0:9090 cannot use a log directory"),
    ),
    "OdradekStorageErrors": AlertCase(
        {"storage_errors_total": Rises(1)}, 0, NODE, "kafka-0:9090 fails to write records"
    ),
    "OdradekProcessRestarts": AlertCase(
        {"process_restarts_total{process=worker-0}": 4},
        *(0, {**NODE, "process": "worker-0"}),
        "worker-0 of kafka-0:9090 was restarted 3 times",
    ),
    "OdradekProcessNotReady": AlertCase(
        {"process_ready{process=worker-0}": 0},
        *(5, {**NODE, "process": "worker-0"}, "worker-0 of kafka-0:9090 is not ready"),
    ),
    "OdradekNodeOverloaded": AlertCase(
        {
            "event_loop_delay_seconds_bucket{le=0.002097152}": Rises(100),
            "event_loop_delay_seconds_bucket{le=1.073741824}": Rises(240),
        },
        *(10, NODE, "Requests at kafka-0:9090 wait 1.055s for the router"),
    ),
    "OdradekListenerProblem": AlertCase(
        {"listener_problems{listener=EXTERNAL}": 1},
        *(1, {**_LISTENER, "process": "router-0"}),
        "kafka-0:9090 turns clients away, or soon will",
    ),
    "OdradekCertificateExpires": AlertCase(
        {"tls_certificate_remaining_seconds{listener=EXTERNAL}": 13.5 * DAY_S},
        *(60, _LISTENER),
        "The certificate of EXTERNAL at kafka-0:9090 expires in 13d 12h 0m 0s",
    ),
    "OdradekConfigFileRefused": AlertCase(
        {"config_file_refused": 1},
        *(1, _SUPERVISOR, "kafka-0:9090 refuses its configuration file"),
    ),
    "OdradekSettingsRefused": AlertCase(
        {"config_settings_refused": 1},
        *(1, _SUPERVISOR, "kafka-0:9090 refuses its settings of the cluster"),
    ),
    "OdradekRestartPending": AlertCase(
        {"config_restart_pending": 2},
        *(60, _SUPERVISOR, "2 settings of kafka-0:9090 wait for a restart"),
    ),
    "OdradekClusterSecretsDiffer": AlertCase(
        {"peers_with_other_secrets": 1},
        *(60, _CONTROLLER, "kafka-0:9090 has other cluster secrets than 1 nodes"),
    ),
    "OdradekPeersRefused": AlertCase(
        {"peer_messages_lost_total{reason=refused}": Rises(3)},
        *(10, {**_CONTROLLER, "reason": "refused"}),
        "kafka-0:9090 refuses nodes without the cluster's secret",
    ),
    "OdradekAuditLogLost": AlertCase(
        {"audit_log_lost_total": Rises(1)},
        *(0, _ROUTER, "kafka-0:9090 could not write lines of the audit log"),
    ),
    "OdradekAuthenticationsFail": AlertCase(
        {"authentications_total{listener=EXTERNAL,mechanism=PLAIN,outcome=failure}": Rises(120)},
        *(7, {**_LISTENER, "mechanism": "PLAIN"}),
        "More than one login a second fails at EXTERNAL of kafka-0:9090",
    ),
    "OdradekGroupLag": AlertCase(
        {"group_lag_seconds{group=billing,topic=orders}": 1_000},
        *(15, {**CLUSTER, "group": "billing", "topic": "orders"}),
        "billing is 16m 40s behind on orders",
    ),
    "OdradekArchiveWaits": AlertCase(
        {
            "archive_held_bytes{topic=orders,partition=0}": 3 << 30,
            "1/archive_held_bytes{topic=orders,partition=1}": 1 << 30,
        },
        *(30, {**CLUSTER, "topic": "orders"}),
        "4GiB of orders are kept for its archive",
    ),
    "OdradekArchiveLost": AlertCase(
        {"archive_lost_bytes_total{topic=orders}": Rises(1e6)},
        *(0, {**CLUSTER, "topic": "orders"}),
        "Records of orders were deleted that its archive does not have",
    ),
    "OdradekTransactionOpen": AlertCase(
        {"oldest_transaction_seconds": 1_260},
        *(5, NODE, "A transaction of kafka-0:9090 is open for 21m 0s"),
    ),
    "OdradekHangingTransactions": AlertCase(
        {"hanging_transactions": 2},
        *(15, CLUSTER, "2 transactions are open that no coordinator knows"),
    ),
    "OdradekDeadLettersLost": AlertCase(
        {"dead_letters_total{result=dropped}": Rises(1)},
        *(0, {**_ROUTER, "result": "dropped"}),
        "kafka-0:9090 could not write records to a dead-letter topic",
    ),
}


def rule_test(name: str) -> Mapping[str, object]:
    """The test of one alert: silent before its time, then firing as the case says, alone, and
    silent again afterwards."""
    case = CASES[name]
    [alert] = (alert for alert in ALERTS if alert.name == name)
    fires_at = WELL_MINUTES + case.minutes
    ends_at = fires_at + MORE_MINUTES
    expected = {
        "exp_labels": {**case.labels, "severity": alert.severity},
        "exp_annotations": {
            "summary": case.summary,
            "description": alert.description,
            "runbook_url": alert.runbook_url,
        },
    }
    silent = ((WELL_MINUTES - 1, ""), (fires_at - 1, ""), (ends_at + CALM_MINUTES, ""))
    alone = (fires_at + MORE_MINUTES - 1, f',alertname!="{name}"')
    return {
        "interval": "1m",
        "input_series": [
            {"series": series, "values": " ".join(values)}
            for series, values in _input(case, WELL_MINUTES, ends_at, ends_at + CALM_MINUTES)
        ],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected]}
            for minute in (fires_at, ends_at - 1)
        ],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertstate="firing"{others}}}',
                "eval_time": f"{minute}m",
                "exp_samples": [],
            }
            for minute, others in (*silent, alone)
        ],
    }


def _input(case: AlertCase, begins: int, ends: int, last: int) -> Iterator[tuple[str, list[str]]]:
    """Each series of the cluster, and its value in each minute. It is broken in [begins, ends)."""
    known = set()
    for index, node in enumerate(NODES):
        is_last = index == len(NODES) - 1
        healthy = {**HEALTHY, **ACTIVE_CONTROLLER} if is_last else HEALTHY
        for name, value in healthy.items():
            own = f"{index}/{name}" if index else name
            known.add(own)
            broken = case.broken.get(own, value)
            yield _series(name, node), list(_values(value, broken, begins, ends, last))
    assert known >= case.broken.keys(), "a value that is never broken"


def _values(good: Value, bad: Value, begins: int, ends: int, last: int) -> Iterator[str]:
    total = 0.0
    for minute in range(last + 1):
        value = bad if begins <= minute < ends else good
        if isinstance(value, Rises):
            total += value.by
            yield f"{total:g}" if value.by < 100 else f"{total:.0f}"
        elif value is None:
            yield "_"
        elif isinstance(bad, Rises):
            total = max(total, value)
            yield f"{total:.0f}"
        else:
            yield f"{value:.0f}"


def _series(short_name: str, node: Mapping[str, str]) -> str:
    name, _, labels = short_name.removesuffix("}").partition("{")
    pairs = dict(pair.split("=", 1) for pair in labels.split(",") if pair)
    if name == "up":
        return _series_text("up", node)
    base = name.removesuffix("_bucket")
    family = FAMILIES[METRICS[base]]
    wanted = {*family.labels} | ({"le"} if base != name else set())
    # A group's lag has a partition if so configured.
    assert wanted - {"partition"} <= pairs.keys() <= wanted, short_name
    if "process" not in family.labels:
        process = family.process
        pairs["process"] = f"{process}-0" if process in ("router", "worker") else process
    return _series_text(f"{PREFIX}{name}", {**node, **pairs})


def _series_text(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}"
