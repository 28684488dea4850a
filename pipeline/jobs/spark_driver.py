"""Spark as jobs use it: a context that is quiet, and tasks that give a line of text each.

Any master works unchanged. Workers run the Python of the driver, or that which PYSPARK_PYTHON or
`spark.pyspark.python` names; `odradek[spark]` is installed there, and the table's folder has the
same path everywhere. It needs nothing of Spark SQL: records go from the wire into files within a
task, and only descriptions come back.
"""

import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, Self

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.spark_failures import failure_line

if TYPE_CHECKING:
    from pyspark import SparkContext

_DEFAULTS: Final = {
    # A job has no use for a web page and its threads; whoever wants it sets it.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
_PYTHON: Final = "spark.pyspark.python"
# By file, as `spark.log.level` has no effect until the context is there. Spark takes the level of
# the gateway's logger for that of its shell, and tells people if it is another one. What a task
# failed of comes as the exception of the job: its stack in the log is a second time.
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SparkDriver:
    """A Spark context that is started when there is work."""

    def __init__(self, name: str, master: str, configuration: Mapping[str, str]) -> None:
        self._name = name
        self._master = master
        self._configuration = {**_DEFAULTS, **configuration}
        self._context: SparkContext | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def parallelism(self) -> int:
        """How many tasks run at a time."""
        context = self._started()
        with self._told(context):
            return int(context.defaultParallelism)

    def run(self, count: int, run_task: Callable[[int], str]) -> list[str]:
        """Run tasks 0 to count - 1, and collect what they give; PipelineError if Spark fails."""
        context = self._started()
        with self._told(context):
            return list(context.parallelize(range(count), count).map(run_task).collect())

    def stop(self) -> None:
        """End the context and its workers."""
        if self._context is not None:
            self._context.stop()
            self._context = None

    @contextmanager
    def _told(self, context: "SparkContext") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not _is_of_spark(error):
                raise
            ended = _has_ended(context)
            raise PipelineError(failure_line(str(error), self._master, has_ended=ended)) from error

    def _started(self) -> "SparkContext":
        if self._context is None:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                # Of pyspark about pandas, which jobs do not use.
                warnings.simplefilter("ignore")
                self._context = self._start(Path(folder))
        return self._context

    def _start(self, folder: Path) -> "SparkContext":
        try:
            from pyspark import SparkConf, SparkContext
        except ImportError as error:
            raise PipelineError("Spark is missing: pip install 'odradek[spark]'") from error
        # Spark takes seconds to say so, with a stack of Java's.
        if not self._master.startswith(_MASTERS):
            raise PipelineError(
                f"master is {self._master!r}: take local[*], local[N], spark://HOST:PORT, yarn or"
                " k8s://URL"
            )
        # Spark reads the setting in spark-submit alone, and would take any python3 of the workers.
        named = self._configuration.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON")
        os.environ["PYSPARK_PYTHON"] = named or sys.executable
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        own = self._configuration.get(_JAVA_OPTIONS, "")
        settings = self._configuration | {
            _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={logging.as_uri()} {own}".strip()
        }
        configuration = SparkConf().setAppName(self._name).setMaster(self._master)
        configuration.setAll([*settings.items()])
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            return SparkContext.getOrCreate(configuration)
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" in str(error):
                failed = _without_gateway()
            elif _is_of_spark(error):
                failed = failure_line(str(error), self._master)
            else:
                raise
        finally:
            # Spark's own would fail the job with stacks of Python and Java.
            if current_thread() is main_thread():
                signal.signal(signal.SIGINT, on_interrupt)
        # Not from that error: its frames hold a pipe to Java, which is closed when they are gone.
        raise PipelineError(failed)


def _is_of_spark(error: Exception) -> bool:
    """py4j's are what Java raised, or that the JVM is gone: then its socket may say so itself."""
    return isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in (
        "pyspark",
        "py4j",
    )


def _has_ended(context: "SparkContext") -> bool:
    """Whether Spark has stopped itself, as when no master answers, or Java is gone."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception as error:
        if not _is_of_spark(error):
            raise
        return True


def _without_gateway() -> str:
    """Spark's launcher has ended before there was a gateway to Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        return "Spark found no Java: install Java 17 or newer, or set JAVA_HOME"
    return (
        f"Spark did not start with {java}: its output above says why (Java 17 or newer is needed)"
    )
