"""What a broker needs to know of an X.509 certificate: subject, validity, and the names in it.

Reads DER (X.690) by itself, without copying: certificates of clients are read when they connect.
Pure. One invariant: any bytes either are read or raise ValueError, and no length is believed that
exceeds what is there. Called by node/wire/tls_context.py and tls_transport.py.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

_INTEGER: Final = 0x02
_OBJECT_IDENTIFIER: Final = 0x06
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_SUBJECT_ALTERNATIVE_NAME: Final = bytes.fromhex("551d11")

# Attribute types that RFC 2253 has a keyword for; Java writes all others as dotted numbers.
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANKS: Final = " \r"


class CertificateFacts(NamedTuple):
    """Of one certificate. Times are in seconds since the epoch; `not_after` is the last valid
    one. `alternative_names` are the DER bytes of its subject alternative names."""

    subject: str
    not_before_s: int
    not_after_s: int
    alternative_names: frozenset[bytes]


class _Element(NamedTuple):
    tag: int
    start: int
    """Of the element with its header."""
    content: int
    end: int


def read_certificate(certificate: bytes) -> CertificateFacts:
    """The facts of a certificate in DER. Raises ValueError for bytes that are none."""
    (whole,) = _elements(certificate, 0, len(certificate))
    parts = _inside(certificate, whole, _SEQUENCE)
    fields = list(_inside(certificate, next(parts, None), _SEQUENCE))
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    # serialNumber, signature, issuer, validity, subject, subjectPublicKeyInfo, ...
    if len(fields) < 6 or fields[0].tag != _INTEGER:
        raise ValueError("these bytes are no X.509 certificate")
    times = [_time(certificate, each) for each in _inside(certificate, fields[3], _SEQUENCE)]
    if len(times) != 2:
        raise ValueError("the certificate has no period of validity")
    subject = fields[4]
    return CertificateFacts(
        subject=distinguished_name(certificate[subject.start : subject.end]),
        not_before_s=times[0],
        not_after_s=times[1],
        alternative_names=_alternative_names(certificate, fields[6:]),
    )


def distinguished_name(name: bytes) -> str:
    """A Name in DER as text, the same as Java's X500Principal.getName() gives (RFC 2253): the last
    relative name first, other attribute types as numbers with their values in hexadecimal."""
    (whole,) = _elements(name, 0, len(name))
    texts = [
        "+".join(_attribute(name, each) for each in _elements(name, part.content, part.end))
        for part in _inside(name, whole, _SEQUENCE)
    ]
    return ",".join(reversed(texts))


def _attribute(data: bytes, pair: _Element) -> str:
    kind, value = _inside(data, pair, _SEQUENCE)
    if kind.tag != _OBJECT_IDENTIFIER:
        raise ValueError("an attribute of a name has no type")
    dotted = _dotted(data[kind.content : kind.end])
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or dotted}=#{data[value.start : value.end].hex()}"
    return f"{keyword}={_escaped(data[value.content : value.end].decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    lead = len(text) - len(text.lstrip(_BLANKS))
    trail = max(lead, len(text.rstrip(_BLANKS)))
    middle = "".join(
        f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in text[lead:trail]
    )
    return "".join(f"\\{c}" for c in text[:lead]) + middle + "".join(f"\\{c}" for c in text[trail:])


def _alternative_names(data: bytes, rest: list[_Element]) -> frozenset[bytes]:
    for part in rest:
        if part.tag != _EXTENSIONS:
            continue
        (listed,) = _elements(data, part.content, part.end)
        for extension in _inside(data, listed, _SEQUENCE):
            kind, *_, value = _inside(data, extension, _SEQUENCE)
            if data[kind.content : kind.end] == _SUBJECT_ALTERNATIVE_NAME:
                (names,) = _elements(data, value.content, value.end)
                return frozenset(
                    data[each.start : each.end] for each in _inside(data, names, _SEQUENCE)
                )
    return frozenset()


def _time(data: bytes, element: _Element) -> int:
    """RFC 5280: UTCTime is of 1950 to 2049; both end in Z."""
    text = data[element.content : element.end].decode("ascii")
    if element.tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


def _dotted(encoded: bytes) -> str:
    numbers = []
    number = 0
    for byte in encoded:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or encoded[-1] & 0x80:
        raise ValueError("an object identifier is cut short")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _inside(data: bytes, element: _Element | None, tag: int) -> Iterator[_Element]:
    if element is None or element.tag != tag:
        raise ValueError("these bytes are no X.509 structure")
    return _elements(data, element.content, element.end)


def _elements(data: bytes, start: int, end: int) -> Iterator[_Element]:
    """The elements in `[start, end)`, which they fill."""
    while start < end:
        if end - start < 2:
            raise ValueError("a DER element is cut short")
        tag, length, content = data[start], data[start + 1], start + 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4 or content + size > end:
                raise ValueError("the length of a DER element is not valid")
            length = int.from_bytes(data[content : content + size], "big")
            content += size
        if content + length > end:
            raise ValueError("a DER element is longer than what contains it")
        yield _Element(tag, start, content, content + length)
        start = content + length
