"""The keys of the authorizer: which values they take, and what those mean."""

import pytest

from odradek.cluster.metadata.authorizer_settings import (
    ACCESS_CONTROL_KEYS,
    STANDARD_AUTHORIZER,
    AuthorizerSettings,
    super_users_of,
)
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import broker_settings, static_config_error


def test_super_users_are_separated_by_semicolons() -> None:
    assert super_users_of(" User:a;User:CN=b,O=c; ;") == ("User:a", "User:CN=b,O=c")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("authorizer.class.name", STANDARD_AUTHORIZER, None),
        ("authorizer.class.name", "", None),
        ("authorizer.class.name", "org.example.Mine", "There is one authorizer"),
        ("super.users", "User:a;User:b", None),
        ("super.users", "a;User:b", "Must be principals"),
        ("super.users", "User:", "Must be principals"),
        ("allow.everyone.if.no.acl.found", "yes", "Expected value to be either true or false"),
    ],
)
def test_what_a_configuration_may_say(key: str, value: str, error: str | None) -> None:
    problem = static_config_error(key, value)
    assert (problem is None) if error is None else (error in (problem or ""))


def test_without_configuration_there_is_no_authorizer() -> None:
    settings = broker_settings(MetadataImage.empty(), 0, {}).authorizer
    assert settings == AuthorizerSettings()
    assert (settings.authorizer_class_name, settings.super_users) == ("", ())
    static = {"super.users": "User:a;User:b"}
    settings = broker_settings(MetadataImage.empty(), 0, static).authorizer
    assert settings.super_users == ("User:a", "User:b")


def test_all_of_the_keys_control_access() -> None:
    fields = fields_of(AuthorizerSettings)
    names = {field.definition.name for field in fields}
    assert names == ACCESS_CONTROL_KEYS | {"audit.log.path"}
