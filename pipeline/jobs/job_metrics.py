"""Progress of a job for people and for Prometheus: lines, a file, an HTTP page.

Counters count since the process started, as Prometheus expects.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class TriggerProgress:
    """A plan that was committed."""

    job: str
    plan: int
    records: int
    """That were moved, the bad ones included."""
    bad: int
    bytes: int
    """Of the records, before they were compressed."""
    seconds: float
    committed_ms: int
    lags: Mapping[PartitionName, int]
    """Committed records that the cluster had when the plan was made, and the table has not."""

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(self.lags.values())

    def to_text(self) -> str:
        """One line."""
        rate = self.records / self.seconds if self.seconds else 0
        bad = f", {self.bad} bad" if self.bad else ""
        return (
            f"plan {self.plan}: {self.records} records{bad}, {_size(self.bytes)} in"
            f" {self.seconds:.1f} s ({rate:.0f}/s), lag {self.lag}"
        )

    def to_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "job": self.job,
                "plan": self.plan,
                "records": self.records,
                "bad": self.bad,
                "bytes": self.bytes,
                "seconds": round(self.seconds, 3),
                "lag": self.lag,
                "committed_ms": self.committed_ms,
            }
        )


class JobMetrics:
    """What Prometheus reads. Written by the job's thread, read by that of the page."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = Lock()
        self._plans = self._records = self._bad = self._bytes = 0
        self._seconds = 0.0
        self._last: TriggerProgress | None = None
        self._lags: Mapping[PartitionName, int] = {}

    def add(self, progress: TriggerProgress) -> None:
        """A plan was committed."""
        with self._lock:
            self._plans += 1
            self._records += progress.records
            self._bad += progress.bad
            self._bytes += progress.bytes
            self._seconds += progress.seconds
            self._last = progress
            self._lags = progress.lags

    def set_lags(self, lags: Mapping[PartitionName, int]) -> None:
        """There was nothing to move, or not yet."""
        with self._lock:
            self._lags = lags

    def text(self) -> str:
        """Prometheus' text format."""
        job = f'job_name="{self._job}"'
        with self._lock:
            listed: list[tuple[str, str, str, list[tuple[str, float]]]] = [
                ("plans_total", "counter", "Plans that were committed.", [(job, self._plans)]),
                ("records_total", "counter", "Records that were moved.", [(job, self._records)]),
                (
                    "dead_letters_total",
                    "counter",
                    "Records that went to the dead-letter topic.",
                    [(job, self._bad)],
                ),
                ("bytes_total", "counter", "Bytes of the records.", [(job, self._bytes)]),
                (
                    "plan_seconds_total",
                    "counter",
                    "Time from plans to their commits.",
                    [(job, self._seconds)],
                ),
                (
                    "lag_records",
                    "gauge",
                    "Committed records that the table has not.",
                    [
                        (f'{job},topic="{name.topic}",partition="{name.partition}"', lag)
                        for name, lag in sorted(self._lags.items())
                    ],
                ),
            ]
            if self._last is not None:
                listed += [
                    ("last_plan", "gauge", "Number of the last plan.", [(job, self._last.plan)]),
                    (
                        "last_commit_timestamp_seconds",
                        "gauge",
                        "Time of the last commit.",
                        [(job, self._last.committed_ms / 1000)],
                    ),
                ]
        lines = []
        for name, kind, help_text, samples in listed:
            full = f"odradek_pipe_{name}"
            lines += [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
            lines += [f"{full}{{{labels}}} {value}" for labels, value in samples]
        return "\n".join(lines) + "\n"

    def write_file(self, file: Path) -> None:
        """For the node exporter's textfile collector: the file is replaced as a whole."""
        unfinished = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        try:
            unfinished.write_text(self.text())
            unfinished.replace(file)
        except OSError as error:
            raise PipelineError(f"metrics file {file}: {error.strerror}") from error


class MetricsPage:
    """`/metrics` on an address, until `close`."""

    def __init__(self, listen: str, metrics: JobMetrics) -> None:
        """`listen` is HOST:PORT; port 0 takes a free one. PipelineError if it is taken."""
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise PipelineError(f"metrics address {listen!r}: write HOST:PORT")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == "/metrics"
                body = metrics.text().encode() if is_known else b"try /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """The terminal is for progress."""

        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except OSError as error:
            raise PipelineError(f"metrics address {listen}: {error.strerror}") from error
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
