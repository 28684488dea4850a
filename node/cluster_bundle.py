"""The bundle of a hardened cluster: what its nodes are formatted from.

The first node writes it, and each of the others is formatted from a copy. One invariant: it is not
used if others can read it, because whoever has it can be any node of the cluster. It has the keys
that prove the first user's password, never the password. Called by hardened_node.py and by
node/cli/certificate.py.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from odradek.node.certificate_authority import CertificateAuthority
from odradek.node.config_sources import ConfigurationError

BUNDLE_NAME: Final = "cluster.bundle"
_VERSION: Final = 1


class ClusterBundle(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes of a cluster have in common."""

    version: int = _VERSION
    cluster_id: str
    authority_certificate: str
    authority_key: str
    cluster_secret: str
    """As in `cluster.secret.file`: a second line while the secret is being replaced."""
    admin: str
    """The name of the first user, a super user."""
    records: bytes
    """The first user's credentials, as records of the metadata log."""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Of every node: `peers` and `stores`, if they are set."""

    @property
    def authority(self) -> CertificateAuthority:
        """Issues the certificates of the nodes."""
        return CertificateAuthority(self.authority_certificate, self.authority_key)

    def encode(self) -> bytes:
        """The content of the file: JSON."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def read_bundle(path: Path) -> ClusterBundle:
    """The bundle in a file. Raises ConfigurationError; the text shows nothing of the content."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigurationError(
                    f"{path}: others can read this file, which has the keys of the cluster. Run"
                    f" `chmod 600 {path}`."
                )
            bundle = msgspec.json.decode(file.read(), type=ClusterBundle)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{path} is not a bundle of `odradek format --hardened`"
        ) from error
    if bundle.version > _VERSION:
        raise ConfigurationError(
            f"{path} has version {bundle.version}; this release supports {_VERSION}. Use the newer"
            " release that wrote it."
        )
    return bundle
