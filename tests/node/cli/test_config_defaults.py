"""`odradek config ... broker default`: settings of all brokers of a cluster."""

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e

KEY = "group.max.session.timeout.ms"


def test_a_setting_of_all_brokers_is_set_seen_and_unset(kafka: Run) -> None:
    tried = kafka("config", "set", "broker", "default", f"{KEY}=1900000", "--dry-run")
    assert tried.exit_code == 0, tried.stderr
    assert KEY not in kafka("config", "list", "broker", "default").stdout
    done = kafka("config", "set", "broker", "default", f"{KEY}=1900000")
    assert done.exit_code == 0, done.stderr
    assert f"{KEY} = 1900000" in done.stdout
    rows = kafka("config", "list", "broker", "default", "-o", "json").json()
    assert isinstance(rows, list)
    found = {row["key"]: (row["value"], row["source"]) for row in rows}
    assert found[KEY] == ("1900000", "dynamic_default_broker_config")
    described = kafka("config", "describe", "broker", "default", KEY)
    assert "dynamic_default_broker_config" in described.stdout
    kafka("config", "unset", "broker", "default", KEY)
    assert KEY not in kafka("config", "list", "broker", "default").stdout


def test_an_invalid_value_for_all_brokers_is_refused(kafka: Run) -> None:
    ran = kafka("config", "set", "broker", "default", f"{KEY}=soon")
    assert ran.exit_code == 1
    assert KEY in ran.stderr
