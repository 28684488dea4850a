"""A certificate authority for the nodes of one cluster, and the certificates that it issues.

For clusters that have no authority of their own: `odradek format --hardened` makes one. One
invariant: a certificate of a node proves the node's names and nothing else; it can issue nothing.
Keys are of the curve P-256. Called by hardened_node.py.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3_650
NODE_DAYS: Final = 730
_CLOCK_SKEW: Final = timedelta(hours=1)
"""Clients whose clock is behind must not find a certificate that is not valid yet."""


class CertificateAuthority(NamedTuple):
    """Its certificate and its private key, in PEM. Whoever has the key can be any node."""

    certificate: str
    key: str

    @classmethod
    def create(cls, name: str, now: datetime) -> "CertificateAuthority":
        """A new authority; clients see `name`, of at most 64 characters, as its subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name)
        certificate = (
            _builder(key.public_key(), subject, now, AUTHORITY_DAYS)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, SHA256())
        )
        return cls(_pem_of_certificate(certificate), _pem_of_key(key))

    def issue(self, common_name: str, names: Sequence[str], now: datetime) -> str:
        """A new private key (PKCS#8) and its certificate with that of the authority, in PEM, for
        the DNS names and addresses `names`. Raises ValueError for names that no certificate can
        have."""
        issuer = x509.load_pem_x509_certificate(self.certificate.encode())
        signing_key = load_pem_private_key(self.key.encode(), None)
        assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(key.public_key(), _named(common_name), now, NODE_DAYS)
            .issuer_name(issuer.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(each) for each in names]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
                critical=False,
            )
            .sign(signing_key, SHA256())
        )
        return _pem_of_key(key) + _pem_of_certificate(certificate) + self.certificate


def names_of(pem: str) -> tuple[str, tuple[str, ...]]:
    """The common name and the alternative names of the first certificate in PEM. Raises
    ValueError."""
    certificate = x509.load_pem_x509_certificates(pem.encode())[0]
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not common:
        raise ValueError("the certificate has no common name")
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("the certificate has no subject alternative names") from None
    return str(common[0].value), tuple(str(each.value) for each in found)


def _builder(
    key: ec.EllipticCurvePublicKey, subject: x509.Name, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _CLOCK_SKEW)
        .not_valid_after(now.astimezone(UTC) + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    # Java reads keys in PKCS#8 only.
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _pem_of_certificate(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
