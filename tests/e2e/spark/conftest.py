"""One Spark for all tests of this folder: a JVM takes seconds to start.

What is marked slow starts Spark again and again, and runs with `make spark` only.
"""

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

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
JARS = "SPARK_KAFKA_JARS"
"""The folder with the stock connector's jars (connector/pom.xml)."""
ALL = "SPARK_TESTS"
"""`all` runs those that are marked slow, too; `make spark` sets it."""


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip each module, which imports pyspark, where Spark cannot run."""
    reason = missing_spark()
    return SkippedModule.because(reason, parent, path=module_path) if reason else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is slow. Called with the tests of all folders."""
    if os.environ.get(ALL) == "all":
        return
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: `make spark` runs it"))


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
