"""Texts as py4j gave them (shortened), and the lines that people see."""

import pytest

from odradek.pipeline.jobs.spark_failures import failure_line

CALLED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
)
ABORTED = f"{CALLED}: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0"
WORKER = "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown"
TRACE = f"{CALLED}: {WORKER} from the Python worker: Traceback (most recent call last):\n"
PYTHON = (
    "name a Python that has odradek[spark] on all of Spark's machines, with"
    " -X spark.pyspark.python=PATH"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            f'{ABORTED} in stage 0.0 failed: java.io.IOException: Cannot run program "/opt/python":'
            " error=2, No such file\nCaused by: java.io.IOException: error=2, No such file\n",
            f"Spark cannot run /opt/python on its workers: {PYTHON}",
            id="no Python",
        ),
        pytest.param(
            f'{TRACE}  File "worker.py", line 1, in main\nModuleNotFoundError: No module named'
            " 'odradek'\n SQLSTATE: 38000\n\tat java\n",
            f"the Python of Spark's workers has no odradek: {PYTHON}",
            id="no module",
        ),
        pytest.param(
            f"{TRACE}pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker"
            " has different version: 3.12 than that in driver: 3.11, PySpark cannot run.",
            "Spark's workers run Python 3.12 and the job 3.11: take the same version; " + PYTHON,
            id="another Python",
        ),
        pytest.param(
            f"{ABORTED}: Python worker exited unexpectedly (crashed)\nCaused by: EOFException\n",
            "a Python worker of Spark was killed: if the system's log names the lack of memory,"
            " lower bytes.per.trigger or the N of --master local[N]",
            id="killed",
        ),
        pytest.param(
            f'{TRACE}  File "/a/worker.py", line 1, in main\n    process()\n'
            '  File "/b/task.py", line 13, in work\n    raise\nValueError: 7 is wrong\nmore\n'
            "SQLSTATE\n\tat org.apache.spark.api\nCaused by: java.lang.Nothing\n",
            "Spark: ValueError: 7 is wrong (/b/task.py, line 13)",
            id="a task's exception",
        ),
        pytest.param(
            f"{ABORTED}\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat java\n",
            "Spark: java.lang.OutOfMemoryError: Java heap space",
            id="Java's",
        ),
        pytest.param("", "Spark: failed", id="nothing"),
    ],
)
def test_a_failure_is_one_line_that_says_what_to_change(text: str, line: str) -> None:
    assert failure_line(text, "spark://a:1") == line


def test_after_the_end_of_spark_its_exception_says_nothing() -> None:
    text = f'{CALLED}: java.lang.NullPointerException: Cannot invoke "SparkEnv.conf()"\n\tat a\n'
    assert failure_line(text, "spark://a:1", has_ended=True) == (
        "Spark at spark://a:1 has ended or does not answer: check --master and the cluster"
    )


def test_a_long_failure_is_cut() -> None:
    assert len(failure_line("x" * 10_000, "local[2]")) == 500
