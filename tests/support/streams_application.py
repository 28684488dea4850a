"""A Kafka Streams application as a process: the word count of tests/conformance/java.

It is Kafka's own library with a topology of ours. `why_no_streams` says what is missing where it
cannot run: Java's compiler, or Kafka's jars with Streams among them.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.java import LOG4J, kafka_jars, why_no_java_tools
from tests.support.waiting import wait_until

SOURCE = Path(__file__).parents[1] / "conformance" / "java" / "WordCount.java"
START_TIMEOUT_S = 120.0


def why_no_streams() -> str:
    """The reason to skip a test of Kafka Streams; empty when it can run."""
    jars = kafka_jars()
    if why_no_java_tools() or jars is None:
        return why_no_java_tools()
    if shutil.which("javac") is None:
        return "needs javac on the PATH"
    if not any(jars.glob("kafka-streams-*.jar")):
        return "needs kafka-streams among Kafka's jars: .ci/run fetches it"
    return ""


def compile_application(folder: Path, source: Path = SOURCE) -> Path:
    """The folder with the application's classes, compiled into `folder`."""
    jars = kafka_jars()
    assert jars is not None, why_no_java_tools()
    done = subprocess.run(
        ["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


class StreamsApplication:
    """One instance of the word count, started at once; leaving the block kills it."""

    def __init__(
        self,
        folder: Path,
        *,
        classes: Path,
        source: str,
        target: str,
        settings: Mapping[str, str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.yaml").write_text(LOG4J)
        self._output = folder / "output.txt"
        jars = kafka_jars()
        assert jars is not None, why_no_java_tools()
        given = {**settings, "state.dir": str(folder / "state")}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx256M",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}",
                    "-cp",
                    f"{classes}:{jars}/*",
                    SOURCE.stem,
                    source,
                    target,
                    *(f"{key}={value}" for key, value in given.items()),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def output(self) -> str:
        """The lines that it has printed."""
        return self._output.read_text(errors="replace")

    def wait_until_running(self) -> None:
        """Wait until all its threads have had tasks; AssertionError with its output if not."""
        wait_until(
            lambda: "state RUNNING" in self.output or self._process.poll() is not None,
            timeout_s=START_TIMEOUT_S,
            what="the application runs",
        )
        assert self._process.poll() is None, self.output

    def kill(self) -> None:
        """SIGKILL: nothing is closed, no transaction ended."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """Close it in order; AssertionError with its output if it does not end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0, self.output
        assert "state ERROR" not in self.output, self.output
