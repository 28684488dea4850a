"""The settings of a listener's TLS: Kafka's keys, with its names and defaults (4.3).

Each may also be set for one listener, as in listener.name.external.ssl.keystore.location. In Kafka
ssl.principal.mapping.rules and the keys that allow changes of names are read at start only; here
all of them change while the broker runs.
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigScope, one_of
from odradek.cluster.metadata.config_schema import (
    Strings,
    boolean,
    password,
    settings,
    string,
    strings,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.security.principal_mapping import check_mapping_rules

STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")
PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
_IDENTITY: Final = ("ssl.principal.mapping.rules", "ssl.client.auth")
_TRUST: Final = "ssl.truststore."
_CONTEXT: Final = "odradek.node.wire.tls_context"
_STORES: Final = "odradek.node.wire.key_stores"
_PER_BROKER: Final = ConfigScope.PER_BROKER


@settings(ConfigResourceType.BROKER)
class TlsSettings:
    """Of one listener, or of all that set nothing themselves."""

    ssl_allow_dn_changes: bool = boolean(
        False,
        "Whether a new certificate may have another distinguished name than the one in use.",
        enforced_by=_CONTEXT,
        scope=_PER_BROKER,
    )
    ssl_allow_san_changes: bool = boolean(
        False,
        "Whether a new certificate may lack subject alternative names of the one in use.",
        enforced_by=_CONTEXT,
        scope=_PER_BROKER,
    )
    ssl_cipher_suites: Strings = strings(
        "",
        "The cipher suites, with their names in TLS or OpenSSL; if empty: OpenSSL's. Those of TLS"
        " 1.3 are either all used or, if none is named, that version is not.",
        enforced_by=_CONTEXT,
        scope=_PER_BROKER,
    )
    ssl_client_auth: str = string(
        "none",
        "Whether clients have to present a certificate: required, requested (those that do are"
        " known by its name) or none.",
        enforced_by=_CONTEXT,
        validator=one_of("required", "requested", "none"),
        scope=_PER_BROKER,
    )
    ssl_enabled_protocols: Strings = strings(
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that clients may use.",
        enforced_by=_CONTEXT,
        validator=one_of(*PROTOCOLS),
        scope=_PER_BROKER,
    )
    ssl_key_password: str | None = password(
        None,
        "The password of the private key.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_keystore_certificate_chain: str | None = password(
        None,
        "The broker's certificate and those that vouch for it, in PEM, for ssl.keystore.type=PEM.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_keystore_key: str | None = password(
        None,
        "The private key in PEM (PKCS#8), for ssl.keystore.type=PEM.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_keystore_location: str | None = string(
        None,
        "The file with the broker's private key and certificates; read again when it changes.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_keystore_password: str | None = password(
        None,
        "The password of the key store, for PKCS12.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_keystore_type: str = string(
        "JKS",
        "PEM or PKCS12. With JKS the file must be a PKCS12 store, as today's keytool makes it.",
        enforced_by=_STORES,
        validator=one_of(*STORE_TYPES),
        scope=_PER_BROKER,
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT",
        "From the distinguished name of a client's certificate to its principal (KIP-371).",
        enforced_by="odradek.node.wire.tls_transport",
        validator=check_mapping_rules,
        scope=_PER_BROKER,
    )
    ssl_protocol: str = string(
        "TLSv1.3",
        "The newest version of TLS; ssl.enabled.protocols says which others are spoken.",
        enforced_by=_CONTEXT,
        validator=one_of("TLS", *PROTOCOLS),
        scope=_PER_BROKER,
    )
    ssl_truststore_certificates: str | None = password(
        None,
        "The certificates of trusted authorities in PEM, for ssl.truststore.type=PEM.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_truststore_location: str | None = string(
        None,
        "The file with the certificates of the authorities that vouch for clients; without one"
        " those that the system trusts. It is read again when it changes.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_truststore_password: str | None = password(
        None,
        "The password of the trust store, for PKCS12.",
        enforced_by=_STORES,
        scope=_PER_BROKER,
    )
    ssl_truststore_type: str = string(
        "JKS",
        "PEM or PKCS12. With JKS the file must be a PKCS12 store, as today's keytool makes it.",
        enforced_by=_STORES,
        validator=one_of(*STORE_TYPES),
        scope=_PER_BROKER,
    )


def says_who_clients_are(key: str) -> bool:
    """Whether a key, of all listeners or of one, decides which principal a client with a
    certificate has. To change it takes ALTER on the cluster, as to change ACLs: ALTER_CONFIGS alone
    would be enough to become a super user."""
    return key.endswith(_IDENTITY) or _TRUST in key
