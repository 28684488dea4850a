"""Records as text, in both directions."""

import json

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from odradek.node.cli.record_text import (
    NewRecord,
    headers_text,
    line_template,
    printable,
    record_from_json,
    record_to_json,
)

CREATE_TIME = 1
payloads = st.none() | st.binary(max_size=40)


def message(
    value: bytes | None = b"v",
    key: bytes | None = b"k",
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> Message:
    return Message(
        topic="orders",
        partition=3,
        offset=41,
        key=key,
        value=value,
        headers=headers or [],
        timestamp=(CREATE_TIME, 1_700_000_000_123),
    )


@given(value=payloads, key=payloads, header=payloads)
def test_a_record_is_the_same_after_json_and_back(
    value: bytes | None, key: bytes | None, header: bytes | None
) -> None:
    line = json.dumps(record_to_json(message(value, key, [("h", header), ("h", b"2")])))
    assert record_from_json(line) == NewRecord(
        value=value,
        key=key,
        headers=[("h", header), ("h", b"2")],
        partition=3,
        timestamp_ms=1_700_000_000_123,
    )


def test_bytes_that_are_not_utf8_become_base64() -> None:
    document = record_to_json(message(value=b"\xff\x00"))
    assert isinstance(document, dict)
    assert document["value_base64"] == "/wA="
    assert "value" not in document


def test_a_value_that_is_json_itself_is_written_compactly() -> None:
    record = record_from_json('{"value": {"id": 1, "tags": ["a"]}, "key": 7}')
    assert (record.value, record.key) == (b'{"id":1,"tags":["a"]}', b"7")


def test_headers_may_be_an_object() -> None:
    assert record_from_json('{"value": "v", "headers": {"a": "1"}}').headers == [("a", b"1")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[]", "a record is a JSON object"),
        ('{"valeu": "x"}', "unknown key 'valeu'"),
        ('{"value": "x", "partition": "0"}', "integers"),
        ('{"value": "x", "headers": ["a"]}', "a header is an object"),
        ('{"value_base64": "*"}', "base64"),
    ],
)
def test_the_error_of_an_invalid_record(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        record_from_json(line)


def filled(template: str, record: Message) -> bytes:
    return line_template(template)(record)


def test_a_template_fills_fields_and_keeps_other_braces() -> None:
    template = r"{topic}/{partition}@{offset}\t{key}={value} {timestamp} {} { x }"
    assert filled(template, message()) == b"orders/3@41\tk=v 2023-11-14T22:13:20.123Z {} { x }\n"
    assert filled('{"of":{"value":{value}}}', message()) == b'{"of":{"value":v}}\n'


def test_keys_values_and_headers_are_their_bytes() -> None:
    blob = bytes(range(256))
    record = message(value=blob, key=b"\xff", headers=[("h", b"\xfe"), ("n", None)])
    assert filled(r"{key}|{headers}|{value}\c", record) == b"\xff|h=\xfe,n=null|" + blob
    assert filled("{value}", message(value=None)) == b"null\n"


def test_escapes_of_a_template() -> None:
    assert filled(r"\x00\xfF\t\r\n\0\\n{value}\c", message()) == b"\0\xff\t\r\n\0\\nv"
    assert filled(r"\x7bvalue}", message()) == b"{value}\n"


def test_a_value_that_looks_like_a_field_is_not_filled_again() -> None:
    assert filled("{value}", message(value=b"{key}")) == b"{key}\n"


def test_an_unknown_field_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"unknown field \{vlaue\} \(known: \{topic\} .*\{headers\}"
    ):
        line_template("{key} {vlaue}")


def test_null_and_bytes_that_are_not_utf8_are_readable() -> None:
    assert printable(None) == "null"
    assert printable(b"a\xff") == r"a\xff"
    assert headers_text(message(headers=[("a", b"1"), ("b", None)])) == "a=1,b=null"
