"""The formats by their names, with schemas from texts, files and a registry."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.value_format import value_format
from tests.support.protobuf_schemas import INT64, descriptor_set, file, message, served
from tests.support.stand_in_schema_registry import StandInSchemaRegistry, running_registry

AVRO = json.dumps({"type": "record", "name": "a", "fields": [{"name": "id", "type": "long"}]})
PROTO = file("a.proto", message("A", ("id", 1, INT64)))
JSON_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
COLUMNS = pa.schema([("id", pa.int64())])


@pytest.fixture
def registry() -> Iterator[StandInSchemaRegistry]:
    with running_registry() as running:
        yield running


def test_raw_needs_nothing() -> None:
    assert value_format("raw").columns() == pa.schema([("kafka_value", pa.binary())])


def test_schemas_as_texts() -> None:
    assert value_format("json", schema="id BIGINT").columns() == COLUMNS
    assert value_format("json", schema=JSON_SCHEMA).columns() == COLUMNS
    assert value_format("avro", schema=AVRO).columns() == COLUMNS


def test_schemas_in_files(tmp_path: Path) -> None:
    for name, content in (("a.ddl", b"id BIGINT\n"), ("a.avsc", AVRO.encode())):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.desc").write_bytes(descriptor_set(PROTO))
    assert value_format("json", schema=str(tmp_path / "a.ddl")).columns() == COLUMNS
    assert value_format("avro", schema=str(tmp_path / "a.avsc")).columns() == COLUMNS
    decoder = value_format("protobuf", schema=str(tmp_path / "a.desc"), message="shop.A")
    assert decoder.columns() == COLUMNS


@pytest.mark.parametrize(
    ("kind", "schema", "body"),
    [
        ("json", JSON_SCHEMA, b'{"id": 7}'),
        ("avro", AVRO, b"\x0e"),
        ("protobuf", served(PROTO), b"\0\x08\x07"),
    ],
)
def test_the_newest_schema_of_a_subject(
    registry: StandInSchemaRegistry, kind: str, schema: str, body: bytes
) -> None:
    number = registry.register("o-value", schema)
    decoder = value_format(kind, registry_url=registry.url, subject="o-value")
    assert decoder.columns() == COLUMNS
    value = b"\0" + number.to_bytes(4, "big") + body
    decoded = decoder.decode(pa.array([value, None], pa.binary()))
    assert decoded.table.to_pydict() == {"id": [7, None]}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"kind": "csv"}, "'csv'; it is one of raw, json, avro, protobuf"),
        ({"kind": "json"}, "json needs value.schema"),
        ({"kind": "avro"}, "avro needs value.schema"),
        ({"kind": "avro", "registry_url": "http://127.0.0.1:1"}, "avro needs value.schema"),
        ({"kind": "protobuf"}, "protobuf needs value.schema"),
        ({"kind": "protobuf", "schema": "a.desc"}, "needs value.message"),
        ({"kind": "json", "schema": "id INT, ID INT"}, "the column ID twice"),
        ({"kind": "json", "schema": "lost.ddl"}, "lost.ddl cannot be read"),
    ],
)
def test_what_is_missing_is_told(arguments: dict[str, str], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        value_format(**arguments)
