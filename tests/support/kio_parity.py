"""Compares our messages with kio, an independent codec generated from Kafka's own schemas.

For every version in kio, seeded random messages are written by ours and read by kio, compared field
by field, written by kio and compared byte for byte, and read by ours again. Both declarations are
compared too, so a field that only one side has, or that only one side lets be null, fails as well.
"""

import dataclasses
import importlib
import io
import re
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from odradek.protocol.apis import APIS, Api
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.schema import Field, FieldKind, fields_of

ROUNDS = 12
KioField = dataclasses.Field[object]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Renamed by Kafka after kio's schemas were taken, or by us in a struct that several APIs share.
OTHER_NAMES = {
    "acceptable_recovery_lag_legacy": ("acceptable_recovery_lag",),
    "generation_id_or_member_epoch": ("generation_id",),
    "name": ("topic", "topic_name"),
    "offset": ("start_offset",),
    "partition_index": ("partition_id",),
    "partitions": ("partition_indexes", "partition_result", "results_by_partition"),
    "error_code": ("partition_error_code",),
}
_INTEGER_BITS = {FieldKind.INT8: 8, FieldKind.INT16: 16, FieldKind.INT32: 32, FieldKind.INT64: 64}


def cases(*names: str) -> list[tuple[str, str, int]]:
    """(API, "Request" or "Response", version) of what both sides have, for parametrizing."""
    return [
        (api.name, side, version)
        for api in APIS.values()
        if api.name in names
        for side in ("Request", "Response")
        for version in range(api.min_version, api.max_version + 1)
        if kio_class(api.name, side, version) is not None
    ]


def kio_class(name: str, side: str, version: int) -> type | None:
    """kio's class of that message and version, or None if it has none."""
    folder = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{side.lower()}")
    except ModuleNotFoundError:
        return None
    found: type = getattr(module, name + side)
    return found


def check(name: str, side: str, version: int) -> None:
    """Compare both codecs on some random messages; the seed is the case, so it repeats."""
    api = next(api for api in APIS.values() if api.name == name)
    ours = api.request if side == "Request" else api.response
    theirs = kio_class(name, side, version)
    assert theirs is not None
    random = Random(f"{name} {side} {version}")
    for _ in range(ROUNDS):
        message = sample(random, ours, theirs, version)
        encoded = b"".join(_encode(api, side, version, message))
        entity: object
        entity, size = entity_reader(theirs)(encoded, 0)
        assert size == len(encoded), f"kio leaves bytes of {message}"
        assert _alike(message, entity, version), f"{message} is to kio {entity}"
        with io.BytesIO() as sink:
            entity_writer(theirs)(sink, entity)
            assert sink.getvalue() == encoded, f"kio writes {message} differently"
        assert _decode(api, side, version, encoded) == message


def _encode(api: Api, side: str, version: int, message: object) -> list[bytes | memoryview]:
    encode = encode_request if side == "Request" else encode_response
    return encode(api.key, version, message)


def _decode(api: Api, side: str, version: int, encoded: bytes) -> object:
    decode = decode_request if side == "Request" else decode_response
    return decode(api.key, version, memoryview(encoded))


def _pairs(ours: type, theirs: type, version: int) -> Iterator[tuple[Field, KioField]]:
    """Our fields of that version with kio's of the same name; kio drops the unit `_ms`."""
    known = {field.name: field for field in dataclasses.fields(theirs)}
    for field in fields_of(ours):
        if field.is_in(version):
            spellings = (
                field.name,
                field.name.removesuffix("_ms"),
                *OTHER_NAMES.get(field.name, ()),
            )
            name = next((spelling for spelling in spellings if spelling in known), "")
            assert name, f"kio's {theirs} has no {field.name}"
            yield field, known.pop(name)
    assert not known, f"our {ours.__name__} v{version} lacks {sorted(known)}"


def sample(random: Random, ours: type, theirs: type, version: int) -> object:
    """A random message of our class that kio can hold as well."""
    values = {}
    for field, kio_field in _pairs(ours, theirs, version):
        if field.tag is not None and random.random() < 0.4:
            continue
        values[field.name] = _value(random, field, kio_field, version)
    return ours(**values)


def _is_optional(kio_field: KioField) -> bool:
    return type(None) in typing.get_args(kio_field.type)


def _element(kio_field: KioField) -> type:
    """The struct class inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    inner: object = kio_field.type
    if isinstance(inner, types.UnionType):
        inner = next(part for part in inner.__args__ if part is not type(None))
    if typing.get_origin(inner) is tuple:
        inner = typing.get_args(inner)[0]
    assert isinstance(inner, type)
    return inner


def _value(random: Random, field: Field, kio_field: KioField, version: int) -> object:
    kafka_type = str(kio_field.metadata.get("kafka_type"))
    if kafka_type not in ("uuid", "datetime_i64") and field.tag is None:
        # There kio says None for zero and -1.
        assert field.is_nullable(version) == _is_optional(kio_field), f"nullability of {field}"
    if field.is_nullable(version) and random.random() < 0.3:
        return None
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        value = sample(random, field.element, _element(kio_field), version)
        while field.tag is not None and value == field.element():
            value = sample(random, field.element, _element(kio_field), version)
        return value
    if field.kind is FieldKind.ARRAY:
        count = random.choice((0, 1, 1, 2, 3))
        if isinstance(field.element, type):
            inner = _element(kio_field)
            return [sample(random, field.element, inner, version) for _ in range(count)]
        assert isinstance(field.element, FieldKind)
        count = random.choice((count, count, 130))
        return [_scalar(random, field.element, kafka_type) for _ in range(count)]
    if kafka_type == "datetime_i64" and _is_optional(kio_field) and random.random() < 0.3:
        return -1
    return _scalar(random, field.kind, kafka_type)


def _scalar(random: Random, kind: FieldKind, kafka_type: str) -> object:
    if kafka_type == "error_code":
        return int(random.choice(list(KioErrorCode)))
    if kafka_type == "datetime_i64":
        return random.choice((0, random.randrange(4 * 10**12)))
    if kafka_type == "timedelta_i64":
        return random.randrange(-(10**12), 10**12)
    if kind in _INTEGER_BITS:
        half = 1 << (_INTEGER_BITS[kind] - 1)
        return random.choice((-half, -1, 0, 1, half - 1, random.randrange(-half, half)))
    match kind:
        case FieldKind.BOOLEAN:
            return random.random() < 0.5
        case FieldKind.UINT16:
            return random.choice((0, 1, 9092, 32768, 65535))
        case FieldKind.FLOAT64:
            return random.choice((0.0, -1.5, 1e300, random.random()))
        case FieldKind.UUID:
            return random.choice((bytes(16), random.randbytes(16)))
        case FieldKind.STRING:
            return random.choice(("", "a", "topic", "größe", "\N{SNOWMAN}" * 50, "x" * 127))
        case FieldKind.BYTES:
            return random.randbytes(random.choice((0, 1, 126, 127, 128, 300)))
        case FieldKind.RECORDS:
            return memoryview(random.randbytes(random.choice((0, 1, 126, 127, 128, 300))))
        case _:
            raise AssertionError(kind)


def _alike(ours: object, theirs: object, version: int) -> bool:
    """Whether kio's value equals ours."""
    if isinstance(theirs, datetime):
        return bool(ours == round((theirs - _EPOCH) / timedelta(milliseconds=1)))
    if isinstance(theirs, timedelta):
        return bool(ours == round(theirs / timedelta(milliseconds=1)))
    if isinstance(theirs, UUID):
        return bool(ours == theirs.bytes)
    if isinstance(theirs, tuple):
        assert isinstance(ours, list)
        return len(ours) == len(theirs) and all(
            _alike(our, their, version) for our, their in zip(ours, theirs, strict=True)
        )
    if dataclasses.is_dataclass(theirs) and not isinstance(theirs, type):
        if ours is None:  # an absent tag, where kio holds a struct of defaults
            return bool(theirs == type(theirs)())
        return all(
            _alike(getattr(ours, field.name), getattr(theirs, kio_field.name), version)
            for field, kio_field in _pairs(type(ours), type(theirs), version)
        )
    if theirs is None:
        return ours in (None, bytes(16), -1)
    return ours == theirs
