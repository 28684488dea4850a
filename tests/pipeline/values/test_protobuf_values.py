"""Protobuf values: bare ones of a descriptor set, and with a registry."""

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue, DecodedValues
from odradek.pipeline.values.protobuf_values import (
    ProtobufValues,
    descriptor_set_files,
    message_indexes,
    registered_files,
)
from odradek.pipeline.values.registry import RegisteredSchema, SchemaRegistry
from tests.support.protobuf_schemas import (
    INT64,
    MESSAGE,
    STRING,
    descriptor_set,
    file,
    message,
    served,
)
from tests.support.stand_in_schema_registry import StandInSchemaRegistry, running_registry

ID = ("id", 1, INT64)
NAME = ("name", 2, STRING)
ORDER = file("order.proto", message("Order", ID, NAME), message("Other", ID))
VALUE = b"\x08\x07\x12\x01a"


def decode(decoder: ProtobufValues, *values: bytes | None) -> DecodedValues:
    travelled = ForkingPickler.loads(ForkingPickler.dumps(decoder))
    assert isinstance(travelled, ProtobufValues)
    return travelled.decode(pa.array(values, pa.binary()))


@pytest.fixture
def registry() -> Iterator[StandInSchemaRegistry]:
    with running_registry() as running:
        yield running


def test_bare_messages_of_a_descriptor_set() -> None:
    files = descriptor_set_files(descriptor_set(ORDER), "order.desc")
    decoded = decode(
        ProtobufValues(files, "shop.Order"),
        *(VALUE, None, b"", VALUE + b"\x18\x01", b"\xff", VALUE[:-1], b"\x12\x01\xff"),
    )
    assert decoded.table.to_pylist() == [
        {"id": 7, "name": "a"},
        {"id": None, "name": None},
        {"id": 0, "name": ""},
        {"id": 7, "name": "a"},
    ]
    assert sorted(decoded.problems) == [4, 5, 6]
    assert decoded.problems[4].startswith("not a shop.Order: ")


def test_imports_of_others_and_of_google() -> None:
    place = file("place.proto", message("Place", ("city", 1, STRING)))
    fields = [
        ("to", 1, MESSAGE, {"type_name": ".shop.Place"}),
        ("at", 2, MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
    ]
    order = file(
        "order.proto",
        message("Order", *fields),
        imports=["place.proto", "google/protobuf/timestamp.proto"],
    )
    decoded = decode(ProtobufValues((place, order)), b"\x0a\x03\x0a\x01b\x12\x02\x08\x01")
    assert decoded.table["to"].to_pylist() == [{"city": "b"}]
    assert decoded.table["at"].cast(pa.int64()).to_pylist() == [1_000_000]


def test_what_a_registry_serves(registry: StandInSchemaRegistry) -> None:
    place = file("shop/place.proto", message("Place", ("city", 1, STRING)))
    registry.register("place", served(place))
    # The reference's name is what the importer calls the file.
    order = file(
        "order.proto",
        message("Order", ("to", 1, MESSAGE, {"type_name": ".shop.Place"})),
        imports=["place.proto"],
    )
    reference = {"name": "place.proto", "subject": "place", "version": 1}
    number = registry.register("o-value", served(order), [reference])
    source = SchemaRegistry(registry.url)
    decoder = ProtobufValues(
        registered_files(source.latest("o-value", serialized=True)), None, source
    )
    head = b"\0" + number.to_bytes(4, "big")
    decoded = decode(decoder, head + b"\0\x0a\x03\x0a\x01b", head + b"\x02\x00\x0a\x03\x0a\x01c")
    assert decoded.problems == {}
    assert decoded.table.to_pylist() == [{"to": {"city": "b"}}, {"to": {"city": "c"}}]
    assert all(path.endswith("format=serialized") for path in registry.requests)


def test_fields_of_newer_writers_are_left_out(registry: StandInSchemaRegistry) -> None:
    newer = file("order.proto", message("Order", ID, NAME))
    number = registry.register("o-value", served(newer))
    files = (file("order.proto", message("Order", ID)),)
    decoder = ProtobufValues(files, "shop.Order", SchemaRegistry(registry.url))
    decoded = decode(decoder, b"\0" + number.to_bytes(4, "big") + b"\0" + VALUE)
    assert decoded.table.to_pydict() == {"id": [7]}


def test_what_a_record_names_wrongly_is_its_own_problem(registry: StandInSchemaRegistry) -> None:
    number = registry.register("o-value", served(ORDER))
    text = registry.register("text", "not base64!")
    decoder = ProtobufValues((ORDER,), "shop.Order", SchemaRegistry(registry.url))
    head = b"\0" + number.to_bytes(4, "big")
    decoded = decode(
        decoder,
        *(head + b"\x02\x02" + VALUE, head + b"\x02\x08", b"\0\0\1\0\0\0", VALUE, head + b"\xc8"),
        b"\0" + text.to_bytes(4, "big") + b"\0",
    )
    assert decoded.good.to_pylist() == [False] * 6
    expected = [
        "a shop.Other (schema 1), where the columns are shop.Order",
        "schema 1 of the registry: the Protobuf schema has no message (4,)",
        "has no schema 65536",
        "not in the wire format",
        "ends within its message indexes",
        "schema 2 of the registry: the schema registry did not give a Protobuf schema",
    ]
    for index, text_of_problem in enumerate(expected):
        assert text_of_problem in decoded.problems[index]


def test_an_outage_of_the_registry_ends_the_work(registry: StandInSchemaRegistry) -> None:
    registry.refuse_with = 500
    decoder = ProtobufValues((ORDER,), "shop.Order", SchemaRegistry(registry.url))
    with pytest.raises(PipelineError, match="HTTP 500"):
        decode(decoder, b"\0\0\0\0\1\0")


@pytest.mark.parametrize(
    ("value", "indexes"),
    [(b"\0x", (0,)), (b"\x02\x00x", (0,)), (b"\x04\x02\x04x", (1, 2)), (b"\x02\xac\x02x", (150,))],
)
def test_message_indexes_are_zigzag_varints(value: bytes, indexes: tuple[int, ...]) -> None:
    assert message_indexes(value) == (indexes, b"x")


@pytest.mark.parametrize("value", [b"", b"\x02", b"\x01", b"\xff" * 9, b"\xfe\x7f"])
def test_broken_message_indexes_are_told(value: bytes) -> None:
    with pytest.raises(BadValue, match="message indexes"):
        message_indexes(value)


def test_wrong_schemas_are_told() -> None:
    with pytest.raises(PipelineError, match=r"o\.desc is no descriptor set; make one by protoc"):
        descriptor_set_files(b"syntax = 'proto3';", "o.desc")
    with pytest.raises(PipelineError, match=r"no message shop\.Lost .*shop\.Order, shop\.Other"):
        ProtobufValues((ORDER,), "shop.Lost")
    with pytest.raises(PipelineError, match="did not give a Protobuf schema"):
        registered_files(RegisteredSchema('syntax = "proto3";'))
    lacking = file("a.proto", message("A", ID), imports=["b.proto"])
    with pytest.raises(PipelineError, match="lacks an import"):
        ProtobufValues((lacking,))


def test_the_fingerprint_is_that_of_message_and_files() -> None:
    prints = {ProtobufValues((ORDER,), name).fingerprint() for name in ("shop.Order", "shop.Other")}
    assert len(prints) == 2
    assert ProtobufValues((ORDER,)).fingerprint() in prints
