"""SCRAM credentials as the metadata has them (RFC 5802, KIP-554): keys that prove a password.

A `ScramCredential` is what a broker needs to authenticate a user: with the stored key it checks the
client's proof, with the server key it proves that it has the credential. Neither is the password,
nor can a client authenticate with them. The salted password, which is as good as the password
itself, is never kept. Pure; `salt_of` gets random bytes.
"""

import hashlib
import hmac
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

ITERATIONS_MIN: Final = 4096  # RFC 7677
ITERATIONS_MAX: Final = 16_384  # Kafka's ScramControlManager
SALT_RANDOM_BYTES: Final = 17
_SALT_BITS: Final = 130  # as Kafka's ScramFormatter
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 26


class ScramMechanism(IntEnum):
    """The mechanisms, with their numbers on the wire."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in SaslHandshake."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash function, as hashlib names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        """The length of keys, signatures and proofs."""
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


SCRAM_MECHANISMS: Final[Mapping[str, ScramMechanism]] = {
    mechanism.sasl_name: mechanism for mechanism in ScramMechanism
}
"""By SASL name."""


class ScramUser(NamedTuple):
    """Whose credential it is: a user has one for each mechanism."""

    name: str
    mechanism: int


class ScramCredential(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a broker knows of a password. Its text shows no key."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


ScramImage: TypeAlias = Mapping[ScramUser, ScramCredential]
"""All credentials of a cluster."""


def salt_of(random_bytes: bytes) -> bytes:
    """A salt in the form that Kafka's clients give it, of SALT_RANDOM_BYTES random bytes."""
    number = int.from_bytes(random_bytes) % (1 << _SALT_BITS)
    digits = []
    for _ in range(_SALT_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits).encode()


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Hi() of RFC 5802. Takes milliseconds: clients and tools compute it, never a broker.

    As in Kafka, the password is not prepared (SASLprep); its UTF-8 bytes count.
    """
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential that belongs to a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.digest),
        iterations=iterations,
    )
