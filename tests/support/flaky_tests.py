"""The verdict over two runs of tests: what failed, and what failed once and then passed (flaky).

    python -m tests.support.flaky_tests FIRST.xml... --again SECOND.xml...

The files are pytest's JUnit XML: of the runs that together have every test, and of second runs of
their failures. Every flaky test is printed with the output of both runs. Exits with 1 if a test
failed in both runs, if more than FLAKY_MAX are flaky, or if one of the first runs ended without a
report. Called by .ci/run.
"""

import sys
import xml.etree.ElementTree as ET
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FLAKY_MAX = 2
OUTPUT_LINES_MAX = 200
"""The last ones of each output are printed."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of one test in a run."""

    is_failed: bool
    output: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Names of tests; `flaky` with the outputs of the failure and of the pass."""

    failed: tuple[str, ...]
    flaky: Mapping[str, tuple[str, str]]

    @property
    def is_good(self) -> bool:
        return not self.failed and len(self.flaky) <= FLAKY_MAX


def read_run(path: Path) -> dict[str, RunOutcome]:
    """The outcome of each test by its name; empty if the run ended without a report."""
    if not path.exists():
        return {}
    outcomes: dict[str, RunOutcome] = {}
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problems = [part for part in case if part.tag in ("failure", "error")]
        texts = [part.text or part.get("message") or "" for part in problems]
        texts += [part.text or "" for part in case if part.tag in ("system-out", "system-err")]
        before = outcomes.get(name)
        is_failed = bool(problems) or (before is not None and before.is_failed)
        outcomes[name] = RunOutcome(is_failed, "\n".join(text for text in texts if text.strip()))
    return outcomes


def judge(first: Mapping[str, RunOutcome], second: Mapping[str, RunOutcome]) -> Verdict:
    """A failure that was not run again, or not to its end, counts as one."""
    failed, flaky = [], {}
    for name, outcome in first.items():
        if not outcome.is_failed:
            continue
        again = second.get(name)
        if again is None or again.is_failed:
            failed.append(name)
        else:
            flaky[name] = (outcome.output, again.output)
    return Verdict(tuple(failed), flaky)


def render(verdict: Verdict) -> str:
    """The verdict as text; each flaky test with both outputs."""
    lines = []
    for name, outputs in verdict.flaky.items():
        for title, output in zip(("failed", "then passed"), outputs, strict=True):
            lines.append(f"---- {name} {title} ----")
            lines += output.splitlines()[-OUTPUT_LINES_MAX:] or ["(no output)"]
    lines += (f"failed twice: {name}" for name in verdict.failed)
    lines += (f"flaky: {name}" for name in verdict.flaky)
    lines.append(
        f"{len(verdict.failed)} failed, {len(verdict.flaky)} flaky (at most {FLAKY_MAX} may be)"
    )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """The exit code."""
    split = arguments.index("--again")
    runs = [read_run(Path(name)) for name in arguments[:split]]
    again = [read_run(Path(name)) for name in arguments[split + 1 :]]
    verdict = judge(ChainMap(*runs), ChainMap(*again))
    sys.stdout.write(render(verdict))
    return 0 if all(runs) and verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
