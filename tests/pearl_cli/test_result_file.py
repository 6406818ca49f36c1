"""A file that a command writes is whole or not there, and a disk that fills up is told with flag and file."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from models.errors import WriteFailure
from pearl_cli.__main__ import main
from pearl_cli.evaluate.logits_file import logits_writer, read_logits
from pearl_cli.predict.predictor_file import save_predictor
from pearl_cli.result_file import result_file
from tests.pearl_cli.predict.forecast_files import CARD


@contextmanager
def files_up_to(n_bytes: int) -> Iterator[None]:
    """As on a disk with so much room: longer files fail with an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def _interrupted(place: Path) -> None:
    place.write_text("half")
    raise KeyboardInterrupt


def test_what_is_written_appears_at_the_end_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with result_file(path, "-o") as place:
        place.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failure_keeps_the_earlier_file_and_names_flag_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("earlier")
    with (
        pytest.raises(WriteFailure, match=rf"^-o {path}: File too large$"),
        files_up_to(10),
        result_file(path, "-o") as place,
    ):
        place.write_text("much too long for such a disk")
    with pytest.raises(KeyboardInterrupt), result_file(path, "-o") as place:
        _interrupted(place)
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    with result_file(tmp_path / "link") as place:
        place.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("complete -p abc -n 4 --timeline OUT", "--timeline"),
        ("bench -p 0 -n 2 -r 1 --timeline OUT", "--timeline"),
        ("trace -f TEXT -o OUT", "-o"),
        ("trace -f TEXT -o other.csv --max-tokens 1 --hidden OUT", "--hidden"),
        ("eval -f TEXT -c 32 --logits OUT", "--logits"),
        ("eval -f TEXT -c 32 --residency 50% --compare psr --plot OUT", "--plot"),
    ],
)
def test_a_full_disk_is_one_line_with_flag_and_file(
    command: str, flag: str, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("TEXT").write_text("the quick brown fox jumps over the lazy dog and sleeps in the sun. " * 3)
    name, *args = command.split()
    line = [name, "-m", str(tiny_path), "--no-profile", *args]
    assert main(line) == 0  # and what is compiled is in the cache, which may grow here
    for path in Path().glob("o*"):
        path.unlink()
    Path("OUT").unlink()
    capsys.readouterr()
    with files_up_to(700):
        assert main(line) == 1
    assert f"pearl: {flag} OUT: File too large\n" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) in (["TEXT"], ["TEXT", "other.csv"])


def test_a_predictor_that_does_not_fit_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(WriteFailure, match=r"^-o .*p.gguf: File too large$"), files_up_to(100):
        save_predictor(tmp_path / "p.gguf", CARD, {"blk.0.w1": np.zeros((64, 8), np.float32)})
    assert os.listdir(tmp_path) == []


def test_room_for_logits_is_looked_for_before_the_work(tmp_path: Path) -> None:
    if not hasattr(os, "posix_fallocate"):
        pytest.skip("this system cannot take room in advance")
    with (
        pytest.raises(WriteFailure, match=r"^--logits .*l.npy: File too large$"),
        files_up_to(1000),
        logits_writer(tmp_path / "l.npy", (1000, 1000)),
    ):
        pytest.fail("the work has begun")


def test_logits_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    with logits_writer(tmp_path / "l.npy", (4, 3)) as write:
        write(rows[:1])
        write(rows[1:])
    np.testing.assert_array_equal(read_logits(tmp_path / "l.npy", (4, 3)), rows)
