import pytest

from tests.support.kio_parity import cases, check


@pytest.mark.parametrize(
    ("api", "side", "version"),
    cases("DescribeUserScramCredentials", "AlterUserScramCredentials"),
)
def test_every_version_agrees_with_kio(api: str, side: str, version: int) -> None:
    check(api, side, version)
