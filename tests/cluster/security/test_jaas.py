"""JAAS configurations as Kafka's users write them, and errors that show no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.security.jaas import JaasConfig, JaasError, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_users_of_plain() -> None:
    parsed = parse_jaas(
        f"""{PLAIN} required
          username="admin" password="admin-secret"
          user_admin="admin-secret" user_alice="a \\"quoted\\" one;=" user_bob=plain ;"""
    )
    assert parsed.module == PLAIN
    assert parsed.users == {
        "admin": "admin-secret",
        "alice": 'a "quoted" one;=',
        "bob": "plain",
    }
    assert "secret" not in repr(parsed)


def test_a_module_without_options() -> None:
    assert parse_jaas(f"{PLAIN} required;") == JaasConfig(PLAIN, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        PLAIN,
        f"{PLAIN} required",
        f"{PLAIN} always;",
        f'{PLAIN} required user_a="secret"',
        f'{PLAIN} required user_a "secret";',
        f'{PLAIN} required user_a="secret;',
        f"{PLAIN} required user_a==secret;",
        f'{PLAIN} required user_a="secret"; {PLAIN} required;',
    ],
)
def test_malformed_texts_are_refused_without_showing_a_secret(text: str) -> None:
    with pytest.raises(JaasError) as raised:
        parse_jaas(text)
    assert "secret" not in str(raised.value)


@given(st.text(max_size=100))
def test_arbitrary_texts_are_parsed_or_refused(text: str) -> None:
    try:
        parse_jaas(text)
    except JaasError:
        return
    assert text.rstrip().endswith(";")


@given(
    st.dictionaries(st.from_regex(r"[a-zA-Z0-9._-]{1,10}", fullmatch=True), st.text(max_size=20))
)
def test_every_password_can_be_written(users: dict[str, str]) -> None:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in users.items()
    }
    options = " ".join(f'user_{name}="{value}"' for name, value in escaped.items())
    assert parse_jaas(f"{PLAIN} required {options};").users == users
