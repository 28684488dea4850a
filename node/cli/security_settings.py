"""Risky settings of a node's configuration, for `odradek doctor --security --config FILE`.

Reads the file as the node does, and the permissions of the files with secrets; asks nobody. What
was set while the cluster runs is not known here: addresses are probed for that (exposure.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.sasl_settings import UNSECURED_TOKENS, SaslSettings
from odradek.cluster.metadata.settings import settings_of_listener
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.node.cli.exposure_findings import ADVICE, SERIOUS, WARNING, SecurityFinding
from odradek.node.cluster_bundle import BUNDLE_NAME
from odradek.node.config import ListenerConfig, NodeConfig, is_secret
from odradek.node.listener_security import is_loopback
from odradek.node.peer_config import is_loopback as is_loopback_host

_ANONYMOUS = "User:ANONYMOUS"


def settings_findings(file: Path, config: NodeConfig) -> Iterator[SecurityFinding]:
    """What is risky in the configuration that `file` gives."""
    place = str(file)
    layers = (ConfigLayer(ConfigSource.STATIC_BROKER, config.broker_configs),)
    for listener in config.listeners:
        sasl = settings_of_listener(SaslSettings, layers, listener.name)
        tls = settings_of_listener(TlsSettings, layers, listener.name)
        for severity, finding, advice in (
            *_listener_findings(listener, sasl, tls),
            *_token_findings(listener, layers),
        ):
            yield SecurityFinding(severity, place, f"listener {listener.name}: {finding}", advice)
    if config.is_clustered and not config.cluster_secrets:
        yield SecurityFinding(
            WARNING,
            place,
            "between nodes there is neither encryption nor authentication, for all programs of this"
            " machine",
            "Set cluster.secret.file.",
        )
    for severity, finding, advice in _authorizer_findings(config):
        yield SecurityFinding(severity, place, finding, advice)
    if config.http_port is not None and not is_loopback_host(config.http_host):
        yield SecurityFinding(
            WARNING,
            place,
            "http.listen: /metrics names topics, groups and clients to everybody who reaches it",
            "Bind it to 127.0.0.1 or to a network of operators only; it has no login.",
        )
    yield from _file_findings(file, config, layers)


def _listener_findings(
    listener: ListenerConfig, sasl: SaslSettings, tls: TlsSettings
) -> Iterator[tuple[str, str, str]]:
    protocol = listener.security_protocol
    local = is_loopback(listener)
    if protocol == "PLAINTEXT":
        yield (
            WARNING if local else SERIOUS,
            "neither encryption nor authentication"
            + (", for all programs of this machine" if local else ""),
            "Give it TLS and authentication: listener.security.protocol.map=NAME:SASL_SSL, as"
            " `odradek format --hardened` does.",
        )
    if protocol == "SASL_PLAINTEXT" and not local:
        names = sasl.sasl_enabled_mechanisms
        in_clear = [each for each in names if each in ("PLAIN", "OAUTHBEARER")]
        yield (
            SERIOUS if in_clear else WARNING,
            f"{' and '.join(in_clear)} without encryption: passwords and tokens can be read on the"
            " network"
            if in_clear
            else "records cross the network without encryption",
            "Make it SASL_SSL.",
        )
    if protocol == "SSL" and tls.ssl_client_auth != "required":
        yield (
            WARNING,
            f"clients need no certificate (ssl.client.auth={tls.ssl_client_auth}): without one"
            f" they are {_ANONYMOUS}",
            "Set ssl.client.auth=required and ssl.truststore.location, or make it SASL_SSL.",
        )
    if (
        protocol in ("SSL", "SASL_SSL")
        and tls.ssl_client_auth != "none"
        and tls.ssl_truststore_location is None
        and tls.ssl_truststore_certificates is None
    ):
        yield (
            SERIOUS,
            "clients are known by their certificates, and there is no trust store: every authority"
            " that this system trusts can make any client",
            "Set ssl.truststore.location to the authority of your clients only.",
        )
    if protocol.startswith("SASL_") and not sasl.connections_max_reauth_ms:
        yield (
            ADVICE,
            "a connection stays authenticated for ever, even if its credential is removed",
            "Set connections.max.reauth.ms, for example to 3600000.",
        )


def _token_findings(
    listener: ListenerConfig, layers: tuple[ConfigLayer, ...]
) -> Iterator[tuple[str, str, str]]:
    name = "OAUTHBEARER"
    sasl = settings_of_listener(SaslSettings, layers, listener.name, name)
    if not listener.security_protocol.startswith("SASL_"):
        return
    if name not in sasl.sasl_enabled_mechanisms:
        return
    if sasl.sasl_server_callback_handler_class == UNSECURED_TOKENS:
        yield (
            SERIOUS,
            "unsigned access tokens are accepted: everybody can be anybody",
            "Remove sasl.server.callback.handler.class and set sasl.oauthbearer.jwks.endpoint.url.",
        )
        return
    if not sasl.sasl_oauthbearer_expected_audience:
        yield (
            WARNING,
            "access tokens for other services are accepted too",
            "Set sasl.oauthbearer.expected.audience.",
        )
    url = sasl.sasl_oauthbearer_jwks_endpoint_url or ""
    if url.startswith("http://"):
        yield (
            SERIOUS,
            "the keys of access tokens come over the network without encryption",
            "Set sasl.oauthbearer.jwks.endpoint.url to an https address or a file.",
        )


def _authorizer_findings(config: NodeConfig) -> Iterator[tuple[str, str, str]]:
    static = config.broker_configs
    is_open = any(not is_loopback(each) for each in config.listeners)
    if not static.get("authorizer.class.name"):
        yield (
            SERIOUS if is_open else WARNING,
            "there is no authorizer: who is let in may do everything",
            "Set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer and"
            " super.users.",
        )
        return
    if static.get("allow.everyone.if.no.acl.found") == "true":
        yield (
            SERIOUS,
            "allow.everyone.if.no.acl.found: everybody may do everything with what has no ACL",
            "Remove it, and give each principal its ACLs.",
        )
    if _ANONYMOUS in static.get("super.users", "").split(";"):
        yield (
            SERIOUS,
            f"super.users has {_ANONYMOUS}, who is every client without a login",
            "Remove it from super.users.",
        )
    if not static.get("audit.log.path"):
        yield (
            ADVICE,
            "nobody notes who changes the cluster and who is denied",
            "Set audit.log.path.",
        )


def _file_findings(
    file: Path, config: NodeConfig, layers: tuple[ConfigLayer, ...]
) -> Iterator[SecurityFinding]:
    private = {file: "has secrets"} if any(map(is_secret, config.sources)) else {}
    for listener in config.listeners:
        tls = settings_of_listener(TlsSettings, layers, listener.name)
        if tls.ssl_keystore_location is not None:
            private[Path(tls.ssl_keystore_location)] = "has the private key of the node"
    for value, _origin in config.sources.get("cluster.secret.file", ())[:1]:
        private[Path(value).expanduser()] = "has the secret of the cluster"
    private[config.data_folder] = "has the records and the credentials of users"
    for directory in config.further_log_dirs:
        private[Path(directory.path)] = "has records"
    for path, content in private.items():
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            others = bool(mode & (stat.S_IROTH | stat.S_IWOTH))
            yield SecurityFinding(
                SERIOUS if others and not path.is_dir() else WARNING,
                str(path),
                f"it {content}, and {'all users' if others else 'its group'} may open it",
                f"Run `chmod {'700' if path.is_dir() else '600'} {path}`.",
            )
    bundle = file.with_name(BUNDLE_NAME)
    if os.path.lexists(bundle):
        yield SecurityFinding(
            WARNING,
            str(bundle),
            "the bundle of the cluster is still on the node: whoever gets it can be any node",
            "Move it to a safe place; it is needed for new nodes and to renew certificates.",
        )
