"""A node that is safe from its first start: what `odradek format --hardened` writes.

One folder has the configuration, the keys and, unless they are elsewhere, the data. The first node
of a cluster makes the bundle (cluster_bundle.py); the others are formatted from it. Two invariants:
a file with a secret can be read by this user only, and nothing that exists is replaced. If anything
fails, what was written is removed, so that the command can be repeated.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from odradek.cluster.metadata.listener_addresses import parse_host_and_port
from odradek.cluster.metadata.records import (
    ScramCredentialChanged,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.scram import ITERATIONS_MAX, ScramMechanism
from odradek.node.bootstrap_credentials import (
    FILE_NAME,
    ScramUserArgument,
    credential_record,
    write_bootstrap_credentials,
)
from odradek.node.certificate_authority import NODE_DAYS, CertificateAuthority, names_of
from odradek.node.cluster_bundle import BUNDLE_NAME, ClusterBundle, read_bundle
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.data_folder import (
    META_NAME,
    adopt_meta_properties,
    new_cluster_id,
    read_meta_properties,
)
from odradek.node.listener_security import check_tls
from odradek.node.peer_config import read_secrets

CONFIG_NAME: Final = "node.toml"
STORE_NAME: Final = "broker.pem"
AUTHORITY_NAME: Final = "authority.pem"
NEW_AUTHORITY_NAME: Final = "authority-new.pem"
SECRET_NAME: Final = "cluster.secret"
CLIENT_NAME: Final = "admin.properties"
JAVA_CLIENT_NAME: Final = "admin-java.properties"
FILES: Final = (
    *(CONFIG_NAME, STORE_NAME, AUTHORITY_NAME, SECRET_NAME, BUNDLE_NAME),
    *(CLIENT_NAME, JAVA_CLIENT_NAME),
)
MECHANISM: Final = "SCRAM-SHA-512"
_LISTENER: Final = "SASL_SSL"
_SECRET_BYTES: Final = 32
_OWN_NAMES: Final = ("localhost", "127.0.0.1", "::1")
"""In every certificate, for tools on the node's own machine."""
_REPLICAS_MAX: Final = 3
_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardenedNode:
    """What an operator says of a node. `advertise` and `listen` are `host:port`."""

    folder: Path
    data: Path
    node_id: int
    advertise: str
    listen: str
    names: tuple[str, ...] = ()
    """Further names and addresses for its certificate."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of its configuration, beside those that make it safe."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """All names and addresses for its certificate."""
        host, _ = parse_host_and_port(self.advertise)
        return tuple(dict.fromkeys((host, *self.names, *_OWN_NAMES)))

    @property
    def common_name(self) -> str:
        """The subject of its certificate, which stays when the certificate is renewed."""
        return f"odradek node {self.node_id}"


def new_bundle(admin: str, password: str, settings: Mapping[str, str]) -> ClusterBundle:
    """A new cluster, whose first user has this password. Raises ConfigurationError."""
    if password != password.strip() or not password.isprintable():
        raise ConfigurationError(
            "the password of the first user must not begin or end with a blank, nor have control"
            " characters: client properties could not have it"
        )
    if not _USER.fullmatch(admin):
        raise ConfigurationError(
            f"{admin!r}: the name of the first user must be letters, digits, dots, dashes,"
            " underscores or @"
        )
    cluster_id = settings.get("cluster.id") or new_cluster_id()
    authority = CertificateAuthority.create(_authority_name(cluster_id), datetime.now(UTC))
    user = ScramUserArgument(ScramMechanism.SCRAM_SHA_512, admin, ITERATIONS_MAX, None, None)
    return ClusterBundle(
        cluster_id=cluster_id,
        authority_certificate=authority.certificate,
        authority_key=authority.key,
        cluster_secret=secrets.token_urlsafe(_SECRET_BYTES),
        admin=admin,
        records=bytes(encode_records((credential_record(user, password),))),
        settings={key: settings[key] for key in ("peers", "stores") if key in settings},
    )


def formatted_already(node: HardenedNode) -> str | None:
    """What is there already, as a sentence; None if this node can be formatted. Raises
    ConfigurationError."""
    known = read_meta_properties(node.data)
    if known is not None:
        return (
            f"data={node.data}: this is the data folder of node {known.node_id} of cluster"
            f" {known.cluster_id} already; choose another, or pass --if-not-formatted"
        )
    present = [name for name in FILES if (node.folder / name).exists()]
    if present:
        return (
            f"{node.folder} has {', '.join(present)} of a node already; choose another folder, or"
            " move them away"
        )
    return None


def format_hardened(node: HardenedNode, bundle: ClusterBundle, password: str | None) -> NodeConfig:
    """Write everything. With the password of the first user, which only the first node has, also
    the bundle and the files for clients. Raises ConfigurationError."""
    present = formatted_already(node)
    if present is not None:
        raise ConfigurationError(present)
    try:
        certificate = bundle.authority.issue(
            node.common_name, node.certificate_names, datetime.now(UTC)
        )
    except ValueError as error:
        raise ConfigurationError(
            f"no certificate can be made for {', '.join(node.certificate_names)}: {error}"
        ) from error
    contents = {
        STORE_NAME: certificate,
        AUTHORITY_NAME: bundle.authority_certificate,
        SECRET_NAME: f"{bundle.cluster_secret}\n",
        CONFIG_NAME: configuration_text(node, bundle),
    }
    if password is not None:
        contents[CLIENT_NAME] = _properties(client_properties(node, bundle, password))
        contents[JAVA_CLIENT_NAME] = _properties(java_properties(node, bundle, password))
        contents[BUNDLE_NAME] = bundle.encode().decode()
    with _nothing_stays_after_an_error(node):
        node.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, text in contents.items():
            _write_new(node.folder / name, text, is_secret=name != AUTHORITY_NAME)
        config = load(file=node.folder / CONFIG_NAME, environment={})
        check_tls(config)
        node.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bootstrap_credentials(node.data, _credentials(bundle))
        return adopt_meta_properties(config, formats=True)


class NewAuthority(NamedTuple):
    """The files that `replace_authority` wrote."""

    bundle: Path
    both: Path
    """For clients until all nodes have new certificates: the old authority and the new one."""
    new: Path
    """For clients after that."""


def replace_authority(bundle: ClusterBundle, folder: Path) -> NewAuthority:
    """Write a bundle with a new authority, otherwise the same, into a new folder. Nothing changes
    until nodes get certificates from it. Raises ConfigurationError."""
    name = _authority_name(bundle.cluster_id)
    authority = CertificateAuthority.create(name, datetime.now(UTC))
    changed = msgspec.structs.replace(
        bundle, authority_certificate=authority.certificate, authority_key=authority.key
    )
    written = NewAuthority(
        folder / BUNDLE_NAME, folder / AUTHORITY_NAME, folder / NEW_AUTHORITY_NAME
    )
    try:
        folder.mkdir(parents=True, mode=0o700)
        _write_new(written.bundle, changed.encode().decode(), is_secret=True)
        _write_new(
            written.both, bundle.authority_certificate + authority.certificate, is_secret=False
        )
        _write_new(written.new, authority.certificate, is_secret=False)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from error
    return written


def update_bundle(path: Path, secret_file: Path) -> ClusterBundle:
    """Give a bundle the cluster's secrets of a file of `cluster.secret.file`: after they were
    replaced a node that is formatted from it could not join otherwise. Raises ConfigurationError,
    which shows no secret."""
    bundle = read_bundle(path)
    try:
        found = read_secrets(str(secret_file))
    except ValueError as error:
        raise ConfigurationError(f"{secret_file}: {error}") from error
    changed = msgspec.structs.replace(bundle, cluster_secret="\n".join(found))
    try:
        _replace(path, changed.encode().decode())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    return changed


class RenewedCertificate(NamedTuple):
    """What `renew_certificate` wrote."""

    node_id: int
    path: Path
    names: tuple[str, ...]
    valid_until: str
    """The last day, as in ISO 8601."""


def renew_certificate(
    folder: Path, bundle: ClusterBundle, more_names: tuple[str, ...]
) -> RenewedCertificate:
    """Replace key and certificate of the node in this folder; the old names stay. A running node
    uses them within seconds. Raises ConfigurationError."""
    config = load(file=folder / CONFIG_NAME, environment={})
    if config.cluster_id != bundle.cluster_id:
        raise ConfigurationError(
            f"{folder} belongs to cluster {config.cluster_id}, and the bundle to cluster"
            f" {bundle.cluster_id}"
        )
    path = folder / STORE_NAME
    now = datetime.now(UTC)
    try:
        common_name, known = names_of(path.read_text(encoding="utf-8"))
        names = tuple(dict.fromkeys((*known, *more_names)))
        _replace(path, bundle.authority.issue(common_name, names, now))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be renewed: {error}") from error
    last_day = (now + timedelta(days=NODE_DAYS)).date().isoformat()
    return RenewedCertificate(config.node_id, path, names, last_day)


def configuration_text(node: HardenedNode, bundle: ClusterBundle) -> str:
    """The content of node.toml."""
    settings: dict[str, str] = {
        "node.id": str(node.node_id),
        "cluster.id": bundle.cluster_id,
        "data": str(node.data),
        "cluster.secret.file": str(node.folder / SECRET_NAME),
        "listeners": f"{_LISTENER}://{node.listen}",
        "advertised.listeners": f"{_LISTENER}://{node.advertise}",
        "listener.security.protocol.map": f"{_LISTENER}:{_LISTENER}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(node.folder / STORE_NAME),
        "sasl.enabled.mechanisms": MECHANISM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": f"User:{bundle.admin}",
        # A credential that is removed is of no use after an hour at most.
        "connections.max.reauth.ms": "3600000",
        "auto.create.topics.enable": "false",
    }
    settings |= bundle.settings
    replicas = min(_REPLICAS_MAX, settings.get("peers", "").count("@"))
    if replicas > 1:
        settings["default.replication.factor"] = str(replicas)
    if replicas == _REPLICAS_MAX:
        settings["min.insync.replicas"] = "2"
    if "join" in node.settings:
        settings.pop("peers", None)
    settings |= node.settings
    lines = [
        "# Made by `odradek format --hardened`; docs/security.md says what each setting protects.",
        *(f"{key} = {_toml(value)}" for key, value in settings.items()),
    ]
    return "\n".join(lines) + "\n"


def client_properties(node: HardenedNode, bundle: ClusterBundle, password: str) -> dict[str, str]:
    """librdkafka's properties of the first user."""
    return {
        "bootstrap.servers": node.advertise,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(node.folder / AUTHORITY_NAME),
        "sasl.mechanism": MECHANISM,
        "sasl.username": bundle.admin,
        "sasl.password": password,
    }


def java_properties(node: HardenedNode, bundle: ClusterBundle, password: str) -> dict[str, str]:
    """The same for Java clients, and `--command-config` of Kafka's tools."""
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{bundle.admin}" password="{escaped}";'
    )
    return {
        "bootstrap.servers": node.advertise,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(node.folder / AUTHORITY_NAME),
        "sasl.mechanism": MECHANISM,
        # A file of properties has escapes of its own.
        "sasl.jaas.config": login.replace("\\", "\\\\"),
    }


def _credentials(bundle: ClusterBundle) -> list[ScramCredentialChanged]:
    try:
        records = decode_records(bundle.records)
    except ValueError as error:
        raise ConfigurationError(f"the first user of the bundle is damaged: {error}") from error
    return [record for record in records if isinstance(record, ScramCredentialChanged)]


def _authority_name(cluster_id: str) -> str:
    # The date tells one from the next; 64 characters are all that a common name has.
    return f"Odradek {cluster_id[:40]} {datetime.now(UTC).date().isoformat()}"


def _properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _toml(value: str) -> str:
    """As a basic string, of which JSON's are a subset; numbers and truth values as they are."""
    if value in ("true", "false") or re.fullmatch(r"0|[1-9][0-9]{0,17}", value):
        return value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write_new(path: Path, text: str, *, is_secret: bool) -> None:
    """Write a file that does not exist yet, durably. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600 if is_secret else 0o644), "wb") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _replace(path: Path, text: str) -> None:
    """Replace a file with a secret in one step, for its owner. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        owner = path.stat()
        _write_new(fresh, text, is_secret=True)
        if os.geteuid() == 0:
            # Root replaces what the service's user has to read.
            os.chown(fresh, owner.st_uid, owner.st_gid)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


@contextmanager
def _nothing_stays_after_an_error(node: HardenedNode) -> Iterator[None]:
    """None of the files exists before the block. OSError becomes ConfigurationError."""
    try:
        yield
    except BaseException as error:
        ours = [node.folder / name for name in FILES]
        for path in (*ours, node.data / FILE_NAME, node.data / META_NAME):
            with suppress(OSError):
                path.unlink()
        for folder in (node.data, node.folder):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty
        if isinstance(error, OSError):
            raise ConfigurationError(f"{error.filename}: {error.strerror}") from error
        raise
