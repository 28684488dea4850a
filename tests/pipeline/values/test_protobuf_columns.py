"""Protobuf messages as columns."""

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from google.protobuf.message_factory import GetMessageClass

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue
from odradek.pipeline.values.protobuf_columns import protobuf_columns
from tests.support.protobuf_schemas import (
    BOOL,
    BYTES,
    ENUM,
    INT32,
    INT64,
    MESSAGE,
    REPEATED,
    STRING,
    UINT32,
    UINT64,
    file,
    message,
)

IMPORTS = [f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers", "struct")]


def typed(name: str, **more: object) -> Mapping[str, object]:
    return {"type_name": name, **more}


def order_descriptor() -> Any:  # noqa: ANN401  # protobuf has no types
    from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2

    entry = message(
        "TagsEntry",
        ("key", 1, STRING),
        ("value", 2, INT32),
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    order = message(
        "Order",
        ("id", 1, INT64),
        ("huge", 2, UINT64),
        ("large", 3, UINT32),
        ("name", 4, STRING, {"proto3_optional": True, "oneof_index": 0}),
        ("data", 5, BYTES),
        ("paid", 6, BOOL),
        ("state", 7, ENUM, typed(".shop.State")),
        ("lines", 8, MESSAGE, typed(".shop.Line", label=REPEATED)),
        ("tags", 9, MESSAGE, typed(".shop.Order.TagsEntry", label=REPEATED)),
        ("at", 10, MESSAGE, typed(".google.protobuf.Timestamp")),
        ("limit", 11, MESSAGE, typed(".google.protobuf.Int64Value")),
        ("more", 12, MESSAGE, typed(".google.protobuf.Struct")),
        nested_type=[entry],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_name")],
    )
    line = message("Line", ("count", 1, INT32))
    state = descriptor_pb2.EnumDescriptorProto(
        name="State",
        value=[descriptor_pb2.EnumValueDescriptorProto(name="OPEN", number=0)],
    )
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file("o.proto", order, line, imports=IMPORTS, enum_type=[state]))
    return pool.FindMessageTypeByName("shop.Order")


def row_of(value: Mapping[str, object]) -> dict[str, object]:
    descriptor = order_descriptor()
    columns, convert = protobuf_columns(descriptor)
    parsed = json_format.ParseDict(value, GetMessageClass(descriptor)())
    return dict(zip(columns.names, convert(parsed), strict=True))


def test_types() -> None:
    columns, _ = protobuf_columns(order_descriptor())
    assert columns == pa.schema(
        [
            ("id", pa.int64()),
            ("huge", pa.decimal128(20, 0)),
            ("large", pa.int64()),
            ("name", pa.string()),
            ("data", pa.binary()),
            ("paid", pa.bool_()),
            ("state", pa.string()),
            ("lines", pa.list_(pa.struct([("count", pa.int32())]))),
            ("tags", pa.map_(pa.string(), pa.int32())),
            ("at", pa.timestamp("us", tz="UTC")),
            ("limit", pa.int64()),
            ("more", pa.string()),
        ]
    )


def test_an_empty_message_has_defaults_and_null_where_presence_is_known() -> None:
    assert row_of({}) == {
        "id": 0,
        "huge": Decimal(0),
        "large": 0,
        "name": None,
        "data": b"",
        "paid": False,
        "state": "OPEN",
        "lines": [],
        "tags": [],
        "at": None,
        "limit": None,
        "more": None,
    }


def test_values() -> None:
    row = row_of(
        {
            "huge": 2**64 - 1,
            "large": 2**32 - 1,
            "name": "",
            "state": 7,
            "lines": [{"count": 1}, {}],
            "tags": {"b": 1, "a": 2},
            "at": "1970-01-01T00:00:01.0000025Z",
            "limit": 0,
            "more": {"b": 1, "a": [True]},
        }
    )
    assert row["huge"] == Decimal(2**64 - 1)
    assert row["large"] == 2**32 - 1
    assert row["name"] == ""
    assert row["state"] == "7"
    assert row["lines"] == [(1,), (0,)]
    assert row["tags"] == [("a", 2), ("b", 1)]
    assert row["at"] == 1_000_002
    assert row["limit"] == 0
    assert row["more"] == '{"a": [true], "b": 1.0}'


def test_a_time_that_nobody_can_read_is_bad() -> None:
    descriptor = order_descriptor()
    _, convert = protobuf_columns(descriptor)
    order = GetMessageClass(descriptor)()
    order.at.seconds = 2**62
    with pytest.raises(BadValue, match=r"^at: .* outside of the years"):
        convert(order)
    order.Clear()
    order.more["a"] = struct.unpack("d", b"\xff" * 8)[0]
    with pytest.raises(BadValue, match=r"^more: "):
        convert(order)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("next", 1, MESSAGE, typed(".shop.Node"))], r"shop\.Node\.next is shop\.Node within"),
        ([("none", 1, MESSAGE, typed(".shop.None"))], "has no fields"),
    ],
)
def test_what_no_table_can_hold_is_told(fields: list[Any], problem: str) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file("n.proto", message("Node", *fields), message("None")))
    with pytest.raises(PipelineError, match=problem):
        protobuf_columns(pool.FindMessageTypeByName("shop.Node"))
