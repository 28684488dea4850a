"""Writes the dashboard: `python -m tests.support.dashboard helm/odradek/files/dashboard.json`.

Expressions are those of monitoring.py. Every panel has series in a cluster that works, unless its
text says when it is empty.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.monitoring import METRICS, expression


class Panel(NamedTuple):
    """A graph: its title, its unit in Grafana's words, and expressions with their legends. `about`
    says of a graph that may be empty when it is."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    about: str = ""


_SCOPE: Final = '{{namespace=~"$namespace", job=~"$job"}}'
_NODE_LEGEND: Final = "{{instance}}"
_PROCESS_LEGEND: Final = "{{instance}} {{process}}"
_TOPICS_SHOWN: Final = 20


def _total(metric: str, legend: str = _NODE_LEGEND, by: str = "instance") -> tuple[str, str]:
    return f"sum by ({by}) ({{{metric}}}{_SCOPE})", legend


def _rate(metric: str, legend: str = _NODE_LEGEND, by: str = "instance") -> tuple[str, str]:
    return f"sum by ({by}) (rate({{{metric}}}{_SCOPE}[$__rate_interval]))", legend


def _quantile(metric: str, legend: str = _NODE_LEGEND, by: str = "instance") -> tuple[str, str]:
    """Of a histogram: what 99 of 100 do not exceed."""
    rate = f"rate({{{metric}}}_bucket{_SCOPE}[$__rate_interval])"
    return f"histogram_quantile(0.99, sum by ({by}, le) ({rate}))", legend


def _largest(series: tuple[str, str]) -> tuple[tuple[str, str]]:
    text, legend = series
    return ((f"topk({_TOPICS_SHOWN}, {text})", legend),)


ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Cluster": (
        Panel("Nodes", "short", (_total("brokers", "{{state}}", "state"),)),
        Panel("Active controller", "short", (_total("raft_is_leader"),)),
        Panel(
            "Partitions without a leader",
            "short",
            (_total("offline_partitions", "{{scope}}", "scope"),),
        ),
        Panel(
            "Partitions with too few replicas in sync",
            "short",
            (
                _total("under_replicated_partitions", "{{instance}} under-replicated"),
                _total("under_min_isr_partitions", "{{instance}} under min.insync.replicas"),
            ),
        ),
        Panel(
            "Changes of replicas in sync",
            "ops",
            (_rate("isr_changes_total", "{{instance}} {{change}}", "instance, change"),),
        ),
        Panel("Replication lag in records", "short", (_total("replication_lag_records"),)),
    ),
    "Traffic": (
        Panel("Requests", "reqps", (_rate("requests_total", "{{api}}", "api"),)),
        Panel(
            "Errors in responses",
            "ops",
            (_rate("request_errors_total", "{{api}} {{error}}", "api, error"),),
            "Empty until a request has failed.",
        ),
        Panel(
            "Bytes of clients",
            "Bps",
            (
                _rate("received_bytes_total", "{{instance}} in"),
                _rate("sent_bytes_total", "{{instance}} out"),
            ),
        ),
        Panel("Bytes appended", "Bps", (_rate("appended_bytes_total"),)),
        Panel(
            "Bytes between nodes",
            "Bps",
            (
                _rate("replication_fetched_bytes_total", "{{instance}} in"),
                _rate("replication_sent_bytes_total", "{{instance}} out"),
            ),
        ),
        Panel("Connections", "short", (_total("connections"),)),
    ),
    "Latency (99 of 100 are faster)": (
        Panel(
            "Requests",
            "s",
            (_quantile("request_duration_seconds", "{{api}}", "api"),),
            "A fetch waits for records as long as its client wants (fetch.max.wait.ms).",
        ),
        Panel(
            "Stages of produce requests",
            "s",
            (
                (
                    "histogram_quantile(0.99, sum by (stage, le)"
                    " (rate({request_stage_duration_seconds}_bucket"
                    '{{namespace=~"$namespace", job=~"$job", api="PRODUCE"}}'
                    "[$__rate_interval])))",
                    "{{stage}}",
                ),
            ),
            "Empty until something is produced.",
        ),
        Panel("Waits for replicas in sync", "s", (_quantile("replication_wait_duration_seconds"),)),
        Panel(
            "Requests of a router to workers", "s", (_quantile("worker_request_duration_seconds"),)
        ),
        Panel("Turns of workers", "s", (_quantile("worker_turn_duration_seconds"),)),
        Panel("Delay of the routers' loops", "s", (_quantile("event_loop_delay_seconds"),)),
    ),
    f"Topics (the {_TOPICS_SHOWN} largest)": (
        Panel(
            "Bytes produced",
            "Bps",
            _largest(_rate("topic_received_bytes_total", "{{topic}}", "topic")),
        ),
        Panel(
            "Bytes consumed",
            "Bps",
            _largest(_rate("topic_sent_bytes_total", "{{topic}}", "topic")),
            "Empty until something is consumed.",
        ),
        Panel(
            "Size with all replicas",
            "bytes",
            _largest(_total("log_size_bytes", "{{topic}}", "topic")),
        ),
        Panel(
            "Records produced",
            "ops",
            _largest(_rate("topic_received_records_total", "{{topic}}", "topic")),
        ),
        Panel(
            "Records consumed",
            "ops",
            _largest(_rate("topic_sent_records_total", "{{topic}}", "topic")),
            "Empty until something is consumed.",
        ),
        Panel("Replicas", "short", (_total("partitions"),)),
    ),
    "Storage": (
        Panel(
            "Used part of the disks",
            "percentunit",
            (
                (
                    f"1 - min by (instance, directory) ({{disk_free_bytes}}{_SCOPE}"
                    f" / {{disk_size_bytes}}{_SCOPE})",
                    "{{instance}} {{directory}}",
                ),
            ),
        ),
        Panel("Size of the stores", "bytes", (_total("store_size_bytes"),)),
        Panel("Offline log directories", "short", (_total("offline_log_directories"),)),
        Panel("Appends", "ops", (_rate("appends_total"),)),
        Panel("Segments rewritten", "ops", (_rate("segment_rewrites_total"),)),
        Panel("Writes that failed", "ops", (_rate("storage_errors_total"),)),
    ),
    "Groups and transactions": (
        Panel(
            "Age of the oldest record not read",
            "s",
            ((f"max by (group, topic) ({{group_lag_seconds}}{_SCOPE})", "{{group}} {{topic}}"),),
            "Empty without groups that have something to read.",
        ),
        Panel(
            "Lag in records",
            "short",
            ((f"sum by (group, topic) ({{group_lag_records}}{_SCOPE})", "{{group}} {{topic}}"),),
            "Empty without groups.",
        ),
        Panel(
            "Lag in bytes",
            "bytes",
            ((f"sum by (group, topic) ({{group_lag_bytes}}{_SCOPE})", "{{group}} {{topic}}"),),
            "Empty without groups.",
        ),
        Panel("Transactions", "short", (_total("transactions", "{{state}}", "state"),)),
        Panel(
            "Oldest transaction",
            "s",
            ((f"max by (instance) ({{oldest_transaction_seconds}}{_SCOPE})", _NODE_LEGEND),),
        ),
        Panel("Hanging transactions", "short", (_total("hanging_transactions"),)),
        Panel("Groups", "short", (_total("groups"),)),
        Panel("Fetches that wait for records", "short", (_total("delayed_fetches"),)),
        Panel("Dead letters", "ops", (_rate("dead_letters_total", "{{result}}", "result"),)),
    ),
    "Security": (
        Panel(
            "Authentications",
            "ops",
            (_rate("authentications_total", "{{mechanism}} {{outcome}}", "mechanism, outcome"),),
            "Empty without a listener with SASL.",
        ),
        Panel("Operations denied", "ops", (_rate("authorizations_denied_total"),)),
        Panel(
            "Time throttled by quotas",
            "s",
            (_rate("quota_throttled_seconds_total", "{{user}} {{client_id}}", "user, client_id"),),
            "Empty without client quotas in use.",
        ),
        Panel(
            "Time until certificates expire",
            "s",
            (
                (
                    f"min by (instance, listener) ({{tls_certificate_remaining_seconds}}{_SCOPE})",
                    "{{instance}} {{listener}}",
                ),
            ),
            "Empty without a listener with TLS.",
        ),
    ),
    "Processes": (
        Panel(
            "CPU",
            "short",
            (_rate("process_cpu_seconds_total", _PROCESS_LEGEND, "instance, process"),),
        ),
        Panel(
            "Resident memory",
            "bytes",
            (_total("process_resident_memory_bytes", _PROCESS_LEGEND, "instance, process"),),
        ),
        Panel("Bytes of clients in memory", "bytes", (_total("arena_used_bytes"),)),
        Panel("Requests that wait for workers", "short", (_total("worker_requests_pending"),)),
        Panel(
            "Restarts",
            "short",
            (_total("process_restarts_total", "{{instance}} {{process}}", "instance, process"),),
        ),
        Panel("Metadata entries applied", "short", (_total("metadata_offset"),)),
    ),
}


def dashboard() -> str:
    """The dashboard as Grafana imports it."""
    document = {
        "uid": "odradek",
        "title": "Odradek",
        "tags": ["odradek", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1) + "\n"


def _variables() -> Iterator[Mapping[str, object]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    for name, scope in (("namespace", ""), ("job", '{namespace=~"$namespace"}')):
        query = f"label_values({METRICS['uptime_seconds']}{scope}, {name})"
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"selected": True, "text": "All", "value": "$__all"},
        }


def _panels() -> Iterator[Mapping[str, object]]:
    """Three in a line, below a head for each row."""
    width, height, y, panel_id = 8, 7, 0, 1
    for title, panels in ROWS.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        yield {"id": panel_id, "type": "row", "title": title, "gridPos": place, "collapsed": False}
        panel_id, y = panel_id + 1, y + 1
        for index, panel in enumerate(panels):
            place = {"x": width * (index % 3), "y": y, "w": width, "h": height}
            yield {
                "id": panel_id,
                "type": "timeseries",
                "title": panel.title,
                **({"description": panel.about} if panel.about else {}),
                "gridPos": place,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": [
                    {
                        "refId": chr(ord("A") + number),
                        "expr": expression(text),
                        "legendFormat": legend,
                    }
                    for number, (text, legend) in enumerate(panel.series)
                ],
            }
            panel_id += 1
            if index % 3 == 2 or index == len(panels) - 1:
                y += height


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(dashboard())
