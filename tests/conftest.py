"""Fixtures of all tests: the broker of the session, as other projects get it from the plugin.

Imported here so that the tests run from a source tree without the installed plugin.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from odradek.testing import kafka_broker, kafka_broker_secured, kafka_broker_settings
from tests.support.compiled_modules import compiled_sources, stale

__all__ = ["kafka_broker", "kafka_broker_secured", "kafka_broker_settings"]

# Helpers whose assertions tell the values, as those of tests do.
pytest.register_assert_rewrite("tests.conformance.dialogue", "tests.conformance.members")


# The machine runs other things as well: how long one example takes says nothing.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_COMPILED = Path(__file__).parents[1] / ".venv" / "pycache"


def pytest_configure() -> None:
    """Compiled modules are kept, and never those of edited ones."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Each process of each node would compile all of its modules: half of its start. The tree
        # stays without them, as was wanted.
        os.environ["PYTHONPYCACHEPREFIX"] = str(_COMPILED)
    _check_compiled()


def _check_compiled() -> None:
    """Nobody tests an edited module and runs what was compiled before."""
    for source in stale(compiled_sources()):
        raise pytest.UsageError(
            f"{source.name} was changed after it was compiled, and is not what runs:"
            " make .venv/.test"
        )
