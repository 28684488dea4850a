"""Kafka's own command line tools, for conformance tests. They need Java and Kafka's jars.

The jars are searched in $KAFKA_JARS, then where .ci/run puts them. Without Java or jars the tests
are skipped with a reason. The tools run one after another in one virtual machine (`JavaTools`):
its start costs ten times what a tool does.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final

from tests.support.waiting import is_readable

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
RUNNER: Final = REPOSITORY / "tests" / "conformance" / "java" / "ToolRunner.java"
ROUND_TRIPS: Final = str(RUNNER.with_name("RoundTrips.java"))
"""A program that writes and reads with given properties."""
_NUMBER: Final = Struct(">i")
_STATUS_AND_THREADS: Final = Struct(">ii")
_READ_BYTES: Final = 1 << 16


@cache
def kafka_jars() -> Path | None:
    """The folder with Kafka's jars, or None."""
    for place in (os.environ.get("KAFKA_JARS"), REPOSITORY / ".venv" / "kafka-jars"):
        if place and any(Path(place).glob("kafka-tools-*.jar")):
            return Path(place)
    return None


def why_no_java_tools() -> str:
    """The reason to skip a test that needs the Java tools; empty when it can run."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "needs java and javac on the PATH"
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
    is_alone: bool = False,
    options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a Kafka tool by its class, e.g. `org.apache.kafka.tools.TopicCommand`, or a program by
    its source file.

    A program, and a tool with `debug` (a package whose log goes to stderr) or with `is_alone` (it
    runs while others do), has a virtual machine of its own, with its logging configuration in
    `directory`, and these `options`. Raises TimeoutExpired.
    """
    if not debug and not is_alone and not tool.endswith(".java"):
        return _shared_tools().run([tool, *arguments], stdin, timeout_s)
    return subprocess.run(
        [*_java(directory, debug), *options, tool, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class JavaTools:
    """A virtual machine that runs tools, started with the first one.

    It is replaced when a tool does not end in time or leaves threads behind: those of a client that
    nobody has closed would go on asking a broker that has gone.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="odradek-java-")
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._is_used = threading.Lock()

    def run(
        self, command: Sequence[str], stdin: str = "", timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run the tool of this class with these arguments, after those of other threads."""
        with self._is_used:
            return self._run(command, stdin, timeout_s)

    def _run(
        self, command: Sequence[str], stdin: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        if self._process is None:
            self._start()
        tool, *arguments = command
        texts = [text.encode() for text in (tool, stdin, *arguments)]
        call = _NUMBER.pack(len(texts)) + b"".join(_NUMBER.pack(len(t)) + t for t in texts)
        assert self._process is not None
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_s
        try:
            self._process.stdin.write(call)
            self._process.stdin.flush()
            status, threads = _STATUS_AND_THREADS.unpack(self._read(8, deadline))
            printed, complained = (
                self._read(_NUMBER.unpack(self._read(4, deadline))[0], deadline).decode()
                for _ in range(2)
            )
        except TimeoutError:
            self.close()
            raise subprocess.TimeoutExpired(command, timeout_s) from None
        except OSError as error:
            self.close()
            raise AssertionError(f"{command}: {self._complaints()}") from error
        if threads:
            self.close()
        return subprocess.CompletedProcess(list(command), status, printed, complained)

    def close(self) -> None:
        """End the machine. The next tool starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        self._received.clear()

    def _start(self) -> None:
        folder = Path(self._folder.name)
        with (folder / "stderr").open("wb") as complaints:
            self._process = subprocess.Popen(
                # Its security manager keeps tools from ending it; it closes what they leave open.
                [
                    *_java(folder),
                    "-Djava.security.manager=allow",
                    "--add-opens=java.base/java.lang=ALL-UNNAMED",
                    str(RUNNER),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None
        pipe = self._process.stdout
        assert pipe is not None
        while len(self._received) < size:
            if not is_readable(pipe, max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(pipe.fileno(), _READ_BYTES)
            if not piece:
                raise BrokenPipeError("the virtual machine has ended")
            self._received += piece
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _complaints(self) -> str:
        return (Path(self._folder.name) / "stderr").read_text(errors="replace")


@cache
def _shared_tools() -> JavaTools:
    tools = JavaTools()
    atexit.register(tools.close)
    return tools


def java_command(directory: Path, *arguments: str) -> list[str]:
    """The command that starts a program by its source file, with options of the machine before."""
    return [*_java(directory), *arguments]


def _java(directory: Path, debug: str = "") -> list[str]:
    """The command that starts Java with Kafka's jars; it logs to stderr from WARN on."""
    jars = kafka_jars()
    assert jars is not None, why_no_java_tools()
    log4j = directory / "log4j2.yaml"
    log4j.write_text(LOG4J + (DEBUG % debug if debug else ""))
    return [
        "java",
        "-Xmx256M",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Duser.language=en",
        "-Duser.country=US",
        "-Dfile.encoding=UTF-8",
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        f"{jars}/*",
    ]
