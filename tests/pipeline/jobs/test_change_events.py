"""What values do to rows: whole rows and tombstones, and Debezium's envelopes."""

import json
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO

import fastavro
import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.change_events import (
    IS_DELETE,
    CompactedChanges,
    DebeziumJson,
    DebeziumRecords,
)
from odradek.pipeline.values.decoded_values import DecodedValues
from odradek.pipeline.values.value_format import ValueDecoder, value_format

ROW = "id BIGINT, name STRING"
ONE, TWO = {"id": 1, "name": "one"}, {"id": 2, "name": "two"}
NONE = {"id": None, "name": None}


def _decode(decoder: ValueDecoder, values: Sequence[bytes | None]) -> DecodedValues:
    found = decoder.decode(pa.array(values, pa.binary()))
    assert found.table.schema.names == decoder.columns().names
    assert len(found.table) == len(values) - len(found.problems)
    assert [index not in found.problems for index in range(len(values))] == found.good.to_pylist()
    return found


def _text(**envelope: object) -> bytes:
    return json.dumps(envelope).encode()


def test_rows_of_a_compacted_topic_and_its_tombstones() -> None:
    values = CompactedChanges(value_format("json", schema=ROW))

    found = _decode(values, [_text(**ONE), b"{", None, _text(**TWO)])

    assert found.table.to_pylist() == [
        {**ONE, IS_DELETE: False},
        {**NONE, IS_DELETE: True},
        {**TWO, IS_DELETE: False},
    ]
    assert list(found.problems) == [1]


def test_envelopes_in_json_with_and_without_their_schema() -> None:
    found = _decode(
        DebeziumJson(ROW),
        [
            _text(op="c", before=None, after=ONE, ts_ms=1),
            _text(schema={"type": "struct"}, payload={"op": "u", "before": ONE, "after": TWO}),
            _text(op="d", before=TWO, after=None),
            None,
            _text(op="r", after={"id": 1}),
        ],
    )

    assert found.table.to_pylist() == [
        {**ONE, IS_DELETE: False},
        {**TWO, IS_DELETE: False},
        {**NONE, IS_DELETE: True},
        {**NONE, IS_DELETE: True},
        {"id": 1, "name": None, IS_DELETE: False},
    ]
    assert found.problems == {}


def test_what_is_no_change_in_json_is_a_problem() -> None:
    found = _decode(
        DebeziumJson(ROW),
        [
            _text(op="t"),
            _text(**ONE),
            b"17",
            b"{",
            _text(op="c", after={"id": "x"}),
            _text(op="u", after=None),
        ],
    )

    assert found.problems[0] == "op: op is 't', which changes no row: c, r, u and d do"
    assert found.problems[1] == "no envelope of Debezium: it has no op"
    assert found.problems[2] == "no envelope of Debezium: it has no op"
    assert found.problems[3].startswith("not JSON: ")
    assert found.problems[4].startswith("after.id: ")
    assert 5 in found.problems


def test_decimals_in_json_are_exact() -> None:
    text = b'{"op": "c", "after": {"price": 12345678901234567.89}}'
    found = _decode(DebeziumJson("price DECIMAL(20,2)"), [text])

    assert found.table.column("price").to_pylist() == [Decimal("12345678901234567.89")]


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Row",
                    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
                },
            ],
        },
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ],
}


def _avro(op: str, after: object) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(
        out, fastavro.parse_schema(ENVELOPE), {"op": op, "before": None, "after": after}
    )
    return out.getvalue()


def test_envelopes_in_avro() -> None:
    decoder = DebeziumRecords(value_format("avro", schema=json.dumps(ENVELOPE)))

    found = _decode(
        decoder,
        [_avro("c", ONE), b"\xff\xff", _avro("d", None), None, _avro("m", None), _avro("u", TWO)],
    )

    assert found.table.to_pylist() == [
        {**ONE, IS_DELETE: False},
        {**NONE, IS_DELETE: True},
        {**NONE, IS_DELETE: True},
        {**TWO, IS_DELETE: False},
    ]
    assert set(found.problems) == {1, 4}
    assert found.problems[4] == "op: op is 'm', which changes no row: c, r, u and d do"


def test_a_schema_that_is_no_envelope_is_told() -> None:
    with pytest.raises(PipelineError, match=r"no envelope of Debezium \(after, op\)"):
        DebeziumRecords(value_format("json", schema=ROW))
