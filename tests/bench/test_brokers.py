import subprocess
from pathlib import Path

from bench.brokers import revision


def test_changed_documents_make_no_commit_dirty(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        name = ("-c", "user.name=n", "-c", "user.email=n@localhost")
        subprocess.run(["git", "-C", str(tmp_path), *name, *command], check=True)

    assert revision(tmp_path) == "unknown"
    (tmp_path / "docs").mkdir()
    page, readme = tmp_path / "docs" / "page.md", tmp_path / "README.md"
    module = tmp_path / "module.py"
    for each in (page, readme, module):
        each.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = revision(tmp_path)
    page.write_text("2")
    readme.write_text("2")
    assert revision(tmp_path) == commit
    module.write_text("2")
    assert revision(tmp_path) == f"{commit}-dirty"
