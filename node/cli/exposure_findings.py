"""How bad what a stranger finds is, and what to change: findings of `odradek doctor --security`.

Pure. A finding is `serious` if somebody who can reach the address could read, write or change
something, or be somebody else; a `warning` if it is one mistake away from that, or will break
soon; `advice` otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from odradek.cluster.metadata.acls import AclOperation
from odradek.node.cli.exposure import Access, Exposure

SERIOUS = "serious"
WARNING = "warning"
ADVICE = "advice"
SEVERITIES = (SERIOUS, WARNING, ADVICE)
CERTIFICATE_DAYS_MIN = 30
"""A certificate that is valid for fewer days is a warning."""
_TOPIC_RIGHTS = (
    (AclOperation.READ, "read the records of"),
    (AclOperation.WRITE, "write records to"),
    (AclOperation.DELETE, "delete"),
    (AclOperation.ALTER_CONFIGS, "change the configs of"),
)
_CLUSTER_RIGHTS = (
    (AclOperation.ALTER_CONFIGS, "change the configs of brokers"),
    (AclOperation.ALTER, "change ACLs, users and the layout of the cluster"),
    (AclOperation.CLUSTER_ACTION, "send requests that only brokers send"),
)


@dataclass(frozen=True, slots=True)
class SecurityFinding:
    """What is wrong, where, and what to change."""

    severity: str
    address: str
    """Of a broker, or the file of a configuration."""
    finding: str
    advice: str


def exposure_findings(found: Exposure) -> Iterator[SecurityFinding]:
    """The findings about one address."""
    yield from _access_findings(found)
    yield from _cleartext_findings(found)
    yield from _tls_findings(found)


def login_findings(address: str, *, has_authorizer: bool) -> Iterator[SecurityFinding]:
    """What the caller's own login at an address shows that a stranger cannot see."""
    if not has_authorizer:
        yield SecurityFinding(
            WARNING,
            address,
            "whoever has a login may do everything: the cluster has no authorizer",
            "Set authorizer.class.name, super.users and allow.everyone.if.no.acl.found=false, and"
            " give each user what it needs (docs/security.md).",
        )


def rights(access: Access) -> list[str]:
    """What may be done that reads records or changes something, as parts of a sentence."""
    found = ["create topics"] if access.can_create_topics else []
    for operation, verb in _TOPIC_RIGHTS:
        count = sum(operation in each for each in access.topic_operations.values())
        if count:
            found.append(f"{verb} {count} of {_topics(len(access.topic_operations))}")
    found += [text for right, text in _CLUSTER_RIGHTS if right in access.cluster_operations]
    return found


def sights(access: Access) -> list[str]:
    """What can be seen, as parts of a sentence."""
    count = len(access.topic_operations)
    found = [f"the names of {_topics(count)}"] if count else []
    if access.group_count:
        found.append(f"{access.group_count} group{'s' * (access.group_count != 1)}")
    for is_seen, text in (
        (access.reads_broker_configs, "the configs of brokers"),
        (access.reads_acls, "the ACLs"),
        (access.reads_users, "the names of users"),
    ):
        if is_seen:
            found.append(text)
    return found


def _access_findings(found: Exposure) -> Iterator[SecurityFinding]:
    address = str(found.address)
    for access in found.ways_in:
        is_open = access.entrance == "without credentials"
        advice = (
            _way_out(found)
            if is_open
            else "Verify access tokens: set sasl.oauthbearer.jwks.endpoint.url and remove"
            " sasl.server.callback.handler.class."
            if "token" in access.entrance
            else "Give this user another password, or remove it."
        )
        here = " from this machine" if found.is_loopback else ""
        if access.has_authorizer is False:
            yield SecurityFinding(
                SERIOUS,
                address,
                f"anybody who reaches it{here} may do everything, {access.entrance}: the cluster"
                " has no authorizer",
                f"{advice} Set authorizer.class.name, super.users and"
                " allow.everyone.if.no.acl.found=false.",
            )
            continue
        may = rights(access)
        if may:
            yield SecurityFinding(
                SERIOUS,
                address,
                f"anybody who reaches it{here} may {_list(may)}, {access.entrance}",
                f"{advice} Remove the ACLs of that principal and of User:*"
                " (`odradek acl list`), take it out of super.users, and set"
                " allow.everyone.if.no.acl.found=false.",
            )
        elif not is_open:
            yield SecurityFinding(
                SERIOUS, address, f"anybody can authenticate {access.entrance}", advice
            )
        else:
            sees = sights(access)
            yield SecurityFinding(
                WARNING,
                address,
                f"anybody who reaches it{here} is let in {access.entrance}, and sees"
                f" {_list(sees) if sees else 'the addresses of the brokers'}; ACLs forbid the rest",
                advice,
            )


def _cleartext_findings(found: Exposure) -> Iterator[SecurityFinding]:
    address = str(found.address)
    if found.protocol != "SASL_PLAINTEXT":
        return
    in_clear = [each for each in found.mechanisms if each in ("PLAIN", "OAUTHBEARER")]
    if in_clear:
        yield SecurityFinding(
            SERIOUS,
            address,
            f"{_list(in_clear)} without encryption: whoever listens to the network has the"
            f" {'passwords' if 'PLAIN' in in_clear else 'tokens'} of all clients",
            "Make the listener SASL_SSL (listener.security.protocol.map, ssl.keystore.location).",
        )
    else:
        yield SecurityFinding(
            WARNING,
            address,
            "records cross the network without encryption, and whoever listens can try passwords"
            " against the logins that it sees",
            "Make the listener SASL_SSL (listener.security.protocol.map, ssl.keystore.location).",
        )


def _tls_findings(found: Exposure) -> Iterator[SecurityFinding]:
    address, days = str(found.address), found.certificate_days
    if found.old_tls_versions:
        yield SecurityFinding(
            SERIOUS,
            address,
            f"it accepts {_list(found.old_tls_versions)}, which RFC 8996 forbids",
            "Set ssl.enabled.protocols=TLSv1.2,TLSv1.3.",
        )
    if days is not None and days < CERTIFICATE_DAYS_MIN:
        yield SecurityFinding(
            SERIOUS if days < 0 else WARNING,
            address,
            "its certificate has expired"
            if days < 0
            else f"its certificate expires in {days:.0f} days",
            "Write a new one into the files of ssl.keystore.location. Odradek uses it within"
            " seconds, Kafka when ssl.keystore.location is set again.",
        )
    if found.is_wrong_name:
        yield SecurityFinding(
            SERIOUS,
            address,
            f"its certificate is for other names: {found.certificate_problem}",
            "Issue one with the advertised name among its subject alternative names. Clients that"
            " connect nevertheless do not verify whom they talk to.",
        )
    elif found.certificate_problem and not (days is not None and days < 0):
        yield SecurityFinding(
            WARNING,
            address,
            f"its certificate is not trusted here: {found.certificate_problem}",
            "If clients know its authority, name it here too: -X ssl.ca.location=FILE. Clients that"
            " turn the verification off can be deceived.",
        )


def _way_out(found: Exposure) -> str:
    if found.protocol == "SSL":
        return (
            "Let clients authenticate: ssl.client.auth=required with ssl.truststore.location, or"
            " make the listener SASL_SSL."
        )
    return (
        "Bind the listener to 127.0.0.1, or give it TLS and authentication (`odradek format"
        " --hardened`, docs/security.md)."
    )


def _topics(count: int) -> str:
    return f"{count} topic{'s' * (count != 1)}"


def _list(parts: list[str] | tuple[str, ...]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
