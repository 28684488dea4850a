"""Our parser of LMDB's pages against LMDB."""

import contextlib
import random
from pathlib import Path

import lmdb
import pytest

from odradek.storage.journal import map_file
from odradek.storage.pages import PageError, PageFile

Rows = dict[bytes, list[tuple[bytes, bytes]]]


def write_environment(path: Path, dice: random.Random) -> Rows:
    """Random puts and deletes in several databases over several commits; returns the rows."""
    with lmdb.open(
        str(path), subdir=False, map_size=32 << 20, max_dbs=4, lock=False
    ) as environment:
        names = [b"one", b"two", b"three"]
        databases = {name: environment.open_db(name) for name in names}
        for _ in range(dice.choice([1, 3, 10])):
            with environment.begin(write=True) as transaction:
                for _ in range(dice.choice([0, 5, 100, 400])):
                    database = databases[dice.choice(names[:2])]
                    key = dice.randbytes(dice.choice([1, 2, 12, 200]))
                    if dice.random() < 0.2:
                        transaction.delete(key, db=database)
                    else:
                        size = dice.choice([0, 8, 300, 2100, 20_000])
                        transaction.put(key, bytes([size % 251]) * size, db=database)
        with environment.begin() as transaction:
            return {name: list(transaction.cursor(databases[name])) for name in names}


def walk_all(pages: PageFile) -> Rows:
    meta = pages.meta()
    return {
        name: [(node.key, bytes(node.data)) for node in pages.walk(tree, meta.last_page)]
        for name, tree in pages.named_trees(meta).items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_finds_exactly_the_rows_that_lmdb_has(tmp_path: Path, seed: int) -> None:
    rows = write_environment(tmp_path / "file", random.Random(seed))
    assert walk_all(PageFile(map_file(tmp_path / "file"))) == rows


@pytest.mark.parametrize("seed", range(12))
def test_a_lost_page_is_an_error_or_no_page_of_the_trees(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    rows = write_environment(tmp_path / "file", dice)
    content = (tmp_path / "file").read_bytes()
    for _ in range(30):
        spoiled = bytearray(content)
        at = dice.randrange(0, len(content), 4096)
        if dice.random() < 0.5:
            spoiled[at : at + 4096] = bytes(4096)
            is_overflow_body = True  # LMDB has no checksums: values are not vouched for
        else:
            del spoiled[at:]
            is_overflow_body = False
        try:
            found = walk_all(PageFile(memoryview(bytes(spoiled))))
        except PageError:
            continue
        if is_overflow_body:
            assert {name: [key for key, _ in found[name]] for name in found} == {
                name: [key for key, _ in rows[name]] for name in rows
            }
        else:
            assert found == rows


@pytest.mark.parametrize("seed", range(12))
def test_garbage_in_the_pages_raises_nothing_but_page_error(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    write_environment(tmp_path / "file", dice)
    content = (tmp_path / "file").read_bytes()
    for _ in range(60):
        spoiled = bytearray(content)
        for _ in range(dice.choice([1, 3, 50])):
            at = dice.randrange(0, len(content), 4096) + dice.choice(
                [0, 10, 12, 14, 16, 20, 40, 200]
            )
            length = dice.choice([1, 2, 8])
            spoiled[at : at + length] = dice.randbytes(length)
        pages = PageFile(memoryview(bytes(spoiled)))
        with contextlib.suppress(PageError):
            walk_all(pages)


def test_a_cycle_of_pages_is_an_error(tmp_path: Path) -> None:
    with (
        lmdb.open(
            str(tmp_path / "file"), subdir=False, map_size=1 << 20, lock=False
        ) as environment,
        environment.begin(write=True) as transaction,
    ):
        for at in range(300):
            transaction.put(b"%04d" % at, bytes(100))
    pages = PageFile(map_file(tmp_path / "file"))
    meta = pages.meta()
    with pytest.raises(PageError):
        list(pages.walk(meta.main._replace(depth=32), meta.last_page))


def test_the_newer_meta_page_counts(tmp_path: Path) -> None:
    write_environment(tmp_path / "file", random.Random(0))
    with lmdb.open(str(tmp_path / "file"), subdir=False, lock=False, max_dbs=4) as environment:
        assert (
            PageFile(map_file(tmp_path / "file")).meta().transaction_id
            == environment.info()["last_txnid"]
        )
