"""Two conversions of one output: the second is refused while the first runs, and only then."""

import os
import subprocess
import sys

import pytest

from convert.writer_lock import LOCK_SUFFIX, only_writer
from models.errors import ConversionError

CODE = """
import os, sys
from pathlib import Path
from convert.writer_lock import only_writer
held = only_writer(Path(sys.argv[1]))
held.__enter__()
os._exit(0)  # without leaving the block, as a killed run does
"""


def in_another_process(path):
    return subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=False)


def test_a_second_writer_is_refused_and_named(tmp_path):
    lock = tmp_path / f"model.gguf{LOCK_SUFFIX}"
    with only_writer(lock):
        done = in_another_process(lock)
        assert done.returncode != 0
        assert "another conversion is writing model.gguf here" in done.stderr
        with pytest.raises(ConversionError), only_writer(lock):
            pass
    assert not os.listdir(tmp_path)
    with only_writer(lock):
        pass


def test_another_output_in_the_same_folder_is_free(tmp_path):
    with only_writer(tmp_path / f"a{LOCK_SUFFIX}"), only_writer(tmp_path / f"b{LOCK_SUFFIX}"):
        pass


def test_a_lock_left_by_a_killed_run_holds_nobody_up(tmp_path):
    lock = tmp_path / f"model{LOCK_SUFFIX}"
    assert in_another_process(lock).returncode == 0
    assert lock.exists()
    with only_writer(lock):
        pass
