"""Kafka's own command line tools, for conformance tests. They need Java and Kafka's jars.

The jars are searched in $KAFKA_JARS, then where .ci/run puts them. Without Java or jars the tests
are skipped with a reason.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LOG4J = """\
Configuration:
  Appenders:
    Console: {name: ERR, target: SYSTEM_ERR, PatternLayout: {pattern: "%p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: ERR}}
"""
DEBUG = """\
    Logger: [{name: %s, level: DEBUG}]
"""


@cache
def kafka_jars() -> Path | None:
    """The folder with Kafka's jars, or None."""
    for place in (os.environ.get("KAFKA_JARS"), REPOSITORY / ".venv" / "kafka-jars"):
        if place and any(Path(place).glob("kafka-tools-*.jar")):
            return Path(place)
    return None


def why_no_java_tools() -> str:
    """The reason to skip a test that needs the Java tools; empty when it can run."""
    if shutil.which("java") is None:
        return "needs java on the PATH"
    if kafka_jars() is None:
        return "needs Kafka's jars: set KAFKA_JARS to their folder, or let .ci/run fetch them"
    return ""


def run_java_tool(
    tool: str,
    *arguments: str,
    directory: Path,
    stdin: str = "",
    timeout_s: float = 120.0,
    debug: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a Kafka tool by its class, e.g. `org.apache.kafka.tools.TopicCommand`.

    `directory` gets the logging configuration; use the test's tmp_path. `debug` is a package whose
    log goes to stderr.
    """
    jars = kafka_jars()
    assert jars is not None, why_no_java_tools()
    log4j = directory / "log4j2.yaml"
    log4j.write_text(LOG4J + (DEBUG % debug if debug else ""))
    return subprocess.run(
        [
            "java",
            "-Xmx256M",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            f"{jars}/*",
            tool,
            *arguments,
        ],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
