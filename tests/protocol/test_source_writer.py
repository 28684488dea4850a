import pytest

from odradek.protocol.primitives import ARRAY_STRUCTS
from odradek.protocol.schema import FieldKind
from odradek.protocol.source_writer import SourceWriter


def test_blocks_are_indented_and_names_are_global() -> None:
    source = SourceWriter(offset=3)
    total = source.fresh("n")
    source.emit(f"{total} = offset")
    with source.block("for value in values:"):
        with source.block("if value > 0:"):
            source.emit(f"{total} += value")
        source.emit("last = value")
    source.emit(f"return {total}, last")
    assert source.compile("add", "values", "test")([1, -1, 5]) == (9, 5)


def test_variable_names_are_new() -> None:
    source = SourceWriter()
    assert source.fresh("n") != source.fresh("n")


def test_a_traceback_names_what_was_compiled() -> None:
    source = SourceWriter()
    source.emit("raise ValueError")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no text
        source.compile("fail", "", "decoder of Sample v1")()
    assert str(caught.traceback[-1].path) == "<decoder of Sample v1>"


def test_array_structs_are_a_global_name() -> None:
    source = SourceWriter()
    name = source.array_structs(FieldKind.INT32)
    assert source.names[name] is ARRAY_STRUCTS[FieldKind.INT32]
