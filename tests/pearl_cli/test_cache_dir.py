"""Where compiled kernels are kept when nothing can be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pearl_cli import cache_dir
from pearl_cli.cache_dir import make_room_for_kernels


def test_kernels_have_a_folder_of_their_own_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    at_exit: list[object] = []
    monkeypatch.setattr(cache_dir.atexit, "register", lambda *args, **_: at_exit.extend(args))
    make_room_for_kernels(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setattr(cache_dir.os, "access", lambda *_: False)
    make_room_for_kernels(tmp_path)
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert folder.parent == tmp_path
    assert folder.is_dir()
    assert at_exit[1:] == [str(folder)]
