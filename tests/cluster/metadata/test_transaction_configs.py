"""The watchdog's keys; Kafka's are compared in test_broker_configs.py."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.transaction_configs import TRANSACTION_CONFIGS
from odradek.coordinator.transaction.hanging_transactions import MARGIN_MS

CONFIGS = {definition.name: definition for definition in TRANSACTION_CONFIGS}
WATCHDOG = sorted(name for name in CONFIGS if ".watchdog." in name)


def test_the_watchdog_looks_but_does_not_bite_unless_it_is_told_to() -> None:
    assert {name: CONFIGS[name].default for name in WATCHDOG} == {
        "transaction.watchdog.abort.enable": "false",
        "transaction.watchdog.interval.ms": "60000",
        "transaction.watchdog.margin.ms": str(MARGIN_MS),
    }


@pytest.mark.parametrize("name", WATCHDOG)
def test_the_watchdogs_keys_may_be_changed_while_brokers_run(name: str) -> None:
    assert CONFIGS[name].scope is ConfigScope.CLUSTER


def test_a_watchdog_that_never_rests_is_refused() -> None:
    with pytest.raises(ValueError, match="100"):
        CONFIGS["transaction.watchdog.interval.ms"].parse("99")
