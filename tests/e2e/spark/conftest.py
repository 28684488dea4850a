"""One Spark for all tests of this folder: a JVM takes seconds to start."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline_extras import SkippedModule, missing_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
JARS = "SPARK_KAFKA_JARS"
"""The folder with the stock connector's jars (connector/pom.xml)."""


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip each module, which imports pyspark, where Spark cannot run."""
    reason = missing_spark()
    return SkippedModule.because(reason, parent, path=module_path) if reason else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """local[2], with the stock connector if its jars are here."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    jars = sorted(Path(os.environ[JARS]).glob("*.jar")) if os.environ.get(JARS) else []
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as environment:
        warnings.simplefilter("ignore")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # Spark looks for pyspark_odradek on the path: in an installation it is in site-packages.
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("odradek tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", ",".join(map(str, jars)))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
