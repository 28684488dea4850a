"""A schema is a text or a file of it."""

from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.schema_text import schema_bytes, schema_text


@pytest.mark.parametrize("text", ["id BIGINT", '{"type": "object"}', '"string"', "`a`INT\n", "[1]"])
def test_what_has_a_blank_or_a_bracket_is_the_schema(text: str) -> None:
    assert schema_text(text) == text.strip()


def test_a_name_is_a_file(tmp_path: Path) -> None:
    for name in ("order.avsc", "my order.avsc"):
        (tmp_path / name).write_text(' {"type": "string"}\n')
        assert schema_text(str(tmp_path / name)) == '{"type": "string"}'


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PipelineError, match=r"orders\.avsc cannot be read: No such file"):
        schema_text("orders.avsc")
    with pytest.raises(PipelineError, match=r"orders\.desc cannot be read: No such file"):
        schema_bytes("orders.desc")


def test_a_binary_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "orders.desc").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="is not a text file"):
        schema_text(str(tmp_path / "orders.desc"))
    assert schema_bytes(str(tmp_path / "orders.desc")) == b"\xff\xfe"
