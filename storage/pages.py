"""LMDB's page format (0.9, data version 1), read without LMDB.

LMDB crashes on a file that lost unsynced pages in a power loss: it has no checksums and follows
invalid page numbers, which raises SIGBUS or SIGSEGV. Here every page number, length and order is
checked before it is used. PageError is raised for invalid ones. Used by recovery (recovery.py,
salvage.py) on files that no process has open for writing.

Layouts, little-endian, sizes in bytes (lmdb's mdb.c: MDB_page, MDB_meta, MDB_db, MDB_node):

    page    number 8, pad 2, flags 2, lower 2, upper 2  (overflow: page count 4 instead of the last
    two) meta    page head, magic 4, version 4, address 8, map size 8, free tree 48, main tree 48,
            last page 8, transaction id 8
    tree    pad 4 (of the free tree: page size), flags 2, depth 2, branch pages 8, leaf pages 8,
            overflow pages 8, entries 8, root 8
    leaf    page head, node offsets 2 each from 16 to lower; node: data size 4, flags 2, key size 2,
            key, data  (flag BIG: data is the number of an overflow page; flag TREE: data is a tree)
    branch  as leaf; node: child's page number 6, key size 2, key (that of node 0 counts as empty)
"""

import mmap
import sys
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

PAGE_HEAD = Struct("<QHHHH")
PAGE_HEAD_SIZE = PAGE_HEAD.size
_OVERFLOW_COUNT = Struct("<I")
_META = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_META_TAIL = Struct("<QQ")
_NODE = Struct("<IHH")  # also of branches
_PAGE_NUMBER = Struct("<Q")

_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32  # LMDB's CURSOR_STACK

BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08
_BIG, _SUBTREE, _DUPLICATES = 0x01, 0x02, 0x04


class PageError(Exception):
    """The file has no whole tree. The message names the first invalid page or key."""


class Tree(NamedTuple):
    """One B-tree of the file, as its parent describes it."""

    depth: int
    entries: int
    root: int


class Meta(NamedTuple):
    """One of the two roots of the file. The one with the higher transaction id counts."""

    main: Tree
    last_page: int
    transaction_id: int


class PageFile:
    """A file of pages, mapped for reading."""

    def __init__(self, view: memoryview) -> None:
        assert sys.byteorder == "little", "LMDB has the machine's byte order; this module has one"
        self.view = view
        self.page_size = mmap.PAGESIZE  # not that of the meta pages, which may be torn
        self.page_count = -(-len(view) // self.page_size)
        """Pages of the file; a cut may have left only a part of the last one."""

    def head(self, number: int) -> tuple[int, int, int]:
        """(flags, lower, upper) of a page. Raises PageError if it has another page's number."""
        at = number * self.page_size
        if at + PAGE_HEAD_SIZE > len(self.view):
            raise PageError(f"page {number} is beyond the end of the file")
        own_number, _, flags, lower, upper = PAGE_HEAD.unpack_from(self.view, at)
        if own_number != number:
            raise PageError(f"page {number} has the header of page {own_number}")
        return flags, lower, upper

    def _require_whole(self, number: int) -> None:
        if (number + 1) * self.page_size > len(self.view):
            raise PageError(f"page {number} is truncated")

    def overflow(self, number: int) -> tuple[int, memoryview]:
        """(pages, content) of an overflow run. If the file ends within it, so does the content; no
        value fills its last page, so one may be whole even then. Raises PageError."""
        flags, _, _ = self.head(number)
        at = number * self.page_size
        (count,) = _OVERFLOW_COUNT.unpack_from(self.view, at + 12)
        if flags != OVERFLOW or count == 0:
            raise PageError(f"page {number} is not an overflow page")
        return count, self.view[at + PAGE_HEAD_SIZE : at + count * self.page_size]

    def meta(self) -> Meta:
        """The root that LMDB would use. Raises PageError if either is invalid: LMDB reads both."""
        return max((self._meta(0), self._meta(1)), key=lambda meta: meta.transaction_id)

    def _meta(self, number: int) -> Meta:
        flags, _, _ = self.head(number)
        self._require_whole(number)
        at = number * self.page_size + PAGE_HEAD_SIZE
        magic, version, _, _ = _META.unpack_from(self.view, at)
        if flags != META or magic != _MAGIC or version != _DATA_VERSION:
            raise PageError(f"page {number} is not a meta page")
        page_size = _TREE.unpack_from(self.view, at + _META.size)[0]
        if page_size != self.page_size:
            raise PageError(f"meta page {number} has page size {page_size}")
        at += _META.size + _TREE.size
        main = _tree_from(self.view, at)
        last_page, transaction_id = _META_TAIL.unpack_from(self.view, at + _TREE.size)
        self._require_whole(last_page)
        return Meta(main, last_page, transaction_id)

    def named_trees(self, meta: Meta) -> dict[bytes, Tree]:
        """The named databases of the file. Raises PageError."""
        trees = {}
        for node in self.walk(meta.main, meta.last_page):
            if node.flags != _SUBTREE or len(node.data) != _TREE.size:
                raise PageError(f"the main tree holds {node.key!r}, which is not a database")
            trees[node.key] = _tree_from(node.data, 0)
        return trees

    def walk(self, tree: Tree, last_page: int) -> "Iterator[LeafNode]":
        """All nodes in the order of keys. Every page is checked. Raises PageError.

        A page with older content is found by its keys, which are outside the range of its parent,
        or by the number of entries, which is checked at the end.
        """
        if tree.root == _NO_PAGE:
            if tree.entries:
                raise PageError(f"a tree of {tree.entries} entries has no root")
            return
        if not 0 < tree.depth <= _DEPTH_MAX:
            raise PageError(f"invalid tree depth {tree.depth}")
        found = 0
        previous: bytes | None = None
        for node in self._walk_page(tree.root, tree.depth, b"", None, last_page):
            if previous is not None and node.key <= previous:
                raise PageError(f"key {node.key.hex()} follows {previous.hex()}")
            previous = node.key
            found += 1
            yield node
        if found != tree.entries:
            raise PageError(f"a tree has {found} entries instead of {tree.entries}")

    def _walk_page(
        self, number: int, depth: int, lowest: bytes, end: bytes | None, last_page: int
    ) -> "Iterator[LeafNode]":
        if number > last_page:
            raise PageError(f"page {number} is beyond the last page")
        if depth == 1:
            for node in self.leaf_nodes(number):
                if node.key < lowest or (end is not None and node.key >= end):
                    raise PageError(f"key {node.key.hex()} in page {number} is out of range")
                yield node if not node.flags & _BIG else self._follow(node)
            return
        children = self._branch_nodes(number)
        for at, (key, child) in enumerate(children):
            child_end = children[at + 1][0] if at + 1 < len(children) else end
            yield from self._walk_page(
                child, depth - 1, lowest if at == 0 else key, child_end, last_page
            )

    def _follow(self, node: "LeafNode") -> "LeafNode":
        (number,) = _PAGE_NUMBER.unpack(node.data)
        count, content = self.overflow(number)
        self._require_whole(number + count - 1)
        if node.size > len(content):  # it may be much smaller: LMDB reuses a run in place
            raise PageError(f"overflow page {number} is too small for {node.size} bytes")
        position = number * self.page_size + PAGE_HEAD_SIZE
        return node._replace(position=position, data=content[: node.size])

    def leaf_nodes(self, number: int) -> "Iterator[LeafNode]":
        """The nodes of a leaf page, big values not followed. Raises PageError."""
        view, offsets = self._nodes(number, LEAF, "leaf")
        for offset in offsets:
            size, node_flags, key_size = _NODE.unpack_from(view, offset)
            key_at = offset + _NODE.size
            data_at = key_at + key_size
            data_size = _PAGE_NUMBER.size if node_flags & _BIG else size
            if data_at + data_size > len(view) or node_flags & _DUPLICATES:
                raise PageError(f"a node exceeds page {number}")
            data = view[data_at : data_at + data_size]
            position = number * self.page_size + data_at
            yield LeafNode(bytes(view[key_at:data_at]), node_flags, size, position, data)

    def _branch_nodes(self, number: int) -> list[tuple[bytes, int]]:
        view, offsets = self._nodes(number, BRANCH, "branch")
        nodes = []
        for offset in offsets:
            low, high, key_size = _NODE.unpack_from(view, offset)
            key_at = offset + _NODE.size
            if key_at + key_size > len(view):
                raise PageError(f"a node exceeds page {number}")
            nodes.append((bytes(view[key_at : key_at + key_size]), low | high << 32))
        if len(nodes) < 2:
            raise PageError(f"branch page {number} has {len(nodes)} children")
        return nodes

    def _nodes(self, number: int, kind: int, kind_name: str) -> tuple[memoryview, memoryview]:
        """The bytes of a leaf or branch page, and the offsets of its nodes. Raises PageError."""
        flags, lower, upper = self.head(number)
        self._require_whole(number)
        if flags != kind:
            raise PageError(f"page {number} is not a {kind_name} page")
        if not (PAGE_HEAD_SIZE <= lower <= upper <= self.page_size) or lower % 2:
            raise PageError(f"page {number} has invalid bounds {lower} and {upper}")
        at = number * self.page_size
        offsets = self.view[at + PAGE_HEAD_SIZE : at + lower].cast("H")
        for offset in offsets:
            if offset < upper or offset + _NODE.size > self.page_size:
                raise PageError(f"invalid node offset {offset} in page {number}")
        return self.view[at : at + self.page_size], offsets


class LeafNode(NamedTuple):
    """A leaf's node. `size` is the value's size and `position` where in the file it starts; of a
    big value that was not followed, `data` and `position` are those of its page's number."""

    key: bytes
    flags: int
    size: int
    position: int
    data: memoryview


def _tree_from(view: memoryview, at: int) -> Tree:
    _, _, depth, _, _, _, entries, root = _TREE.unpack_from(view, at)
    return Tree(depth, entries, root)
