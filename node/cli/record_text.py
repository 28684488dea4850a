"""Records as text: JSON Lines that `produce` reads and `consume` writes, and line templates.

Both use the same JSON, so `odradek consume a -o json | odradek produce b --format json` copies a
topic. A key or value that is not UTF-8 is in a field whose name ends with `_base64`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from odradek.node.cli.output import Json
from odradek.node.cli.parameters import moment_text

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import Message

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}
ESCAPES: Final = {
    "\\n": b"\n",
    "\\r": b"\r",
    "\\t": b"\t",
    "\\0": b"\0",
    "\\\\": b"\\",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to produce. Partition -1: by key or at random; timestamp 0: now."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = -1
    timestamp_ms: int = 0


def record_to_json(message: Message) -> Json:
    """The JSON object of a consumed record."""
    kind, timestamp_ms = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,
        "timestamp_type": TIMESTAMP_TYPES.get(kind),
        **bytes_to_json("key", message.key()),
        **bytes_to_json("value", message.value()),
        "headers": [
            {"key": name, **bytes_to_json("value", value)} for name, value in headers_of(message)
        ],
    }


def record_from_json(line: str | bytes) -> NewRecord:
    """The record of one JSON line. Raises ValueError.

    Fields: key, value, headers, partition, timestamp. topic, offset and timestamp_type are accepted
    and ignored; other fields are refused. A key or value that is neither text nor null is written
    as JSON.
    """
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("a record is a JSON object")
    known = {"topic", "partition", "offset", "timestamp", "timestamp_type", "headers"}
    known |= {"key", "key_base64", "value", "value_base64"}
    unknown = sorted(document.keys() - known)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")
    partition, timestamp_ms = document.get("partition"), document.get("timestamp")
    if not isinstance(partition, int | None) or not isinstance(timestamp_ms, int | None):
        raise ValueError("partition and timestamp are integers")
    return NewRecord(
        value=_bytes_from_json("value", document),
        key=_bytes_from_json("key", document),
        headers=_headers_from_json(document.get("headers")),
        partition=-1 if partition is None else partition,
        timestamp_ms=timestamp_ms or 0,
    )


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Headers in order, with values as bytes."""
    headers = message.headers()
    pairs = headers.items() if isinstance(headers, Mapping) else headers or []
    return [
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in pairs
        if value is None or isinstance(value, str | bytes)
    ]


def printable(value: bytes | None) -> str:
    """Bytes as UTF-8, with escapes for invalid ones; `null` for None."""
    return "null" if value is None else value.decode("utf-8", "backslashreplace")


def headers_text(message: Message) -> str:
    """`name=value,name=value`."""
    return ",".join(f"{name}={printable(value)}" for name, value in headers_of(message))


def timestamp_text(message: Message) -> str:
    """The record's timestamp in ISO 8601, UTC; `-` when it has none."""
    kind, timestamp_ms = message.timestamp()
    return (moment_text(timestamp_ms) if kind else None) or "-"


FIELDS: Final[Mapping[str, Callable[[Message], bytes]]] = {
    "topic": lambda message: (message.topic() or "").encode(),
    "partition": lambda message: b"%d" % (message.partition() or 0),
    "offset": lambda message: b"%d" % (message.offset() or 0),
    "timestamp": lambda message: timestamp_text(message).encode(),
    "key": lambda message: _raw(message.key()),
    "value": lambda message: _raw(message.value()),
    "headers": lambda message: b",".join(
        name.encode() + b"=" + _raw(value) for name, value in headers_of(message)
    ),
}
"""The fields of a record: key, value and headers as they are, `null` where there is none."""


def line_template(template: str) -> Callable[[Message], bytes]:
    r"""A function that formats a record: {topic} {partition} {offset} {timestamp} {key} {value}
    {headers}. Raises ValueError for another word in braces.

    Keys, values and headers are their bytes. `\n`, `\r`, `\t`, `\0`, `\xHH` and `\\` are escapes. A
    line ends with a newline, unless the template ends with `\c`. Other braces stay as they are, so
    that a template may be JSON.
    """
    text, end = (template[:-2], b"") if template.endswith("\\c") else (template, b"\n")
    parts: list[bytes | Callable[[Message], bytes]] = []
    at = 0
    for match in _TEMPLATE.finditer(text):
        parts += [text[at : match.start()].encode(), _template_part(match)]
        at = match.end()
    parts += [text[at:].encode(), end]

    def fill(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return fill


_TEMPLATE: Final = re.compile(r"\{(\w+)\}|\\x([0-9a-fA-F]{2})|\\[nrt0\\]")


def _template_part(match: re.Match[str]) -> bytes | Callable[[Message], bytes]:
    if match[2]:
        return bytes.fromhex(match[2])
    if not match[1]:
        return ESCAPES[match[0]]
    field = FIELDS.get(match[1])
    if field is None:
        known = " ".join(f"{{{name}}}" for name in FIELDS)
        raise ValueError(rf"unknown field {match[0]} (known: {known}; \x7b is a brace)")
    return field


def _raw(value: bytes | str | None) -> bytes:
    if value is None:
        return b"null"
    return value.encode() if isinstance(value, str) else value


def bytes_to_json(name: str, value: bytes | None) -> dict[str, Json]:
    """`{name: text}`, or `{name_base64: ...}` if the value is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def _bytes_from_json(name: str, document: Mapping[str, Json]) -> bytes | None:
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        if not isinstance(encoded, str):
            raise ValueError(f"{name}_base64 is text")
        return b64decode(encoded, validate=True)
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers_from_json(headers: Json) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        return [(name, _bytes_from_json(name, headers)) for name in headers]
    if not isinstance(headers, list):
        raise ValueError("headers are a list of {key, value} or an object")
    pairs = []
    for header in headers:
        if not isinstance(header, Mapping) or not isinstance(header.get("key"), str):
            raise ValueError("a header is an object with key and value")
        pairs.append((str(header["key"]), _bytes_from_json("value", header)))
    return pairs
