"""Log lines with fields: how they are written, and the loggers that write them.

A line is an event, which is a sentence without values, and fields. Loggers are structlog's in front
of those of the standard library, whose levels (log_levels.py) and handler they use, so a line of a
library gets the same form. Lines go to stderr: text on a terminal, one JSON object each elsewhere
(`log.format` decides otherwise). Invariant: nothing that a client sends begins another line.
The fields are in log_fields.py; what is said too often is counted by repeated_lines.py.
"""

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Final, Protocol

import msgspec

from odradek.node.log_levels import set_log_levels
from odradek.node.repeated_lines import RepeatedLineFilter


@contextlib.contextmanager
def _without_what_is_not_used() -> Iterator[None]:
    """structlog imports rich where it is installed, for tracebacks that we do not have drawn, and
    asyncio for methods that we do not call: 75 ms and 4 to 6 MiB in a process that has neither
    (ADR 21)."""
    before = {name: sys.modules.get(name) for name in ("rich", "asyncio")}
    sys.modules["rich"] = None  # type: ignore[assignment]  # what makes `import rich` fail
    sys.modules.setdefault("asyncio", ModuleType("asyncio"))
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


with _without_what_is_not_used():
    import structlog
    from structlog import dev, processors, stdlib
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict, Processor

_PLAIN: Final = re.compile(r"[\w.:/@%+*\[\],-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_STYLES: Final = {
    "debug": dev.DIM,
    "info": dev.GREEN,
    "warning": dev.YELLOW,
    "error": dev.RED,
    "critical": dev.RED,
}
_LEVEL_NAMES: Final = {"warning": "WARN", "critical": "FATAL"}


def get_logger(name: str) -> BoundLogger:
    """The logger of a module. Its methods take an event and fields:
    `log.warning("a peer was refused", peer_address=address, action="set the cluster's secret")`."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[stdlib.filter_by_level, stdlib.render_to_log_kwargs],
        wrapper_class=BoundLogger,
    ).bind()
    return logger


class LoggingSettings(Protocol):
    """What NodeConfig says about logs."""

    @property
    def node_id(self) -> int: ...
    @property
    def log_format(self) -> str: ...
    @property
    def log_level(self) -> str: ...
    @property
    def log_levels(self) -> Mapping[str, str]: ...


def configure_logging(config: LoggingSettings, process: str) -> None:
    """Log to stderr in the configured format with the configured levels; `process` is the name of
    this process. May be called again with another configuration."""
    log_to_stderr(config.log_format, process, config.node_id)
    set_log_levels(config.log_level, config.log_levels)


def log_to_stderr(log_format: str, process: str, node_id: int | None = None) -> None:
    """Log to stderr: `log_format` is text, json or auto. Nothing of it fails the caller."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format, process, node_id))
    root = logging.getLogger()
    limits = next(_filters(), None) or RepeatedLineFilter()
    limits.emit = handler.emit
    handler.addFilter(limits)
    root.handlers[:] = [handler]
    logging.raiseExceptions = False
    # They cost time for each line, and no format shows them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    log = get_logger(__name__)

    def log_failure(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        log.critical("the process failed and exits", exc_info=(kind, error, traceback))

    def log_thread_failure(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is not SystemExit and failed.exc_value is not None:
            found = (failed.exc_type, failed.exc_value, failed.exc_traceback)
            log.critical("a thread of the process failed", exc_info=found)

    sys.excepthook = log_failure
    threading.excepthook = log_thread_failure


def say_repeated_lines() -> None:
    """Log lines that were held back and are due, with their counts. Cheap; called every second."""
    for limits in _filters():
        limits.say_due()


def finish_logging() -> None:
    """Log what is held back. For processes that end without the interpreter's own way to end."""
    for limits in _filters():
        limits.say_all()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()


def _filters() -> Iterator[RepeatedLineFilter]:
    for handler in logging.getLogger().handlers:
        for each in handler.filters:
            if isinstance(each, RepeatedLineFilter):
                yield each


def is_text_format(log_format: str) -> bool:
    """Whether lines on stderr are text with this `log.format`."""
    return log_format == "text" or (log_format == "auto" and sys.stderr.isatty())


def make_formatter(log_format: str, process: str, node_id: int | None) -> logging.Formatter:
    """What makes lines of records, those of libraries included."""
    if is_text_format(log_format):
        is_coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        rendered: list[Processor] = [_add_text_columns(process), _text_renderer(is_coloured)]
    else:
        rendered = [
            _add_json_fields(process, node_id),
            processors.format_exc_info,
            processors.JSONRenderer(serializer=_encode),
        ]
    return stdlib.ProcessorFormatter(
        processors=rendered, foreign_pre_chain=[stdlib.ExtraAdder()], use_get_message=True
    )


def line_of(record: logging.LogRecord, log_format: str, process: str) -> str:
    """The line of a record, in a process whose logging is not configured."""
    return make_formatter(log_format, process, None).format(record)


def _encode(entry: EventDict, **_settings: object) -> str:
    try:
        return msgspec.json.encode(entry, enc_hook=str).decode()
    except (UnicodeEncodeError, OverflowError):
        # A path that is no UTF-8, or an integer of more than 64 bits.
        return json.dumps(entry, default=str)


def _add_json_fields(process: str, node_id: int | None) -> Processor:
    def add(_logger: object, method: str, entry: EventDict) -> EventDict:
        record = _taken(entry)
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        first: EventDict = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": method,
            "node": node_id,
            "process": process,
            "logger": record.name,
            "event": entry.pop("event"),
        }
        if node_id is None:
            del first["node"]
        return {**first, **entry}

    return add


def _add_text_columns(process: str) -> Processor:
    padded = f"{process:<10}"

    def add(_logger: object, method: str, entry: EventDict) -> EventDict:
        record = _taken(entry)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return {
            "time": f"{clock}.{int(record.msecs):03d}",
            "level": method,
            "process": padded,
            **entry,
        }

    return add


def _taken(entry: EventDict) -> logging.LogRecord:
    """The record that the fields are of, which is no field. Fields without a value are dropped."""
    record: logging.LogRecord = entry.pop("_record")
    # What formatters of the standard library leave in a record.
    absent = [name for name, value in entry.items() if value is None]
    for name in (*absent, "_from_structlog", "message", "asctime"):
        entry.pop(name, None)
    return record


def _text_renderer(is_coloured: bool) -> dev.ConsoleRenderer:
    def level(key: str, value: object) -> str:
        del key  # there is one column of it
        name = str(value)
        text = f"{_LEVEL_NAMES.get(name, name.upper()):<5}"
        return f"{_STYLES.get(name, '')}{text}{dev.RESET_ALL}" if is_coloured else text

    plain = dev.KeyValueColumnFormatter(
        key_style=None, value_style="", reset_style="", value_repr=str
    )
    event = dev.KeyValueColumnFormatter(
        key_style=None, value_style="", reset_style="", value_repr=_on_one_line
    )
    fields = dev.KeyValueColumnFormatter(
        key_style=dev.CYAN if is_coloured else "",
        value_style="",
        reset_style=dev.RESET_ALL if is_coloured else "",
        value_repr=_shown,
    )
    return dev.ConsoleRenderer(
        sort_keys=False,
        exception_formatter=dev.plain_traceback,
        columns=[
            dev.Column("time", plain),
            dev.Column("level", level),
            dev.Column("process", plain),
            dev.Column("event", event),
            dev.Column("", fields),
        ],
    )


def _on_one_line(value: object) -> str:
    """An event, which of a library may have values in it: control characters are written out."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], str(value))


def _shown(value: object) -> str:
    """A value in a line for humans, in quotation marks if it has blanks or worse."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)
