"""Raw values: everything is good."""

from multiprocessing.reduction import ForkingPickler

import pyarrow as pa

from odradek.pipeline.values.raw_values import RawValues


def test_bytes_stay_and_a_tombstone_is_null() -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    decoded = RawValues().decode(values)
    assert decoded.table.to_pydict() == {"kafka_value": [b"a", None, b""]}
    assert decoded.table.schema == RawValues().columns()
    assert decoded.good.to_pylist() == [True, True, True]
    assert decoded.problems == {}


def test_it_travels_and_has_one_fingerprint() -> None:
    travelled = ForkingPickler.loads(ForkingPickler.dumps(RawValues()))
    assert travelled.fingerprint() == RawValues().fingerprint()
    assert travelled.decode(pa.array([], pa.binary())).table.num_rows == 0
