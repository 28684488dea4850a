"""Declarations of messages: one class for all versions of a message, with a specifier for each
field.

    @struct
    class PartitionProduceData:
        index: int = int32()
        records: memoryview | None = records(nullable_since=0)

A specifier declares the type of the field on the wire and its versions. To a type checker it has
the type of the field's value, so a message is an ordinary class with keyword arguments and a
default for each of them; `struct` creates the slots and the constructor. Versions are those of the
message, in nested structs too, and `until` is inclusive as in Kafka's schemas. Fields are in wire
order, after those of a base class. Tagged fields follow all others, wherever they are declared.

`encoding` and `decoding` compile functions from the declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, TypedDict, TypeVar, Unpack, cast, dataclass_transform, overload

from odradek.protocol.types import ZERO_UUID, Uuid

T = TypeVar("T")
S = TypeVar("S")

NEWEST: Final = 1 << 15
"""Larger than any version: the `until` of a field that was never removed."""


class FieldKind(Enum):
    """The types of values on the wire. Those of fixed size have their struct code as value."""

    BOOLEAN = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UINT16 = "H"
    FLOAT64 = "d"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"
    ARRAY = "array"


_VARIABLE_SIZE: Final = {
    FieldKind.STRING,
    FieldKind.BYTES,
    FieldKind.RECORDS,
    FieldKind.STRUCT,
    FieldKind.ARRAY,
}
FIXED_SIZE: Final = frozenset(FieldKind) - _VARIABLE_SIZE


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
Scalar = int | float | str | bytes | memoryview | None


class Versions(TypedDict, total=False):
    """Options of all specifiers. Without them a field is in the body of all versions.

    A field with a `tag` is in the tagged section, and only if it differs from its default. A field
    that is not `ignorable` must hold its default in messages of versions that lack it. Besides
    Kafka's ignorable fields, optional information in responses is ignorable, so that handlers can
    set it in all versions.
    """

    since: int
    until: int
    tag: int
    ignorable: bool


@dataclasses.dataclass(slots=True, kw_only=True)
class Field:
    """One declared field.

    `element` is the class of a STRUCT, and for an ARRAY the class or kind of its elements. The
    `default` is None for null, `()` for a new empty list or a new struct of defaults.
    """

    kind: FieldKind
    default: Scalar | tuple[()]
    element: type | FieldKind | None = None
    since: int = 0
    until: int = NEWEST
    nullable_since: int = NEWEST
    tag: int | None = None
    ignorable: bool = False
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def is_in(self, version: int) -> bool:
        """Whether `version` has the field, in the body or as a tag."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Whether the field may be null on the wire in `version`."""
        return version >= self.nullable_since


class Specifier(Generic[T]):
    """Declares fields of one scalar kind. Without a call it is the element of an array."""

    __slots__ = ("kind", "zero")

    def __init__(self, kind: FieldKind, zero: T) -> None:
        self.kind = kind
        self.zero = zero

    @overload
    def __call__(self, *, default: T = ..., **versions: Unpack[Versions]) -> T: ...

    @overload
    def __call__(
        self, *, nullable_since: int, default: T | None = ..., **versions: Unpack[Versions]
    ) -> T | None: ...

    def __call__(
        self,
        *,
        default: T | _Unset | None = UNSET,
        nullable_since: int = NEWEST,
        **versions: Unpack[Versions],
    ) -> T | None:
        value = self.zero if default is UNSET else default
        field = Field(
            kind=self.kind,
            default=cast("Scalar", value),
            nullable_since=nullable_since,
            **versions,
        )
        return cast("T", field)


boolean: Final = Specifier[bool](FieldKind.BOOLEAN, False)
int8: Final = Specifier[int](FieldKind.INT8, 0)
int16: Final = Specifier[int](FieldKind.INT16, 0)
int32: Final = Specifier[int](FieldKind.INT32, 0)
int64: Final = Specifier[int](FieldKind.INT64, 0)
uint16: Final = Specifier[int](FieldKind.UINT16, 0)
float64: Final = Specifier[float](FieldKind.FLOAT64, 0.0)
uuid: Final = Specifier[Uuid](FieldKind.UUID, ZERO_UUID)
string: Final = Specifier[str](FieldKind.STRING, "")
binary: Final = Specifier[bytes](FieldKind.BYTES, b"")
records: Final = Specifier[memoryview](FieldKind.RECORDS, memoryview(b""))
"""Record batches: decoded to a view of the frame, encoded from `RecordBuffers` without a copy."""


@overload
def array(element: Specifier[S] | type[S], **versions: Unpack[Versions]) -> list[S]: ...


@overload
def array(
    element: Specifier[S] | type[S],
    *,
    nullable_since: int,
    default: tuple[()] | None = ...,
    **versions: Unpack[Versions],
) -> list[S] | None: ...


def array(
    element: Specifier[S] | type[S],
    *,
    nullable_since: int = NEWEST,
    default: tuple[()] | None = (),
    **versions: Unpack[Versions],
) -> list[S] | None:
    """A list of structs or scalars; by default a new empty one, or null if `default` is None."""
    field = Field(
        kind=FieldKind.ARRAY,
        element=element.kind if isinstance(element, Specifier) else element,
        default=default,
        nullable_since=nullable_since,
        **versions,
    )
    return cast("list[S] | None", field)


def nested(element: type[S], **versions: Unpack[Versions]) -> S:
    """A struct that is never null; by default one with the defaults of all its fields."""
    return cast("S", Field(kind=FieldKind.STRUCT, element=element, default=(), **versions))


def optional(
    element: type[S], *, nullable_since: int = NEWEST, **versions: Unpack[Versions]
) -> S | None:
    """A nullable or tagged struct, by default None.

    For an absent tag Kafka's classes have a struct of defaults. None means the same and needs no
    memory.
    """
    field = Field(
        kind=FieldKind.STRUCT,
        element=element,
        default=None,
        nullable_since=nullable_since,
        **versions,
    )
    return cast("S | None", field)


_FIELDS: dict[type, tuple[Field, ...]] = {}


def fields_of(struct_class: type) -> tuple[Field, ...]:
    """The declared fields of a class made by `struct`, in wire order."""
    return _FIELDS[struct_class]


def is_struct(kind: type) -> bool:
    """Whether this is a class made by `struct`."""
    return kind in _FIELDS


def has_records(struct_class: type) -> bool:
    """Whether the message has record batches anywhere, in any version."""
    return any(
        field.kind is FieldKind.RECORDS
        or (isinstance(field.element, type) and has_records(field.element))
        for field in fields_of(struct_class)
    )


@dataclass_transform(kw_only_default=True)
def struct(declaration: type[T]) -> type[T]:
    """Turn a declaration into a mutable dataclass with slots and a keyword-only constructor.

    The constructor is compiled at its first use: a process uses few of some 400 classes.
    """
    own = [value for value in vars(declaration).values() if isinstance(value, Field)]
    for field in own:
        default: object
        if field.default == () and field.kind is FieldKind.ARRAY:
            default = dataclasses.field(default_factory=list)
        elif field.default == () and field.kind is FieldKind.STRUCT:
            default = dataclasses.field(default_factory=cast("type[object]", field.element))
        else:
            default = dataclasses.field(default=cast("object", field.default))
        setattr(declaration, field.name, default)
    make = dataclasses.dataclass(slots=True, kw_only=True, init=False, repr=False, eq=False)
    made = make(declaration)
    for name, method in _METHODS.items():
        setattr(made, name, method)
    inherited = (field for base in declaration.__bases__ for field in _FIELDS.get(base, ()))
    _FIELDS[made] = (*inherited, *own)
    return made


def _compile_constructor(struct_class: type) -> Callable[..., None]:
    parameters = []
    lines = []
    names: dict[str, object] = {"UNSET": UNSET}
    for field in fields_of(struct_class):
        name = field.name
        if field.default == () and field.kind in (FieldKind.ARRAY, FieldKind.STRUCT):
            fresh = "[]" if field.kind is FieldKind.ARRAY else f"new_{name}()"
            names[f"new_{name}"] = field.element
            parameters.append(f"{name}=UNSET")
            lines.append(f" self.{name} = {fresh} if {name} is UNSET else {name}")
        else:
            names[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
            lines.append(f" self.{name} = {name}")
    signature = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    exec("\n".join([f"def __init__({signature}):", *lines, " pass"]), names)
    return cast("Callable[..., None]", names["__init__"])


def _first_construction(self: object, **values: object) -> None:
    struct_class = type(self)
    constructor = _compile_constructor(struct_class)
    type.__setattr__(struct_class, "__init__", constructor)
    constructor(self, **values)


def _equal(self: object, other: object) -> bool:
    if type(other) is not type(self):
        return False
    names = (field.name for field in fields_of(type(self)))
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _represent(self: object) -> str:
    names = (field.name for field in fields_of(type(self)))
    inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__name__}({inside})"


_METHODS: Final[dict[str, object]] = {
    "__init__": _first_construction,
    "__eq__": _equal,
    "__hash__": None,
    "__repr__": _represent,
}
