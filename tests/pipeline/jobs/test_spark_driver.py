"""Spark's tasks as jobs run them. The jobs themselves are run in tests/e2e/spark."""

import gc

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.spark_driver import SparkDriver
from tests.support.pipeline_extras import missing_spark


def test_nothing_is_started_before_there_is_work() -> None:
    with SparkDriver("idle", "no-such-master", {}):
        pass


def test_an_impossible_master_is_told_without_spark() -> None:
    expected = "master is 'no-such-master': take local"
    with (
        SparkDriver("impossible", "no-such-master", {}) as driver,
        pytest.raises(PipelineError, match=expected),
    ):
        driver.parallelism()


@pytest.mark.skipif(bool(missing_spark()), reason=missing_spark())
def test_a_spark_that_does_not_start_leaves_no_pipe_open() -> None:
    """It would be a ResourceWarning when its error is gone, which fails a test."""
    with (
        SparkDriver("failed", "local[1]", {"spark.driver.memory": "nonsense"}) as driver,
        pytest.raises(PipelineError, match="Spark did not start with ") as raised,
    ):
        driver.parallelism()
    del raised
    gc.collect()
