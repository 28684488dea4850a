"""Rules from subjects to principals, against the answers of Kafka's own mapper."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.security.principal_mapping import (
    check_mapping_rules,
    mapping_rules,
    principal_of,
)

KAFKA = json.loads(
    (Path(__file__).parents[2] / "support" / "ssl_principals_kafka_4_3_1.json").read_text()
)


def answer(rules: str, subject: str) -> str:
    try:
        principal = principal_of(subject, rules)
    except ValueError:
        return "invalid"
    return "none" if principal is None else "=" + principal.removeprefix("User:")


@pytest.mark.parametrize("case", KAFKA["rules"], ids=lambda case: repr(case["rules"]))
def test_principals_are_those_of_kafka(case: dict[str, object]) -> None:
    rules = str(case["rules"])
    assert [answer(rules, subject) for subject in KAFKA["subjects"]] == case["answers"]


def test_the_config_key_refuses_rules_that_cannot_be_read() -> None:
    check_mapping_rules("ssl.principal.mapping.rules", "RULE:^CN=(.*?),.*$/$1/L,DEFAULT")
    with pytest.raises(ConfigError, match="unmatched substring: `/L`"):
        check_mapping_rules("ssl.principal.mapping.rules", "DEFAULT/L")
    with pytest.raises(ConfigError, match="no group named who"):
        check_mapping_rules("ssl.principal.mapping.rules", "RULE:^CN=(.*)$/${who}/")


@given(st.text(), st.text())
def test_any_rules_and_subject_give_a_principal_none_or_value_error(
    rules: str, subject: str
) -> None:
    assert answer(rules, subject)[:1] in "=ni"


@given(st.text(alphabet="ab130{}x", max_size=12), st.text(alphabet="CN=,ab", max_size=12))
def test_a_text_without_references_replaces_the_subject(replacement: str, subject: str) -> None:
    rules = f"RULE:{re.escape(subject)}/p{replacement}/U,DEFAULT"
    assert principal_of(subject, rules) == f"User:P{replacement.upper()}"


def test_only_the_first_rule_that_matches_counts() -> None:
    rules = "RULE:^CN=(\\w+)$/first/,RULE:^CN=(.*)$/second $1/"
    assert principal_of("CN=a", rules) == "User:first"
    assert principal_of("CN=a b", rules) == "User:second a b"
    assert principal_of("OU=a", rules) is None
    assert mapping_rules("") == ()
