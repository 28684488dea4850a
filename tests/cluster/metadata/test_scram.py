"""Credentials: the keys of RFC 7677's example, and Kafka's form of salts."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramMechanism as ScrampMechanism

from odradek.cluster.metadata.scram import (
    SALT_RANDOM_BYTES,
    SCRAM_MECHANISMS,
    ScramMechanism,
    credential_of,
    salt_of,
    salted_password,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def test_mechanisms_have_kafkas_names_and_numbers() -> None:
    assert {name: int(mechanism) for name, mechanism in SCRAM_MECHANISMS.items()} == {
        "SCRAM-SHA-256": 1,
        "SCRAM-SHA-512": 2,
    }


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_keys_are_those_of_another_implementation(mechanism: ScramMechanism) -> None:
    salted = salted_password(mechanism, "pencil", SALT, 4096)
    credential = credential_of(mechanism, salted, SALT, 4096)
    other = ScrampMechanism(mechanism.sasl_name)
    _, stored_key, server_key, iterations = other.make_auth_info(
        "pencil", salt=SALT, iteration_count=4096
    )
    assert (credential.stored_key, credential.server_key) == (stored_key, server_key)
    assert credential.iterations == iterations
    assert len(credential.stored_key) == mechanism.digest_bytes


def test_text_of_a_credential_shows_no_key() -> None:
    credential = credential_of(ScramMechanism.SCRAM_SHA_256, b"salted", b"salt", 4096)
    assert repr(credential) == "ScramCredential(iterations=4096)"


@given(st.binary(min_size=SALT_RANDOM_BYTES, max_size=SALT_RANDOM_BYTES))
def test_salts_look_like_those_of_kafkas_clients(random_bytes: bytes) -> None:
    assert re.fullmatch(rb"[0-9a-z]{26}", salt_of(random_bytes))
