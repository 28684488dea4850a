"""docs/compatibility.md agrees with the router's table, and has a reason for each API that is not
served.
"""

from pathlib import Path

from odradek.node.router.dispatch import HANDLERS
from odradek.protocol.apis import APIS, ApiKey
from tests.support.compatibility_page import INTERNAL, NOT_SERVED, compatibility_page, main

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"


def test_the_page_is_the_one_that_the_tables_make(tmp_path: Path) -> None:
    main([str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "run: make docs"


def test_every_api_is_served_or_has_exactly_one_reason() -> None:
    excused = [key for keys in NOT_SERVED.values() for key in keys]
    assert sorted([*excused, *HANDLERS]) == sorted(APIS)
    assert not set(INTERNAL) & set(APIS)
    kafkas = [key for key, api in APIS.items() if not api.is_private]
    assert sorted([*INTERNAL, *kafkas]) == list(range(95))


def test_a_row_names_the_versions_of_its_api() -> None:
    page = compatibility_page({ApiKey.FETCH, ApiKey.OFFSET_DELETE})
    assert "| 1 | Fetch | 0-18 | 12 |" in page
    assert "| 47 | OffsetDelete | 0 | - |" in page
    assert "| 0 | Produce |" not in page


def test_a_reason_disappears_with_the_last_api_it_excuses() -> None:
    for reason, keys in NOT_SERVED.items():
        *others, last = keys
        assert f"{reason} {APIS[[*others, last][0]].name} (" in compatibility_page(set())
        assert f"{reason} {APIS[last].name} ({last:d})." in compatibility_page(set(others))
        assert reason not in compatibility_page(set(keys))


def test_our_own_apis_stand_apart() -> None:
    page = compatibility_page({ApiKey.FETCH, ApiKey.REWIND_GROUP})
    kafkas, ours = page.split("## Our own")
    assert "| 20001 | RewindGroup | 0 | 0 |" in ours
    assert "| RewindGroup |" not in kafkas
    assert "## Our own" not in compatibility_page({ApiKey.FETCH})
