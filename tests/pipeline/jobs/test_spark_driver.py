"""Spark's tasks as jobs run them. The jobs themselves are run in tests/e2e/spark."""

from odradek.pipeline.jobs.spark_driver import SparkDriver


def test_nothing_is_started_before_there_is_work() -> None:
    with SparkDriver("idle", "no-such-master", {}):
        pass
