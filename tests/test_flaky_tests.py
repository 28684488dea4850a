"""The verdict of .ci/run over pytest's own reports."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.flaky_tests import FLAKY_MAX, RunOutcome, judge, main, read_run, render

ONCE = """
from pathlib import Path


def test_sound() -> None:
    pass


def test_once() -> None:
    mark = Path(__file__).with_suffix(".ran")
    if not mark.exists():
        mark.touch()
        print("the first output")
        assert mark.name == "x"
    print("the second output")


def test_always() -> None:
    assert "this" == "that"
"""


def run(folder: Path, report: str, *selected: str) -> Path:
    path = folder / report
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"]
    command += [f"--junit-xml={path}", "-o", "junit_logging=all", "-o", "junit_family=xunit2"]
    subprocess.run([*command, *selected], cwd=folder, capture_output=True, check=False)
    return path


def test_a_failure_that_passes_then_is_flaky_and_shown_with_both_outputs(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(ONCE)
    first = read_run(run(tmp_path, "first.xml", "test_some.py"))
    again = ("test_some.py::test_once", "test_some.py::test_always")
    verdict = judge(first, read_run(run(tmp_path, "second.xml", *again)))
    assert len(first) == 3
    assert verdict.failed == ("test_some::test_always",)
    assert set(verdict.flaky) == {"test_some::test_once"}
    text = render(verdict)
    assert "assert 'test_some.ran' == 'x'" in text
    assert "the first output" in text
    assert "the second output" in text
    assert text.endswith("1 failed, 1 flaky (at most 2 may be)\n")
    assert not verdict.is_good


def test_more_flaky_tests_than_may_be_fail_the_run() -> None:
    names = [str(number) for number in range(FLAKY_MAX + 1)]
    failed = {name: RunOutcome(is_failed=True, output="") for name in names}
    passed = {name: RunOutcome(is_failed=False, output="") for name in names}
    assert judge(passed, {}).is_good
    assert not judge(failed, passed).is_good
    del failed[names[0]]
    assert judge(failed, passed).is_good
    assert not judge(failed, {}).is_good, "nobody has run them again"


PASSED = '<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>'
FAILED = PASSED.replace('name="b"/>', 'name="c"><failure>why</failure></testcase>')


def test_the_first_runs_are_judged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passed, failed, again = (tmp_path / name for name in ("passed", "failed", "again"))
    passed.write_text(PASSED)
    failed.write_text(FAILED)
    assert main([str(passed), str(failed), "--again", str(again)]) == 1
    assert "failed twice: a::c\n" in capsys.readouterr().out
    again.write_text(PASSED.replace('"b"', '"c"'))
    assert main([str(passed), str(failed), "--again", str(again)]) == 0
    assert "flaky: a::c\n" in capsys.readouterr().out


def test_a_run_without_a_report_is_a_failure(tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    passed.write_text(PASSED)
    assert main([str(passed), str(tmp_path / "nothing.xml"), "--again", str(passed)]) == 1
