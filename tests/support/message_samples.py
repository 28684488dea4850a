"""Random messages of any class and version, made from the declarations alone."""

from collections.abc import Iterator
from random import Random
from typing import Final

from hypothesis import strategies as st

from odradek.protocol.apis import APIS, Api
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.schema import Field, FieldKind, fields_of

BITS: Final = {FieldKind.INT8: 8, FieldKind.INT16: 16, FieldKind.INT32: 32, FieldKind.INT64: 64}
SIDES: Final = ("Request", "Response")


def message_class(api: Api, side: str) -> type:
    """The class of an API's request or response."""
    return api.request if side == "Request" else api.response


def encode(api: Api, side: str, version: int, message: object) -> bytes:
    """A message's body in one piece."""
    encode_body = encode_request if side == "Request" else encode_response
    return b"".join(encode_body(api.key, version, message))


def decode(api: Api, side: str, version: int, body: bytes) -> object:
    """The message in a body."""
    decode_body = decode_request if side == "Request" else decode_response
    return decode_body(api.key, version, memoryview(body))


def every_version() -> Iterator[tuple[Api, str, int]]:
    """All APIs and versions of the table."""
    for api in APIS.values():
        for side in SIDES:
            for version in range(api.min_version, api.max_version + 1):
                yield api, side, version


def random_message(random: Random, struct_class: type, version: int) -> object:
    """A message with every field of the version at some value; absent fields keep defaults."""
    values = {}
    for field in fields_of(struct_class):
        if field.is_in(version) and (field.tag is None or random.random() < 0.6):
            values[field.name] = _random_value(random, field, version)
    return struct_class(**values)


def _random_value(random: Random, field: Field, version: int) -> object:
    if field.is_nullable(version) and random.random() < 0.3:
        return None
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        value = random_message(random, field.element, version)
        # A tagged struct that equals its default is not written, hence read as None.
        return None if field.tag is not None and value == field.element() else value
    if field.kind is FieldKind.ARRAY:
        count = random.choice((0, 1, 1, 2, 3))
        if isinstance(field.element, type):
            return [random_message(random, field.element, version) for _ in range(count)]
        assert isinstance(field.element, FieldKind)
        return [_random_scalar(random, field.element) for _ in range(count)]
    return _random_scalar(random, field.kind)


def _random_scalar(random: Random, kind: FieldKind) -> object:
    if kind in BITS:
        half = 1 << (BITS[kind] - 1)
        return random.choice((-half, -1, 0, 1, half - 1, random.randrange(-half, half)))
    match kind:
        case FieldKind.BOOLEAN:
            return random.random() < 0.5
        case FieldKind.UINT16:
            return random.randrange(1 << 16)
        case FieldKind.FLOAT64:
            return random.uniform(-1e9, 1e9)
        case FieldKind.UUID:
            return random.randbytes(16)
        case FieldKind.STRING:
            return random.choice(("", "a", "größe", "x" * 127, "topic"))
        case FieldKind.RECORDS:
            return memoryview(random.randbytes(random.choice((0, 1, 127, 200))))
        case _:
            return random.randbytes(random.choice((0, 1, 127, 200)))


@st.composite
def messages(draw: st.DrawFn, struct_class: type, version: int) -> object:
    """A hypothesis strategy of the same messages."""
    values = {}
    for field in fields_of(struct_class):
        if field.is_in(version):
            values[field.name] = draw(_values(field, version))
    return struct_class(**values)


def _values(field: Field, version: int) -> st.SearchStrategy[object]:
    strategy: st.SearchStrategy[object]
    if field.kind is FieldKind.STRUCT:
        assert isinstance(field.element, type)
        strategy = messages(field.element, version)
        if field.tag is not None:
            default = field.element()
            strategy = strategy.map(lambda value: None if value == default else value)
    elif field.kind is FieldKind.ARRAY:
        if isinstance(field.element, type):
            strategy = st.lists(messages(field.element, version), max_size=2)
        else:
            assert isinstance(field.element, FieldKind)
            strategy = st.lists(_scalars(field.element), max_size=4)
    else:
        strategy = _scalars(field.kind)
    return st.none() | strategy if field.is_nullable(version) else strategy


def _scalars(kind: FieldKind) -> st.SearchStrategy[object]:
    if kind in BITS:
        half = 1 << (BITS[kind] - 1)
        return st.integers(-half, half - 1)
    match kind:
        case FieldKind.BOOLEAN:
            return st.booleans()
        case FieldKind.UINT16:
            return st.integers(0, (1 << 16) - 1)
        case FieldKind.FLOAT64:
            return st.floats(allow_nan=False)
        case FieldKind.UUID:
            return st.binary(min_size=16, max_size=16)
        case FieldKind.STRING:
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
        case FieldKind.RECORDS:
            return st.binary(max_size=200).map(memoryview)
        case _:
            return st.binary(max_size=200)
