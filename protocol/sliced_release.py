"""Frees large messages a slice at a time: to free 200,000 objects at once takes 30 ms."""

from collections.abc import Generator
from typing import Final

from odradek.protocol.schema import FieldKind, fields_of, is_struct

_ELEMENTS_PER_SLICE: Final = 1_000

_array_names: dict[type, tuple[str, ...]] = {}


def release_in_slices(messages: list[object]) -> Generator[None, None, None]:
    """Free the messages that nothing but this list holds, with all that is in them; the list is
    empty then. A generator that yields about every millisecond.

    Nothing in a message is changed: parts that others hold as well stay what they are.
    """
    at = 0
    while at < len(messages):
        stop = min(at + _ELEMENTS_PER_SLICE, len(messages))
        for message in messages[at:stop]:
            for name in _arrays_of(type(message)):
                messages += getattr(message, name) or ()
        del message
        at = stop
        yield
    # Whatever holds others goes first, so that each slice frees no more than its own elements.
    messages.reverse()
    while messages:
        del messages[-_ELEMENTS_PER_SLICE:]
        yield


def _arrays_of(kind: type) -> tuple[str, ...]:
    """The names of the array fields of a message; none if it is an element of another kind."""
    names = _array_names.get(kind)
    if names is None:
        declared = fields_of(kind) if is_struct(kind) else ()
        names = tuple(field.name for field in declared if field.kind is FieldKind.ARRAY)
        _array_names[kind] = names
    return names
