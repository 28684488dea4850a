"""Log lines: fields, text on a terminal, JSON elsewhere, and nothing of a client begins a line."""

import contextlib
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from odradek.node.config import load
from odradek.node.structured_log import (
    configure_logging,
    finish_logging,
    get_logger,
    line_of,
    log_to_stderr,
)

log = get_logger("odradek.node.wire.connection")


def record(message: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("odradek.node.wire", level, "file.py", 7, message, arguments, None)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """For what is written to stderr. The process's logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook
    flags = logging.raiseExceptions, logging.logThreads, logging.logProcesses
    multiprocessing = logging.logMultiprocessing
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level
    sys.excepthook, threading.excepthook = hooks
    logging.raiseExceptions, logging.logThreads, logging.logProcesses = flags
    logging.logMultiprocessing = multiprocessing
    logging.captureWarnings(False)


def configure(stream: io.StringIO, **options: str) -> None:
    with contextlib.redirect_stderr(stream):
        configure_logging(load(environment={}, options={"node.id": "7", **options}), "router-0")


def test_a_line_for_humans_has_time_level_process_event_and_fields() -> None:
    line = line_of(record("port %d", 9092), "text", "router-0")
    assert line[12:] == " WARN  router-0   port 9092"
    line = line_of(record("a topic of %s", "x\n12:00:00.000 ERROR \x1b[31m"), "text", "router-0")
    assert line[12:] == " WARN  router-0   a topic of x\\n12:00:00.000 ERROR \\x1b[31m"
    said = record("a listener is open", level=logging.INFO)
    said.listener, said.reason = "PLAINTEXT", "it's\nodd \x1b[31m"
    line = line_of(said, "text", "router-0")
    assert line[12:] == (
        ' INFO  router-0   a listener is open listener=PLAINTEXT reason="it\'s\\nodd \\x1b[31m"'
    )


def test_a_line_for_machines_is_one_json_object_also_with_an_exception() -> None:
    failed = record("line one\nline two")
    failed.partition = 3
    try:
        raise ValueError("bad")
    except ValueError:
        failed.exc_info = sys.exc_info()
    line = line_of(failed, "json", "worker-1")
    assert "\n" not in line
    entry = json.loads(line)
    assert list(entry) == [
        *("time", "level", "process", "logger", "event", "partition", "exception")
    ]
    assert (entry["level"], entry["process"], entry["logger"], entry["partition"]) == (
        "warning",
        "worker-1",
        "odradek.node.wire",
        3,
    )
    assert entry["event"] == "line one\nline two"
    assert "ValueError: bad" in entry["exception"]
    assert entry["time"].endswith("Z")


def test_the_log_is_json_with_the_node_s_id_without_a_terminal(stream: io.StringIO) -> None:
    configure(stream, **{"log.level": "WARNING"})
    log.info("not shown")
    log.warning("shown", topic="orders", partition=3, reason=ValueError("bad"), path=b"\xff")
    logging.getLogger("odradek.storage").warning("of the library", extra={"store": 3})
    log.warning("odd", path="\udcff", offset=2**70)
    ours, of_library, odd = map(json.loads, stream.getvalue().splitlines())
    assert (ours["event"], ours["node"], ours["topic"], ours["partition"], ours["reason"]) == (
        *("shown", 7, "orders", 3, "bad"),
    )
    assert (odd["path"], odd["offset"]) == ("\udcff", 2**70)
    assert (of_library["event"], of_library["store"]) == ("of the library", 3)


def test_a_terminal_gets_text_and_log_format_decides_when_it_is_set(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    configure(stream)
    log.info("on a terminal")
    configure(stream, **{"log.format": "json"})
    log.info("in JSON")
    monkeypatch.setattr(stream, "isatty", lambda: False)
    configure(stream, **{"log.format": "text"})
    log.info("in text")
    first, second, third = stream.getvalue().splitlines()
    assert first.endswith("INFO  router-0   on a terminal")
    assert json.loads(second)["event"] == "in JSON"
    assert third.endswith("INFO  router-0   in text")


def test_levels_have_colours_on_a_terminal_that_wants_them(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure(stream)
    log.error("bad", store=1)
    assert "\x1b[31mERROR\x1b[0m" in stream.getvalue()


def test_a_failure_of_the_process_or_a_thread_is_a_line_of_its_log(stream: io.StringIO) -> None:
    configure(stream)
    sys.excepthook(ValueError, ValueError("bad"), None)
    thread = threading.Thread(target=lambda: [][0])
    thread.start()
    thread.join()
    warnings.showwarning("old", DeprecationWarning, "file.py", 1)
    process, of_thread, warning = map(json.loads, stream.getvalue().splitlines())
    assert process["event"] == "the process failed and exits"
    assert "ValueError: bad" in process["exception"]
    assert "IndexError" in of_thread["exception"]
    assert "DeprecationWarning" in warning["event"]


def test_what_is_held_back_is_said_at_the_end_also_after_a_new_configuration(
    stream: io.StringIO,
) -> None:
    configure(stream)
    for _ in range(3):
        log.warning("refused", client_address="10.0.0.9")
    configure(stream, **{"log.format": "text"})
    finish_logging()
    first, last = stream.getvalue().splitlines()
    assert "repeated" not in json.loads(first)
    assert last.endswith("refused client_address=10.0.0.9 repeated=2")


def test_a_closed_stderr_fails_nobody(stream: io.StringIO) -> None:
    with contextlib.redirect_stderr(stream):
        log_to_stderr("json", "router-0")
    stream.close()
    log.warning("into nothing")
    finish_logging()


def test_structlog_brings_neither_rich_nor_asyncio_into_a_process() -> None:
    command = (
        "import sys, odradek.node.structured_log;"
        "assert not [name for name in sys.modules if name.startswith(('rich', 'asyncio'))];"
        "import asyncio, rich.table; asyncio.run(asyncio.sleep(0))"
    )
    subprocess.run([sys.executable, "-c", command], check=True)
