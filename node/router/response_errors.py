"""The error codes in responses, counted by API: those of the whole response and those of its parts.

A function for each API is made from the declaration of its response at its first use. A response
without errors costs a look at each code. Called by dispatch.py for every response but long ones,
of which only the code of the whole is counted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from odradek.protocol.apis import APIS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schema import FieldKind, fields_of, is_struct

_CODE: Final = "error_code"
_Found = Callable[[int], None]
_Visit = Callable[[Any, _Found], None]
"""Calls the function with each error code of a struct that is not 0."""


class ResponseErrors:
    """See the module's docstring."""

    __slots__ = ("_visits", "counts")

    def __init__(self) -> None:
        self._visits: dict[int, tuple[_Visit, _Found]] = {}
        self.counts: dict[tuple[int, int], int] = {}
        """By API key and error code."""

    def count(self, api_key: int, response: Any) -> None:  # noqa: ANN401 - the API's response class
        """Count the errors of a response and of its parts."""
        visit, found = self._visits.get(api_key) or self._compile(api_key)
        visit(response, found)

    def codes(self, api_key: int, response: Any) -> frozenset[int]:  # noqa: ANN401 - as above
        """The error codes of a response and of its parts, which are not counted."""
        codes: set[int] = set()
        visit, _ = self._visits.get(api_key) or self._compile(api_key)
        visit(response, codes.add)
        return frozenset(codes)

    def _compile(self, api_key: int) -> tuple[_Visit, _Found]:
        visit = _visit_of(APIS[api_key].response) or _visit_nothing
        made = self._visits[api_key] = visit, partial(self.add, api_key)
        return made

    def count_whole(self, api_key: int, response: Any) -> None:  # noqa: ANN401 - the API's response class
        """Count the error of a whole response."""
        code = getattr(response, _CODE, 0)
        if code:
            self.add(api_key, code)

    def add(self, api_key: int, code: int) -> None:
        """One error."""
        key = api_key, int(code)
        self.counts[key] = self.counts.get(key, 0) + 1


def error_name(code: int) -> str:
    """The name of an error code, as a label value."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _visit_of(struct_class: type) -> _Visit | None:
    """None: neither the struct nor its parts have error codes."""
    has_code = False
    parts: list[tuple[str, bool, _Visit]] = []
    for field in fields_of(struct_class):
        if field.name == _CODE:
            has_code = True
        elif isinstance(field.element, type) and is_struct(field.element):
            visit = _visit_of(field.element)
            if visit is not None:
                parts.append((field.name, field.kind is FieldKind.ARRAY, visit))
    if len(parts) == 1 and not has_code and parts[0][1]:
        return _visit_array(parts[0][0], parts[0][2])
    if parts:
        return _visit_parts(tuple(parts), has_code=has_code)
    return _visit_code if has_code else None


def _visit_nothing(_struct: object, _found: _Found) -> None:
    """The response has no error codes."""


def _visit_code(struct: Any, found: _Found) -> None:  # noqa: ANN401 - any struct with the field
    if struct.error_code:
        found(struct.error_code)


def _visit_array(name: str, visit: _Visit) -> _Visit:
    """The most frequent kind: an array whose elements are looked at."""
    if visit is _visit_code:

        def visit_codes(struct: Any, found: _Found) -> None:  # noqa: ANN401 - as above
            for element in getattr(struct, name) or ():
                if element.error_code:
                    found(element.error_code)

        return visit_codes

    def visit_elements(struct: Any, found: _Found) -> None:  # noqa: ANN401 - as above
        for element in getattr(struct, name) or ():
            visit(element, found)

    return visit_elements


def _visit_parts(parts: tuple[tuple[str, bool, _Visit], ...], *, has_code: bool) -> _Visit:
    def visit_all(struct: Any, found: _Found) -> None:  # noqa: ANN401 - as above
        if has_code and struct.error_code:
            found(struct.error_code)
        for name, is_array, visit in parts:
            value = getattr(struct, name)
            if is_array:
                for element in value or ():
                    visit(element, found)
            elif value is not None:
                visit(value, found)

    return visit_all
