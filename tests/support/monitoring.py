"""Writes the alert rules: `python -m tests.support.monitoring helm/odradek/files/alert-rules.yaml`.

A rule, or a panel of the dashboard (dashboard.py), is an expression in which `{name}` stands for
the metric odradek_<name> of node/metrics/families.py. A metric that is renamed there is an error
here.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from odradek.node.metrics.families import FAMILIES

METRICS: Final[Mapping[str, str]] = {name.removeprefix("odradek_"): name for name in FAMILIES}
CLUSTER: Final = "namespace, job"
"""The labels that tell one cluster from another."""
NODE: Final = "namespace, job, instance"
GUIDE: Final = "docs/operations.md"
"""It has a chapter for each alert."""
CRITICAL, WARNING, INFO = "critical", "warning", "info"
DAY_S: Final = 86_400


class Alert(NamedTuple):
    """An alert: when it fires, after which time, and what to do."""

    name: str
    severity: str
    expression: str
    wait: str
    summary: str
    description: str

    @property
    def runbook_url(self) -> str:
        """Its chapter, in the repository."""
        return f"{GUIDE}#{self.name.lower()}"


NODE_DOWN: Final = (
    "up == 0 and on (namespace, job, instance) last_over_time({uptime_seconds}[1d]) > 0"
)
ALERTS: Final = (
    Alert(
        *("OdradekNodeDown", CRITICAL, NODE_DOWN, "1m"),
        "{{ $labels.instance }} does not answer",
        "The node has not answered Prometheus for a minute. Its partitions have other leaders"
        " if they have replicas in"
        " sync. Look at the pod or service, and at the end of its log.",
    ),
    Alert(
        "OdradekNoController",
        CRITICAL,
        f"sum by ({CLUSTER}) ({{raft_is_leader}}) == 0",
        "1m",
        "The cluster of {{ $labels.job }} has no active controller",
        "Nothing can be created or changed, and no new leader elected. Start a majority of the"
        " voters; `odradek cluster"
        " status` names the nodes that do not answer.",
    ),
    Alert(
        "OdradekUnderReplicatedPartitions",
        WARNING,
        f"sum by ({NODE}) ({{under_replicated_partitions}}) > 0",
        "5m",
        "{{ $value }} partitions led by {{ $labels.instance }} lack replicas in sync",
        "A node is down, or slower than its leaders. `odradek cluster status` lists partitions"
        " and nodes. Another failure"
        " may make them unavailable.",
    ),
    Alert(
        "OdradekOfflinePartitions",
        CRITICAL,
        f"sum by ({CLUSTER}) ({{offline_partitions}}) > 0",
        "1m",
        "{{ $value }} partitions of {{ $labels.job }} have no leader",
        "Nobody can write or read them. `odradek cluster status` lists them, and the nodes that"
        " have their replicas: start one that was in sync.",
    ),
    Alert(
        "OdradekUnderMinIsrPartitions",
        CRITICAL,
        f"sum by ({NODE}) ({{under_min_isr_partitions}}) > 0",
        "2m",
        "{{ $value }} partitions led by {{ $labels.instance }} refuse writes with acks=all",
        "They have fewer replicas in sync than min.insync.replicas. Start the nodes that are down,"
        " or wait until they have caught up.",
    ),
    Alert(
        "OdradekNodeFenced",
        WARNING,
        f'sum by ({CLUSTER}) ({{brokers}}{{{{state="fenced"}}}}) > 0',
        "10m",
        "{{ $value }} nodes of {{ $labels.job }} are registered and do not take part",
        "They are down, or cannot reach the active controller. A node that is gone for good has to"
        " be removed from the cluster: `odradek node remove`.",
    ),
    Alert(
        "OdradekDiskFillsUp",
        WARNING,
        f"min by ({NODE}, directory) ({{disk_free_bytes}} / {{disk_size_bytes}}) < 0.1",
        "10m",
        "{{ $value | humanizePercentage }} of the disk with {{ $labels.directory }} of"
        " {{ $labels.instance }} are free",
        "Appends wait when the disk is full. Give topics a shorter retention, move replicas to"
        " other nodes or disks, or make the disk larger.",
    ),
    Alert(
        "OdradekLogDirectoryOffline",
        CRITICAL,
        "{offline_log_directories} > 0",
        "1m",
        "{{ $labels.instance }} cannot use a log directory",
        "Its disk is full or has failed. `odradek logdir list` and the log of the node say"
        " which, and why.",
    ),
    Alert(
        "OdradekStorageErrors",
        CRITICAL,
        f"sum by ({NODE}) (increase({{storage_errors_total}}[5m])) > 0",
        "0m",
        "{{ $labels.instance }} fails to write records",
        "Producers get KAFKA_STORAGE_ERROR. Free space, or repair the disk; the log of the node"
        " has the error.",
    ),
    Alert(
        "OdradekProcessRestarts",
        WARNING,
        "increase({process_restarts_total}[15m]) > 2",
        "0m",
        "{{ $labels.process }} of {{ $labels.instance }} was restarted"
        ' {{ printf "%.0f" $value }} times',
        "A process of the node keeps dying: out of memory (raise the limit), or a defect (the"
        " log has the stack).",
    ),
    Alert(
        "OdradekProcessNotReady",
        WARNING,
        "{process_ready} == 0",
        "5m",
        "{{ $labels.process }} of {{ $labels.instance }} is not ready",
        "After a power loss a worker checks its logs, which may take minutes. Otherwise see the"
        " log of the node.",
    ),
    Alert(
        "OdradekNodeOverloaded",
        WARNING,
        f"histogram_quantile(0.99, sum by ({NODE}, le)"
        " (rate({event_loop_delay_seconds}_bucket[5m]))) > 0.5",
        "10m",
        "Requests at {{ $labels.instance }} wait {{ $value | humanizeDuration }} for the router",
        "Its processor is not enough, or is taken by others: look at the CPU of its processes and"
        " at the limits of its container. Move leaders to other nodes.",
    ),
    Alert(
        "OdradekListenerProblem",
        CRITICAL,
        "{listener_problems} > 0 or {listeners_closed} > 0 or {tls_reload_problem} > 0",
        "1m",
        "{{ $labels.instance }} turns clients away, or soon will",
        "A certificate, a key store, or the keys of access tokens cannot be used, or a listener"
        " cannot be opened."
        " /readyz, `odradek doctor` and the log name it.",
    ),
    Alert(
        "OdradekCertificateExpires",
        WARNING,
        f"min by ({NODE}, listener) ({{tls_certificate_remaining_seconds}}) < {14 * DAY_S}",
        "1h",
        "The certificate of {{ $labels.listener }} at {{ $labels.instance }} expires in"
        " {{ $value | humanizeDuration }}",
        "Replace the files of ssl.keystore.location; the node follows within seconds.",
    ),
    Alert(
        "OdradekConfigFileRefused",
        WARNING,
        "{config_file_refused} == 1",
        "1m",
        "{{ $labels.instance }} refuses its configuration file",
        "The node works with the last valid configuration and would not start with this one."
        " /readyz says what is wrong.",
    ),
    Alert(
        "OdradekSettingsRefused",
        WARNING,
        "{config_settings_refused} == 1",
        "1m",
        "{{ $labels.instance }} refuses its settings of the cluster",
        "The node works with its former settings, as it would not start with these. /readyz and"
        " `odradek config why` say what is wrong.",
    ),
    Alert(
        "OdradekRestartPending",
        INFO,
        "{config_restart_pending} > 0",
        "1h",
        "{{ $value }} settings of {{ $labels.instance }} wait for a restart",
        "The log names the settings. Restart the nodes one by one.",
    ),
    Alert(
        "OdradekClusterSecretsDiffer",
        WARNING,
        "{peers_with_other_secrets} > 0",
        "1h",
        "{{ $labels.instance }} has other cluster secrets than {{ $value }} nodes",
        "The secret is being replaced, and not all nodes have the same step behind them.",
    ),
    Alert(
        "OdradekPeersRefused",
        WARNING,
        'increase({peer_messages_lost_total}{{reason="refused"}}[10m]) > 0',
        "10m",
        "{{ $labels.instance }} refuses nodes without the cluster's secret",
        "A node has an old secret, or somebody tries to be a node.",
    ),
    Alert(
        "OdradekAuditLogLost",
        CRITICAL,
        "increase({audit_log_lost_total}[5m]) > 0",
        "0m",
        "{{ $labels.instance }} could not write lines of the audit log",
        "Its disk is full, or audit.log.path cannot be written.",
    ),
    Alert(
        "OdradekAuthenticationsFail",
        WARNING,
        f"sum by ({NODE}, listener, mechanism)"
        ' (rate({authentications_total}{{outcome=~".*failure"}}[5m])) > 1',
        "5m",
        "More than one login a second fails at {{ $labels.listener }} of {{ $labels.instance }}",
        "A client has a wrong or old credential, or somebody guesses. The log has address and"
        " reason, once a minute.",
    ),
    Alert(
        "OdradekGroupLag",
        WARNING,
        f"max by ({CLUSTER}, group, topic) ({{group_lag_seconds}}) > 900",
        "15m",
        "{{ $labels.group }} is {{ $value | humanizeDuration }} behind on {{ $labels.topic }}",
        "`odradek group explain` says why a group does not progress.",
    ),
    Alert(
        "OdradekArchiveWaits",
        WARNING,
        f"sum by ({CLUSTER}, topic) ({{archive_held_bytes}}) > 0",
        "30m",
        "{{ $value | humanize1024 }}B of {{ $labels.topic }} are kept for its archive",
        "Retention would have deleted them, and the group of odradek.archive.group has not"
        " committed them: its job stands still or is too slow. `odradek topic explain` names group"
        " and offset. Above odradek.archive.max.ms or odradek.archive.max.bytes they are deleted.",
    ),
    Alert(
        "OdradekArchiveLost",
        CRITICAL,
        f"sum by ({CLUSTER}, topic) (increase({{archive_lost_bytes_total}}[10m])) > 0",
        "0m",
        "Records of {{ $labels.topic }} were deleted that its archive does not have",
        "A partition is above odradek.archive.max.bytes or odradek.archive.max.ms, and the group of"
        " odradek.archive.group has not committed its oldest records. Raise the limit first, then"
        " start the job.",
    ),
    Alert(
        "OdradekTransactionOpen",
        WARNING,
        f"max by ({NODE}) ({{oldest_transaction_seconds}}) > 1200",
        "5m",
        "A transaction of {{ $labels.instance }} is open for {{ $value | humanizeDuration }}",
        "Readers of committed records wait for it, and it is older than a producer may ask for"
        " (transaction.max.timeout.ms: 15 minutes, unless changed). `odradek txn list` and `odradek"
        " txn describe` show its state and partitions. One that is prepared waits for a partition"
        " without a leader.",
    ),
    Alert(
        "OdradekHangingTransactions",
        WARNING,
        f"sum by ({CLUSTER}) ({{hanging_transactions}}) > 0",
        "15m",
        "{{ $value }} transactions are open that no coordinator knows",
        "Readers of committed records wait for them. `odradek txn hanging` finds them, `odradek"
        " txn abort` ends them.",
    ),
    Alert(
        "OdradekDeadLettersLost",
        CRITICAL,
        'increase({dead_letters_total}{{result="dropped"}}[10m]) > 0',
        "0m",
        "{{ $labels.instance }} could not write records to a dead-letter topic",
        "Share groups gave up records. The log names groups and reasons.",
    ),
)


def expression(text: str) -> str:
    """An expression with the names of the metrics."""
    return text.format_map(METRICS)


def alert_rules() -> str:
    """The rules as Prometheus reads them."""
    rules = [
        {
            "alert": alert.name,
            "expr": expression(alert.expression),
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.description,
                "runbook_url": alert.runbook_url,
            },
        }
        for alert in ALERTS
    ]
    head = "# Generated by tests/support/monitoring.py (make docs).\n"
    document = {"groups": [{"name": "odradek", "rules": rules}]}
    return head + str(yaml.safe_dump(document, sort_keys=False, width=110))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(alert_rules())
