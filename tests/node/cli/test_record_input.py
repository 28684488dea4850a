"""Where records come from, and how many bytes there are."""

import os
from pathlib import Path

import pytest

from odradek.node.cli.record_input import RecordInput


def test_a_file_has_lines_and_a_size(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\r\n\nc")
    source = RecordInput(file=file)
    assert list(source.texts()) == [b"a", b"b", b"", b"c"]
    assert source.byte_count == 7
    assert not source.is_endless
    assert list(RecordInput(file=file, is_raw=True).texts()) == [b"a\nb\r\n\nc"]


def test_values_have_no_size_and_an_end() -> None:
    source = RecordInput(values=("a", "ü"))
    assert list(source.texts()) == [b"a", "ü".encode()]
    assert source.byte_count is None
    assert not source.is_endless


def test_standard_input_from_a_file_has_the_size_of_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"head\nrest\n")
    with file.open() as stdin:
        os.lseek(stdin.fileno(), 5, os.SEEK_SET)
        monkeypatch.setattr("sys.stdin", stdin)
        source = RecordInput()
        assert source.byte_count == 5
        assert not source.is_endless
        assert not source.is_typed
        assert list(source.texts()) == [b"rest"]


def test_a_pipe_has_no_size_and_may_be_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        source = RecordInput(file=Path("-"))
        assert source.is_stdin
        assert source.byte_count is None
        assert source.is_endless
