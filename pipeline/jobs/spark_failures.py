"""What Spark says when it fails, as one line for people that says what to change. Pure.

Called by spark_driver.py with the text of py4j's error: the exception of Java with its causes, in
which that of a Python worker stands with its stack.
"""

import re
from typing import Final

_PYTHON: Final = (
    "name a Python that has odradek[spark] on all of Spark's machines, with"
    " -X spark.pyspark.python=PATH"
)
_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_VERSIONS: Final = re.compile(
    r"PYTHON_VERSION_MISMATCH\] .*?(\d+\.\d+) than that in driver:? (\d+\.\d+)"
)
_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_TRACE: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_CRASHED: Final = "Python worker exited unexpectedly"
_CAUSED: Final = "Caused by:"
_LENGTH_MAX: Final = 500


def failure_line(text: str, master: str, *, has_ended: bool = False) -> str:
    """The line for what py4j's error says, at most 500 characters long.

    `has_ended`: Spark is not there any more. Then the error is of whatever the job was doing when
    Spark gave up its master.
    """
    program, versions, module = (each.search(text) for each in (_PROGRAM, _VERSIONS, _MODULE))
    if program is not None:
        return f"Spark cannot run {program[1]} on its workers: {_PYTHON}"
    if versions is not None:
        return (
            f"Spark's workers run Python {versions[1]} and the job {versions[2]}: take the same"
            f" version; {_PYTHON}"
        )
    if module is not None:
        return f"the Python of Spark's workers has no {module[1]}: {_PYTHON}"
    if _CRASHED in text:
        return (
            "a Python worker of Spark was killed: if the system's log names the lack of memory,"
            " lower bytes.per.trigger or the N of --master local[N]"
        )
    if has_ended:
        return f"Spark at {master} has ended or does not answer: check --master and the cluster"
    found = _python_exception(text) or _java_exception(text)
    return f"Spark: {found}"[:_LENGTH_MAX]


def _python_exception(text: str) -> str:
    """The last exception in the stacks of Python and where it was raised; empty without any."""
    _, found, trace = text.rpartition(_TRACE)
    if not found:
        return ""
    place = ""
    for line in trace.splitlines()[1:]:
        frame = _FRAME.match(line)
        if frame is not None:
            place = f" ({frame[1]}, line {frame[2]})"
        elif line and not line[0].isspace():
            return line + place
    return ""


def _java_exception(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    caused = [line for line in lines if line.startswith((_CAUSED, ": "))]
    return caused[-1].removeprefix(_CAUSED).strip(": ") if caused else (lines or ["failed"])[0]
