"""The check that what Python runs was compiled from the source as it is (tests/conftest.py)."""

import os
from pathlib import Path

import pytest

from tests.support.compiled_modules import ROOT, compiled_sources, stale

pytest_plugins = ["pytester"]


def make_source(folder: Path, name: str, *, source_s: int, compiled_s: int | None) -> Path:
    source = folder / f"{name}.py"
    source.touch()
    os.utime(source, (source_s, source_s))
    if compiled_s is not None:
        built = folder / f"{name}.cpython-311-x86_64-linux-gnu.so"
        built.touch()
        os.utime(built, (compiled_s, compiled_s))
    return source


def test_the_modules_are_those_of_setup_py() -> None:
    assert ROOT / "odradek" / "protocol" / "record_walker.py" in compiled_sources()
    assert all(source.is_file() for source in compiled_sources())


def test_a_source_that_changed_after_it_was_compiled_is_stale(tmp_path: Path) -> None:
    fresh = make_source(tmp_path, "fresh", source_s=1_000, compiled_s=2_000)
    edited = make_source(tmp_path, "edited", source_s=3_000, compiled_s=2_000)
    uncompiled = make_source(tmp_path, "uncompiled", source_s=1_000, compiled_s=None)
    assert stale([fresh, edited, uncompiled]) == [edited]


def test_pytest_refuses_to_run_with_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = make_source(pytester.path, "edited", source_s=3_000, compiled_s=2_000)
    pytester.makeconftest(
        f"from pathlib import Path\nfrom tests import conftest\n"
        f"conftest.compiled_sources = lambda: [Path({str(edited)!r})]\n"
        "pytest_configure = conftest.pytest_configure\n"
    )
    pytester.makepyfile("def test_nothing(): pass")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: edited.py was changed after it was compiled, and is not what runs: make .venv/.test"
    ]
