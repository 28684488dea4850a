"""Certificates as Java reads them, and bytes that are none."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.security.certificates import distinguished_name, read_certificate

KAFKA = json.loads(
    (Path(__file__).parents[2] / "support" / "ssl_principals_kafka_4_3_1.json").read_text()
)
CERTIFICATES = [(bytes.fromhex(each["certificate"]), each["name"]) for each in KAFKA["names"]]


@pytest.mark.parametrize(("certificate", "name"), CERTIFICATES)
def test_a_subject_is_written_as_java_writes_it(certificate: bytes, name: str) -> None:
    assert read_certificate(certificate).subject == name


def test_validity_and_alternative_names_are_read() -> None:
    first, second = (read_certificate(CERTIFICATES[index][0]) for index in (0, 1))
    assert first.not_before_s == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    # Years from 2050 are written in another form.
    assert first.not_after_s == datetime(2051, 1, 2, tzinfo=UTC).timestamp()
    assert second.not_after_s == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert first.alternative_names == {b"\x82\ta.example", b"\x82\tb.example"}


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_raise_only_value_error(data: bytes) -> None:
    for read in (read_certificate, distinguished_name):
        try:
            read(data)
        except ValueError:
            continue


@given(st.data())
def test_a_damaged_certificate_raises_only_value_error(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(CERTIFICATES))[0])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_certificate(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except ValueError:
        return
