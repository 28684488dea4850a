"""The modules of this folder import the packages of the pipeline's extras."""

from pathlib import Path

import pytest

from tests.support.pipeline_extras import SkippedModule, missing_packages


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip each module, and say why, where they are missing."""
    reason = missing_packages()
    return SkippedModule.because(reason, parent, path=module_path) if reason else None
