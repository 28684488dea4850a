"""`odradek pipe offload` as people start it: a process of its own, with its JVM and its workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 240.0
"""Of a job on a busy machine: a JVM and its Python workers take seconds to start."""


def environment() -> dict[str, str]:
    """Workers find odradek as the driver does; of Spark's variables none are inherited."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "ODRADEK_"))
    }
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def pipe_command(*arguments: str) -> list[str]:
    """-P: as installed, not from the current folder."""
    return [sys.executable, "-P", "-m", "odradek", "pipe", *arguments]


def flags_of(settings: Mapping[str, str]) -> list[str]:
    """The settings as options of a command."""
    flags = []
    for name, value in settings.items():
        is_prefixed = name.startswith(("kafka.", "spark.", "catalog.", "storage."))
        flags += (
            ["-X", f"{name}={value}"] if is_prefixed else [f"--{name.replace('.', '-')}", value]
        )
    return flags


@dataclass(frozen=True, slots=True)
class OffloadRun:
    """A job that has ended."""

    exit_code: int
    plans: list[dict[str, Any]]
    """What it said about each, by `--output json`."""
    errors: str


@dataclass(frozen=True, slots=True)
class OffloadJob:
    """A job by its settings; each run goes on where the table ends."""

    settings: Mapping[str, str]

    @property
    def table(self) -> Path:
        return Path(self.settings["table"])

    def command(self, *arguments: str, **changes: str) -> list[str]:
        """The command line of `offload`."""
        named = {name.replace("_", "."): value for name, value in changes.items()}
        flags = flags_of({**self.settings, **named})
        return pipe_command("offload", *flags, "--output", "json", *arguments)

    def once(self, *arguments: str, **changes: str) -> OffloadRun:
        """Run it to its end."""
        ran = subprocess.run(
            self.command("--once", *arguments, **changes),
            capture_output=True,
            text=True,
            env=environment(),
            timeout=TIMEOUT_S,
            check=False,
        )
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        return OffloadRun(ran.returncode, lines, ran.stderr)

    @contextmanager
    def running(
        self, *arguments: str, log: Path, **changes: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process with a process group of its own, all of which is killed at the end."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*arguments, **changes),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and its workers at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def job_settings(bootstrap: str, table: Path, **more: str) -> dict[str, str]:
    """What most tests want."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "name": "archive",
        "bootstrap.servers": bootstrap,
        "topics": "orders",
        "table": str(table),
        "master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        **named,
    }


def run_verify(job: OffloadJob, output: str) -> subprocess.CompletedProcess[str]:
    """`odradek pipe verify`, as `text` or `json`."""
    return subprocess.run(
        pipe_command("verify", *flags_of(job.settings), "--output", output),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_S,
        check=False,
    )


def verify(job: OffloadJob) -> dict[str, Any]:
    """The report of `odradek pipe verify`; fails if anything is unexplained."""
    ran = run_verify(job, "json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def read_by_others(kind: str, job: OffloadJob) -> pa.Table:
    """The whole table, without a line of ours."""
    if kind == "parquet":
        first = ds.dataset(job.table, partitioning="hive")
        # Arrow takes the columns of the first file, if nobody says more.
        columns = pa.unify_schemas(
            [first.schema, *(each.physical_schema for each in first.get_fragments())]
        )
        return first.replace_schema(columns).to_table()
    if kind == "delta":
        return DeltaTable(job.table).to_pyarrow_table()
    catalog = load_catalog("odradek", type="sql", uri=f"sqlite:///{job.table}/catalog.db")
    return catalog.load_table(("odradek", job.settings["name"])).scan().to_arrow()
