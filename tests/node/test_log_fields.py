"""Every call of a logger: an event without values, and known fields. docs/logs.md names them."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.log_fields import FIELDS, STANDARD_FIELDS, table

ROOT = Path(__file__).parents[2]
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
# What LogRecord has itself: logging refuses a field of that name when the line is said.
RESERVED = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime"}


def faults_of(source: str) -> Iterator[str]:
    """What is wrong with the lines that this module says."""
    known = FIELDS.keys() | STANDARD_FIELDS.keys()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_fields"):
            keys = [
                key.value
                for inner in ast.walk(node)
                if isinstance(inner, ast.Dict)
                for key in inner.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
            yield from (f"{node.name}: unknown field {key}" for key in keys if key not in known)
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
            and node.func.attr in METHODS
        ):
            continue
        where = f"line {node.lineno}"
        *level, event = node.args
        if len(level) != (node.func.attr == "log"):
            yield f"{where}: values are fields, not arguments"
        if not (isinstance(event, ast.Constant) and isinstance(event.value, str)):
            yield f"{where}: the event is not a text without values"
        elif "%" in event.value or event.value.endswith(".") or not event.value[0].islower():
            yield f"{where}: {event.value!r} is not a lower-case sentence without its full stop"
        for keyword in node.keywords:
            if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
                names = [
                    key.value
                    for key in keyword.value.keys
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
            else:
                names = [keyword.arg] if keyword.arg else []
            for name in names:
                if name not in FIELDS and name not in ("exc_info",):
                    yield f"{where}: unknown field {name}: add it to node/log_fields.py"


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ('log.info("a topic was created", topic=name)', ""),
        ('log.log(level, "it has exited", child=name)', ""),
        ('log.error("it failed", **caller_fields(context), exc_info=error)', ""),
        ('log.warning("failed", extra={"store": 3})', ""),
        ('log.info(f"topic {name}")', "not a text without values"),
        ('log.info("topic %s", name)', "values are fields"),
        ('log.info("topic %s")', "lower-case sentence"),
        ('log.info("A topic")', "lower-case sentence"),
        ('log.info("a topic", tpic=name)', "unknown field tpic"),
        ('log.info("a topic", extra={"tpic": name})', "unknown field tpic"),
        ('def log_fields():\n    return {"tpic": 1}', "unknown field tpic"),
    ],
)
def test_a_line_that_breaks_a_rule_is_found(call: str, fault: str) -> None:
    found = list(faults_of(call))
    assert any(fault in each for each in found) if fault else not found


def test_every_line_is_an_event_with_known_fields() -> None:
    faults = [
        f"{path.relative_to(ROOT)} {fault}"
        for folder in ("node", "storage", "cluster", "coordinator", "protocol")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for fault in faults_of(path.read_text())
    ]
    assert not faults, "\n".join(faults)


def test_no_field_has_a_name_that_logging_has() -> None:
    assert not FIELDS.keys() & (RESERVED | STANDARD_FIELDS.keys())


def test_the_page_has_all_fields() -> None:
    page = (ROOT / "docs" / "logs.md").read_text()
    for fields in (STANDARD_FIELDS, FIELDS):
        assert table(fields) in page
