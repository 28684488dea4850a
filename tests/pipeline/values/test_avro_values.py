"""Avro values: bare, and with a registry, whose schemas evolve."""

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from multiprocessing.reduction import ForkingPickler

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.avro_values import AvroValues
from odradek.pipeline.values.decoded_values import DecodedValues
from odradek.pipeline.values.registry import RegisteredSchema, SchemaRegistry
from tests.support.stand_in_schema_registry import StandInSchemaRegistry, running_registry


def record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "shop.Order", "fields": fields})


ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
PRICE = {
    "name": "price",
    "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    "default": "\u0064",
}


def written(schema: str, value: object, *, schema_id: int | None = None) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(schema)), value)
    head = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    return head + stream.getvalue()


def decode(decoder: AvroValues, *values: bytes | None) -> DecodedValues:
    travelled = ForkingPickler.loads(ForkingPickler.dumps(decoder))
    assert isinstance(travelled, AvroValues)
    return travelled.decode(pa.array(values, pa.binary()))


@pytest.fixture
def registry() -> Iterator[StandInSchemaRegistry]:
    with running_registry() as served:
        yield served


def test_bare_values_of_one_schema() -> None:
    schema = record(ID, NAME, PRICE)
    good = written(schema, {"id": 1, "name": "a", "price": Decimal("1.5")})
    too_precise = good[:-3] + b"\x06\x7f\xff\xff"
    decoded = decode(
        AvroValues(RegisteredSchema(schema)),
        *(good, None, b"", good + b"\0", good[:-1], too_precise, b"\xff" * 20),
    )
    assert decoded.table.to_pylist() == [
        {"id": 1, "name": "a", "price": Decimal("1.50")},
        {"id": None, "name": None, "price": None},
    ]
    assert sorted(decoded.problems) == [2, 3, 4, 5, 6]
    assert decoded.problems[3] == "not a value of its Avro schema: 1 bytes are left over"
    assert decoded.problems[5].startswith("price: ")


def test_each_value_is_read_by_the_schema_that_it_names(registry: StandInSchemaRegistry) -> None:
    old, new = record(ID, {"name": "gone", "type": "int"}), record(ID, NAME, PRICE)
    first, second = registry.register("o-value", old), registry.register("o-value", new)
    source = SchemaRegistry(registry.url)
    decoder = AvroValues(source.latest("o-value"), source)
    decoded = decode(
        decoder,
        written(old, {"id": 1, "gone": 9}, schema_id=first),
        written(new, {"id": 2, "name": "b", "price": Decimal("2.25")}, schema_id=second),
    )
    assert decoded.problems == {}
    assert decoded.table.to_pylist() == [
        {"id": 1, "name": None, "price": Decimal("1.00")},
        {"id": 2, "name": "b", "price": Decimal("2.25")},
    ]


def test_columns_stay_when_writers_are_newer(registry: StandInSchemaRegistry) -> None:
    new = record(ID, NAME)
    number = registry.register("o-value", new)
    decoder = AvroValues(RegisteredSchema(record(ID)), SchemaRegistry(registry.url))
    decoded = decode(decoder, written(new, {"id": 1, "name": "b"}, schema_id=number))
    assert decoded.table.to_pydict() == {"id": [1]}


def test_what_a_record_names_wrongly_is_its_own_problem(registry: StandInSchemaRegistry) -> None:
    other = json.dumps({"type": "record", "name": "o", "fields": [{"name": "x", "type": "string"}]})
    numbers = [registry.register("o-value", text) for text in (other, "not avro")]
    decoder = AvroValues(RegisteredSchema(record(ID)), SchemaRegistry(registry.url))
    decoded = decode(
        decoder,
        written(other, {"x": "a"}, schema_id=numbers[0]),
        b"\0" + numbers[1].to_bytes(4, "big"),
        b"\0\0\0\x10\x00rest",
        b"plain",
    )
    assert decoded.good.to_pylist() == [False] * 4
    assert "does not fit the columns" in decoded.problems[0]
    assert "schema 2 of the registry" in decoded.problems[1]
    assert "has no schema 4096" in decoded.problems[2]
    assert "not in the wire format" in decoded.problems[3]


def test_an_outage_of_the_registry_ends_the_work(registry: StandInSchemaRegistry) -> None:
    registry.refuse_with = 500
    decoder = AvroValues(RegisteredSchema(record(ID)), SchemaRegistry(registry.url))
    with pytest.raises(PipelineError, match="HTTP 500"):
        decode(decoder, b"\0\0\0\0\1\2")


def test_schemas_that_refer_to_others(registry: StandInSchemaRegistry) -> None:
    place = json.dumps(
        {"type": "record", "name": "shop.Place", "fields": [{"name": "city", "type": "string"}]}
    )
    registry.register("place", place)
    order = record(ID, {"name": "to", "type": "shop.Place"})
    number = registry.register(
        "o-value", order, [{"name": "shop.Place", "subject": "place", "version": 1}]
    )
    source = SchemaRegistry(registry.url)
    value = b"\0" + number.to_bytes(4, "big") + b"\x02\x08Bern"
    decoded = decode(AvroValues(source.latest("o-value"), source), value)
    assert decoded.table.to_pylist() == [{"id": 1, "to": {"city": "Bern"}}]


@pytest.mark.parametrize(
    "schema", ["{", "{}", '{"type": "enum", "name": "a"}', record({"name": "a", "type": "b"})]
)
def test_a_schema_that_is_none_is_told(schema: str) -> None:
    with pytest.raises(PipelineError, match="the Avro schema"):
        AvroValues(RegisteredSchema(schema))


def test_the_fingerprint_is_that_of_the_schema() -> None:
    spaced = json.dumps(json.loads(record(ID)), indent=4)
    assert (
        AvroValues(RegisteredSchema(record(ID))).fingerprint()
        == AvroValues(RegisteredSchema(spaced)).fingerprint()
        != AvroValues(RegisteredSchema(record(ID, NAME))).fingerprint()
    )
