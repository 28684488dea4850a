"""The largest requests that a broker takes, of any API, made from the declarations alone.

The numbers, names and ids in them are those of a topic that exists, where a field means a topic.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from odradek.protocol.apis import Api
from odradek.protocol.codec import encode_request
from odradek.protocol.schema import Field, FieldKind, fields_of

T = TypeVar("T")

_TOPIC_NAMES: Final = frozenset({"topic", "topic_name"})
_PARTITIONS: Final = frozenset({"partition", "partition_index"})
_INTEGERS: Final = frozenset(
    {FieldKind.INT8, FieldKind.INT16, FieldKind.INT32, FieldKind.INT64, FieldKind.UINT16}
)


@dataclass
class RequestFiller:
    """Fills one array of a request with `count` elements, and every other array with one.

    Strings of elements are all different, unless they name the topic; partitions go around.
    """

    topic: str
    topic_id: bytes
    partition_count: int
    values: dict[str, object] = field(default_factory=dict)
    """Fields that have these values wherever they occur."""
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def request(self, api: Api, version: int, path: tuple[str, ...], count: int) -> object:
        """A request whose array at `path` has `count` elements."""
        return self._message(api.request, version, path, count)

    def _message(self, struct_class: type[T], version: int, path: tuple[str, ...], count: int) -> T:
        values: dict[str, object] = {}
        for declared in fields_of(struct_class):
            if not declared.is_in(version) or declared.tag is not None:
                continue
            if declared.kind is FieldKind.ARRAY and declared.name not in self.values:
                is_on_path = bool(path) and path[0] == declared.name
                if is_on_path or not declared.is_nullable(version):
                    elements = count if is_on_path and len(path) == 1 else 1
                    below = path[1:] if is_on_path else ()
                    values[declared.name] = self._elements(
                        declared, version, below, count, elements
                    )
            else:
                value = self._value(declared, is_element=path == ())
                if value is not None:
                    values[declared.name] = value
        return struct_class(**values)

    def _elements(
        self, declared: Field, version: int, path: tuple[str, ...], count: int, elements: int
    ) -> list[object]:
        if isinstance(declared.element, type):
            return [self._message(declared.element, version, path, count) for _ in range(elements)]
        if declared.element in _INTEGERS:
            return [number % self.partition_count for number in range(elements)]
        if declared.element is FieldKind.UUID:
            return [self.topic_id for _ in range(elements)]
        return [f"name-{next(self._serial)}" for _ in range(elements)]

    def _value(self, declared: Field, *, is_element: bool) -> object:
        name = declared.name
        if name in self.values:
            return self.values[name]
        if declared.kind is FieldKind.UUID and name == "topic_id":
            return self.topic_id
        if name in _PARTITIONS:
            return next(self._serial) % self.partition_count
        if declared.kind is FieldKind.STRING and name in _TOPIC_NAMES:
            return self.topic
        if declared.kind is FieldKind.STRING:
            # A topic that has more than one partition named must exist.
            return f"name-{next(self._serial)}" if is_element else self.topic
        return None


def array_paths(struct_class: type, version: int) -> Iterator[tuple[str, ...]]:
    """The arrays of a message in this version, as paths of field names, outer ones first."""
    nested = []
    for declared in fields_of(struct_class):
        if declared.kind is FieldKind.ARRAY and declared.is_in(version) and declared.tag is None:
            yield (declared.name,)
            if isinstance(declared.element, type):
                nested += [
                    (declared.name, *path) for path in array_paths(declared.element, version)
                ]
    yield from nested


def largest_request(
    api: Api,
    version: int,
    path: tuple[str, ...],
    filler: RequestFiller,
    *,
    bytes_max: int,
    elements_max: int,
) -> object:
    """The request with as many elements at `path` as fit into `bytes_max`, and as are allowed:
    `elements_max` in all of its arrays together."""
    few, many = (filler.request(api, version, path, count) for count in (100, 200))
    sizes = [sum(map(len, encode_request(api.key, version, request))) for request in (few, many)]
    elements = element_count(few), element_count(many)
    by_bytes = 100 + (bytes_max - sizes[0]) * 100 // (sizes[1] - sizes[0])
    by_elements = 100 + (elements_max - elements[0]) * 100 // (elements[1] - elements[0])
    return filler.request(api, version, path, min(int(by_bytes * 0.97), by_elements))


def element_count(message: object) -> int:
    """The elements of all arrays of a message."""
    count = 0
    for declared in fields_of(type(message)):
        if declared.kind is FieldKind.ARRAY:
            elements = getattr(message, declared.name) or ()
            count += len(elements)
            if isinstance(declared.element, type):
                count += sum(map(element_count, elements))
    return count
