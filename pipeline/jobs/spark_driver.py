"""Spark as jobs use it: a session that is quiet, and tasks that give lines of text.

Any master works unchanged. Workers import `odradek.pipeline` from their own Python, so it is
installed there, and see the table's folder under the same path.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from odradek.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Batches with task numbers to batches with a column `result` of texts."""

_DEFAULTS: Final = {
    # A job has no use for a web page and its threads; whoever wants it sets it.
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


class SparkDriver:
    """A Spark session that is started when there is work."""

    def __init__(self, name: str, master: str, configuration: Mapping[str, str]) -> None:
        self._name = name
        self._master = master
        self._configuration = {**_DEFAULTS, **configuration}
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def parallelism(self) -> int:
        """How many tasks run at a time."""
        return int(self._started().sparkContext.defaultParallelism)

    def run(self, count: int, run_task: RunTask) -> list[str]:
        """Run tasks 0 to count - 1, and collect what they give; PipelineError if Spark fails."""
        from pyspark.errors import PySparkException

        session = self._started()
        try:
            numbers = session.range(0, count, 1, count)
            rows = numbers.mapInArrow(run_task, "result string").collect()
        except PySparkException as error:
            raise PipelineError(f"Spark: {_first_line(error)}") from error
        except Exception as error:
            # py4j's own, when the JVM is gone: py4j is Spark's affair, and no home of ours.
            if type(error).__module__.partition(".")[0] != "py4j":
                raise
            raise PipelineError(f"Spark: {_first_line(error)}") from error
        return [row["result"] for row in rows]

    def stop(self) -> None:
        """End the session and its workers."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _started(self) -> "SparkSession":
        if self._session is None:
            self._session = self._start()
        return self._session

    def _start(self) -> "SparkSession":
        try:
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise PipelineError("Spark is missing: pip install 'odradek[spark]'") from error
        if self._master.startswith("local"):
            # Workers of this machine have what the driver has; elsewhere spark.pyspark.python says.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(self._name).master(self._master)
        for name, value in self._configuration.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            if error.getCondition() == "JAVA_GATEWAY_EXITED":
                raise PipelineError(
                    "Spark found no Java: install Java 17 or newer, or set JAVA_HOME"
                ) from error
            raise PipelineError(f"Spark: {_first_line(error)}") from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "py4j":
                raise
            raise PipelineError(f"Spark did not start: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Without the stacks of Python and Java below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    caused = [line for line in lines if line.startswith("Caused by:")]
    text = caused[-1].removeprefix("Caused by:").strip() if caused else (lines or ["failed"])[0]
    return text[:500]
