"""Tests of the data pipeline where its extras are not installed: their modules are skipped as a
whole, because they import what is not there."""

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = ("pyspark", "pyarrow", "deltalake", "pyiceberg", "fastavro")
"""Of the extras spark, delta, iceberg and avro."""


def missing_packages() -> str:
    """Why the tests of the pipeline cannot run; empty if they can."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return ""
    return f"{', '.join(missing)} not installed: `make spark` installs the extras and runs these"


def missing_spark() -> str:
    """Why tests that start Spark cannot run; empty if they can."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "no Java: Spark needs 17 or later, on the PATH or at JAVA_HOME"
    return missing_packages()


class SkippedModule(pytest.Module):
    """Is skipped as a whole instead of being imported."""

    reason = ""

    def collect(self) -> Iterator[pytest.Item]:
        """Skip, and say why."""
        pytest.skip(self.reason, allow_module_level=True)

    @classmethod
    def because(cls, reason: str, parent: pytest.Collector, path: Path) -> "SkippedModule":
        """A module that is skipped for this reason."""
        made: SkippedModule = cls.from_parent(parent, path=path)
        made.reason = reason
        return made
