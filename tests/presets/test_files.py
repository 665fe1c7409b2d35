"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfm.presets.files import whole_file


def test_whole(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with whole_file(path) as file:
        file.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


def test_nothing_of_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["old"]


def test_the_mode_stays(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.touch(mode=0o600)
    path.chmod(0o640)
    with whole_file(path):
        pass
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no-such-folder/file'$"), whole_file(tmp_path / "no-such-folder" / "file"):
        pass
