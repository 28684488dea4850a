"""The settings of a listener's authentication: Kafka's keys, with its names and defaults (4.3).

Each may also be set for one listener, as in listener.name.external.sasl.enabled.mechanisms, and for
one mechanism of a listener, as in listener.name.external.plain.sasl.jaas.config. Kafka reads most
of them at start only; here all of them change while the broker runs.
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigError,
    ConfigScope,
    ConfigValue,
    at_least,
    one_of,
    satisfying,
)
from odradek.cluster.metadata.config_schema import (
    Strings,
    class_name,
    integer,
    long,
    password,
    settings,
    string,
    strings,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.security.jaas import JaasError, parse_jaas

SERVED_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
UNSECURED_TOKENS: Final = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    ".OAuthBearerUnsecuredValidatorCallbackHandler"
)
"""The handler that takes unsecured tokens, which anybody can make: for development only."""
_SECURED_TOKENS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_AUTHENTICATION: Final = "odradek.node.router.sasl_authentication"
_TOKENS: Final = "odradek.node.router.token_verification"
_PER_BROKER: Final = ConfigScope.PER_BROKER


def _check_jaas(name: str, value: ConfigValue) -> None:
    """The text is a secret: no error shows it."""
    try:
        parse_jaas(str(value))
    except JaasError as error:
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: {error}") from None


@settings(ConfigResourceType.BROKER)
class SaslSettings:
    """Of one listener or mechanism, or of all that set nothing themselves."""

    sasl_enabled_mechanisms: Strings = strings(
        "GSSAPI",
        f"The mechanisms with which clients may authenticate: {', '.join(SERVED_MECHANISMS)}."
        " GSSAPI, Kafka's default, is not served: a listener with SASL needs another one.",
        enforced_by=_AUTHENTICATION,
        validator=one_of("GSSAPI", *SERVED_MECHANISMS),
        scope=_PER_BROKER,
    )
    sasl_jaas_config: str | None = password(
        None,
        "The users of PLAIN and their passwords, set for a mechanism of a listener:"
        " org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' user_alice="secret" user_bob="other";',
        enforced_by=_AUTHENTICATION,
        validator=_check_jaas,
        scope=_PER_BROKER,
    )
    sasl_server_max_receive_size: int = integer(
        524_288,
        "The largest request of a client that has not authenticated, in bytes.",
        enforced_by=_AUTHENTICATION,
        validator=at_least(1),
        scope=_PER_BROKER,
    )
    connections_max_reauth_ms: int = long(
        0,
        "After how long a client has to authenticate again (KIP-368); 0: never, unless its"
        " credential expires. A connection on which it has not done so is closed at its next"
        " request.",
        enforced_by=_AUTHENTICATION,
        validator=at_least(0),
        scope=_PER_BROKER,
    )
    connection_failed_authentication_delay_ms: int = integer(
        100,
        "How long the answer to a failed authentication is delayed. The connection is closed after"
        " it.",
        enforced_by=_AUTHENTICATION,
        validator=at_least(0),
        scope=_PER_BROKER,
    )
    sasl_server_callback_handler_class: str | None = class_name(
        None,
        "How access tokens of OAUTHBEARER are verified: with the keys of"
        " sasl.oauthbearer.jwks.endpoint.url, or, for development, not at all with Kafka's"
        " OAuthBearerUnsecuredValidatorCallbackHandler.",
        enforced_by=_TOKENS,
        validator=one_of(UNSECURED_TOKENS, *_SECURED_TOKENS),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        30,
        "By how much the clock of the issuer of access tokens may differ from this broker's.",
        enforced_by=_TOKENS,
        validator=at_least(0),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_expected_audience: Strings = strings(
        "",
        "The audiences of access tokens, of which a token has to name one. Without any, a token"
        " must not name one either.",
        enforced_by=_TOKENS,
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_expected_issuer: str | None = string(
        None,
        "The issuer that access tokens have to name.",
        enforced_by=_TOKENS,
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        3_600_000,
        "How old the issuer's keys may become before they are fetched again.",
        enforced_by=_TOKENS,
        validator=at_least(1),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long(
        10_000,
        "The longest pause before the issuer's keys are fetched again after a failure.",
        enforced_by=_TOKENS,
        validator=at_least(1),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long(
        100,
        "The first pause before the issuer's keys are fetched again after a failure.",
        enforced_by=_TOKENS,
        validator=at_least(1),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = string(
        None,
        "Where the keys of the issuer of access tokens are: an https, http or file URL of a JSON"
        " Web Key Set (RFC 7517).",
        enforced_by=_TOKENS,
        validator=satisfying(
            "Must be an https://, http:// or file:// URL",
            lambda url: str(url).startswith(("https://", "http://", "file:///")),
        ),
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_scope_claim_name: str = string(
        "scope",
        "The claim of an access token that has its scopes.",
        enforced_by=_TOKENS,
        scope=_PER_BROKER,
    )
    sasl_oauthbearer_sub_claim_name: str = string(
        "sub",
        "The claim of an access token that has the name of the user.",
        enforced_by=_TOKENS,
        scope=_PER_BROKER,
    )


def says_who_authenticates(key: str) -> bool:
    """Whether a key, of all listeners or of one, decides with what clients authenticate. To change
    it takes ALTER on the cluster, as to change credentials: ALTER_CONFIGS alone would be enough to
    become any user."""
    return "sasl." in key
