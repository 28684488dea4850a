"""What an address lets a stranger do: everything is tried without credentials, and changes nothing.

Used by `odradek doctor --security`. A stranger has no password, no certificate and no token but
those that anybody can make or read in a documentation. Rights are asked for (the authorized
operations of KIP-430, requests that only validate), never used. Works with any Kafka;
exposure_findings.py judges what is found here.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import click

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.security.certificates import read_certificate
from odradek.node.blocking_client import (
    BlockingClient,
    ConnectionEndedError,
    NotABrokerError,
    UnsupportedApiError,
)
from odradek.node.cli.probe import Address
from odradek.node.cli.security import Security
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.acls import DescribeAclsRequest
from odradek.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.protocol.messages.groups import ListGroupsRequest
from odradek.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from odradek.protocol.messages.sasl import SaslHandshakeRequest
from odradek.protocol.messages.scram import DescribeUserScramCredentialsRequest
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

DOCUMENTED_PASSWORDS: Final = (
    ("admin", "admin-secret"),
    ("alice", "alice-secret"),
    ("admin", "admin"),
)
"""Users of the examples in Kafka's documentation, which people keep."""
_BROKER: Final = 4  # the resource type of DescribeConfigs
_ANY: Final = 1  # in filters of ACLs
_ONE_PARTITION: Final = 1

# A failure of one connection, not of the address.
_FAILURES = (OSError, NotABrokerError, ProtocolError, click.ClickException)


@dataclass(slots=True)
class Access:
    """A way in, and what may be done behind it."""

    entrance: str
    """`without credentials`, or whose: a part of a sentence."""
    cluster_operations: frozenset[AclOperation] = frozenset()
    topic_operations: Mapping[str, frozenset[AclOperation]] = field(default_factory=dict)
    """Of each topic that can be seen."""
    has_authorizer: bool | None = None
    """None if it is not known."""
    can_create_topics: bool = False
    reads_broker_configs: bool = False
    reads_acls: bool = False
    reads_users: bool = False
    group_count: int = 0
    brokers: dict[int, Address] = field(default_factory=dict)


@dataclass(slots=True)
class Exposure:
    """One address, seen from outside."""

    address: Address
    failure: str = ""
    """Why nothing is known: nobody answers, or no broker."""
    is_loopback: bool = False
    protocol: str = ""
    """The security protocol, as Kafka names it."""
    wants_client_certificate: bool = False
    tls_version: str = ""
    """The newest one that both sides have."""
    old_tls_versions: tuple[str, ...] = ()
    """Those that must not be used any more (RFC 8996) and are accepted."""
    certificate_subject: str = ""
    certificate_days: float | None = None
    """Until it expires; negative: since it has."""
    certificate_problem: str = ""
    """Why a client with these ssl.* properties does not accept it."""
    is_wrong_name: bool = False
    """It is trusted, and for other names."""
    mechanisms: tuple[str, ...] = ()
    ways_in: list[Access] = field(default_factory=list)


def probe_exposure(
    address: Address, timeout_s: float, properties: Mapping[str, str], old_tls: OldTlsVersions
) -> Exposure:
    """Look at one address. Of `properties` only ssl.ca.* counts: whom clients trust."""
    found = Exposure(address)
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        found.is_loopback = all(str(i[4][0]).startswith("127.") or i[4][0] == "::1" for i in infos)
        socket.create_connection((address.host, address.port), timeout_s).close()
    except OSError as error:
        found.failure = error.strerror or str(error) or "no answer"
        return found
    probe = _Probe(found, timeout_s)
    if not probe.speaks_kafka(None):
        probe.look_at_tls(_trusting(properties), old_tls)
    if found.protocol:
        probe.look_at_sasl()
        probe.try_to_get_in()
    elif not found.failure:
        found.failure = "no Kafka broker answers there"
    return found


class OldTlsVersions:
    """Contexts that speak one version of TLS that must not be used any more. Made once, outside of
    threads: Python warns of each."""

    def __init__(self) -> None:
        self.contexts: dict[str, ssl.SSLContext] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for name in ("TLSv1", "TLSv1_1"):
                with suppress(ValueError, ssl.SSLError):
                    context = _unverified()
                    # This machine's policy must not hide what others may do.
                    context.set_ciphers("ALL:@SECLEVEL=0")
                    context.minimum_version = ssl.TLSVersion[name]
                    context.maximum_version = ssl.TLSVersion[name]
                    self.contexts[name.replace("_", ".")] = context


class _Probe:
    """The steps of `probe_exposure`; each opens its own connections."""

    def __init__(self, found: Exposure, timeout_s: float) -> None:
        self._found = found
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None

    def speaks_kafka(self, tls: ssl.SSLContext | None) -> bool:
        """Whether a broker answers ApiVersions, which needs no credentials."""
        try:
            with self._connect(tls) as client:
                client.serves(ApiKey.API_VERSIONS)
        except (OSError, NotABrokerError, ProtocolError):
            return False
        self._tls = tls
        self._found.protocol = "PLAINTEXT" if tls is None else "SSL"
        return True

    def look_at_tls(self, trusting: ssl.SSLContext | None, old: OldTlsVersions) -> None:
        """Certificate and versions, if TLS is spoken."""
        found, address = self._found, self._found.address
        certificate = None
        try:
            with self._handshake(_unverified()) as secure:
                found.tls_version = secure.version() or ""
                certificate = secure.getpeercert(binary_form=True)
        except ssl.SSLError as error:
            # With TLS 1.2 a missing certificate fails the handshake.
            found.wants_client_certificate = "HANDSHAKE_FAILURE" in str(error)
            if not found.wants_client_certificate:
                return
            found.protocol = "SSL"
        except OSError:
            return
        if certificate is not None:
            with suppress(ValueError):
                facts = read_certificate(certificate)
                found.certificate_subject = facts.subject
                found.certificate_days = (facts.not_after_s - time.time()) / 86_400
        if trusting is not None:
            self._verify(trusting)
        versions = []
        for name, context in old.contexts.items():
            with suppress(OSError), self._handshake(context):
                versions.append(name)
        found.old_tls_versions = tuple(versions)
        if not found.wants_client_certificate and not self.speaks_kafka(_unverified()):
            # With TLS 1.3 the alert comes after the handshake.
            found.wants_client_certificate = self._is_refused_for_certificate()
            if found.wants_client_certificate:
                found.protocol = "SSL"
            else:
                found.failure = f"no Kafka broker answers at {address} behind TLS"

    def _verify(self, trusting: ssl.SSLContext) -> None:
        found = self._found
        try:
            with self._handshake(trusting):
                pass
        except ssl.SSLCertVerificationError as error:
            found.certificate_problem = error.verify_message
            found.is_wrong_name = "mismatch" in error.verify_message.lower()
        except OSError:
            pass  # it may want a certificate of the client: that is no problem of its own

    def look_at_sasl(self) -> None:
        """The mechanisms that are offered, by asking for one that nobody has."""
        found = self._found
        if found.wants_client_certificate:
            return
        with suppress(OSError, NotABrokerError, ProtocolError), self._connect(self._tls) as client:
            answer = client.ask(SaslHandshakeRequest(mechanism="NONE"))
            if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
                found.mechanisms = tuple(answer.mechanisms)
                found.protocol = f"SASL_{found.protocol}"

    def try_to_get_in(self) -> None:
        """Without credentials, with those of documentations, and with a token of one's own."""
        found = self._found
        if found.wants_client_certificate:
            return
        address = found.address
        for entrance, security in self._attempts():
            access = Access(entrance)
            with (
                suppress(*_FAILURES),
                security.connect(address.host, address.port, self._timeout_s) as client,
            ):
                if security.authenticate is not None:
                    # Whatever is answered now: the login was accepted.
                    found.ways_in.append(access)
                _ask_metadata(client, access)
                if security.authenticate is None:
                    found.ways_in.append(access)
                _look_around(client, access)

    def _attempts(self) -> Iterator[tuple[str, Security]]:
        yield "without credentials", Security(tls=self._tls)
        protocol = self._found.protocol
        base = {
            "security.protocol": protocol,
            "enable.ssl.certificate.verification": "false",
        }
        for mechanism in self._found.mechanisms:
            if mechanism == "OAUTHBEARER":
                token = {
                    "sasl.mechanism": mechanism,
                    "enable.sasl.oauthbearer.unsecure.jwt": "true",
                    "sasl.oauthbearer.config": "principal=odradek-doctor",
                }
                yield "with an access token that nobody has signed", Security.of({**base, **token})
            elif mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
                for user, password in DOCUMENTED_PASSWORDS:
                    login = {
                        "sasl.mechanism": mechanism,
                        "sasl.username": user,
                        "sasl.password": password,
                    }
                    yield (
                        f"as {user} with a password of Kafka's documentation ({mechanism})",
                        Security.of({**base, **login}),
                    )

    def _connect(self, tls: ssl.SSLContext | None) -> BlockingClient:
        address = self._found.address
        return BlockingClient(address.host, address.port, self._timeout_s, tls=tls)

    @contextmanager
    def _handshake(self, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        address = self._found.address
        with (
            socket.create_connection((address.host, address.port), self._timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            yield secure

    def _is_refused_for_certificate(self) -> bool:
        try:
            with self._connect(_unverified()) as client:
                client.serves(ApiKey.API_VERSIONS)
        except ssl.SSLError as error:
            return "CERTIFICATE" in str(error).upper()
        except (OSError, NotABrokerError, ProtocolError) as error:
            return isinstance(error, ConnectionEndedError | ConnectionResetError)
        return False


def _ask_metadata(client: BlockingClient, access: Access) -> None:
    metadata = client.ask(MetadataRequest(topics=None, include_topic_authorized_operations=True))
    access.brokers = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
    access.topic_operations = {
        each.name: _operations(each.topic_authorized_operations)
        for each in metadata.topics
        if each.name is not None and not each.error_code
    }


def _look_around(client: BlockingClient, access: Access) -> None:
    """What may be done on this connection. Raises what ends the connection; what was found until
    then stays."""
    # What is not answered ends the questions. Kafka forwards a creation to another process: it
    # comes last.
    steps = (_ask_acls, _ask_rights, _ask_configs, _ask_users, _ask_groups, _ask_creation)
    for step in steps:
        # An older broker, or one that is not allowed to tell.
        with suppress(UnsupportedApiError, ProtocolError):
            step(client, access)


def _ask_rights(client: BlockingClient, access: Access) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    access.cluster_operations = _operations(client.ask(request).cluster_authorized_operations)


def _ask_creation(client: BlockingClient, access: Access) -> None:
    name = f"odradek-doctor-{secrets.token_hex(8)}"
    topic = CreatableTopic(name=name, num_partitions=_ONE_PARTITION, replication_factor=1)
    answer = client.ask(CreateTopicsRequest(topics=[topic], validate_only=True))
    refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    access.can_create_topics = all(each.error_code not in refused for each in answer.topics)


def _ask_configs(client: BlockingClient, access: Access) -> None:
    if access.brokers:
        node_id = str(min(access.brokers))
        broker = DescribeConfigsResource(
            resource_type=_BROKER, resource_name=node_id, configuration_keys=["listeners"]
        )
        answer = client.ask(DescribeConfigsRequest(resources=[broker]))
        access.reads_broker_configs = all(not each.error_code for each in answer.results)


def has_authorizer(client: BlockingClient) -> bool:
    """Whether the cluster has an authorizer, asked by anybody who is let in."""
    return _describe_acls(client) != ErrorCode.SECURITY_DISABLED


def _ask_acls(client: BlockingClient, access: Access) -> None:
    error = _describe_acls(client)
    access.reads_acls = not error
    access.has_authorizer = error != ErrorCode.SECURITY_DISABLED


def _describe_acls(client: BlockingClient) -> int:
    """The error code of DescribeAcls for all of them."""
    everything = DescribeAclsRequest(
        resource_type_filter=_ANY, pattern_type_filter=_ANY, operation=_ANY, permission_type=_ANY
    )
    return client.ask(everything).error_code


def _ask_users(client: BlockingClient, access: Access) -> None:
    answer = client.ask(DescribeUserScramCredentialsRequest(users=None))
    access.reads_users = not answer.error_code


def _ask_groups(client: BlockingClient, access: Access) -> None:
    access.group_count = len(client.ask(ListGroupsRequest()).groups)


def _operations(bits: int) -> frozenset[AclOperation]:
    """Of a bit field of KIP-430; negative: the broker does not say."""
    if bits < 0:
        return frozenset()
    return frozenset(each for each in AclOperation if bits >> each & 1)


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _trusting(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    trusted = {key: text for key, text in properties.items() if key.startswith("ssl.ca.")}
    return Security.of({"security.protocol": "SSL", **trusted}).tls
