"""The TLS of one listener: its own keys, those of all listeners, and the layers they are in."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.cluster.metadata.settings import listener_settings
from odradek.cluster.metadata.tls_settings import TlsSettings, says_who_clients_are

STATIC = {
    "ssl.keystore.location": "/static",
    "ssl.client.auth": "requested",
    "listener.name.external.ssl.keystore.location": "/static/external",
}
OWN = {
    "ssl.keystore.location": "/dynamic",
    "listener.name.external.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
}


def settings(image: MetadataImage, listener: str) -> TlsSettings:
    return listener_settings(TlsSettings, image, 7, STATIC, listener)


def test_a_key_of_the_listener_precedes_that_of_all_in_any_layer() -> None:
    delta = MetadataDelta(MetadataImage.empty())
    for key, value in OWN.items():
        delta.replay(ConfigChanged(ConfigResourceType.BROKER, "7", key, value))
    image = delta.apply(1)
    external, internal = settings(image, "EXTERNAL"), settings(image, "INTERNAL")
    assert external.ssl_keystore_location == "/static/external"
    assert internal.ssl_keystore_location == "/dynamic"
    assert external.ssl_principal_mapping_rules == "RULE:^CN=(.*)$/$1/"
    assert internal.ssl_principal_mapping_rules == "DEFAULT"
    assert external.ssl_client_auth == internal.ssl_client_auth == "requested"
    assert settings(image, "EXTERNAL") is external, "computed once for an image"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("ssl.client.auth", "required", "maybe"),
        ("ssl.enabled.protocols", "TLSv1.3", "SSLv3"),
        ("ssl.keystore.type", "PEM", "BKS"),
        ("ssl.principal.mapping.rules", "DEFAULT", "default"),
        ("ssl.protocol", "TLS", "SSL"),
    ],
)
def test_values_are_checked_also_for_one_listener(key: str, good: str, bad: str) -> None:
    for name in (key, f"listener.name.external.{key}"):
        definition = broker_config(name)
        assert definition is not None
        definition.parse(good)
        with pytest.raises(ConfigError):
            definition.parse(bad)


def test_passwords_and_private_keys_are_never_shown() -> None:
    for key in (
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    ):
        for name in (key, f"listener.name.external.{key}"):
            definition = broker_config(name)
            assert definition is not None
            assert definition.is_sensitive


def test_some_keys_decide_who_a_client_is() -> None:
    for key in (
        "ssl.principal.mapping.rules",
        "listener.name.external.ssl.truststore.location",
        "listener.name.external.ssl.client.auth",
    ):
        assert says_who_clients_are(key)
    assert not says_who_clients_are("ssl.keystore.location")
