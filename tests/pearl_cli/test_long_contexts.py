"""Contexts of 262,144 and 1,048,576 tokens whose caches fit under no ceiling at hand: refused before anything is
allocated, with the bytes and the longest context that fits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.layer_memory import LayerMemory
from pearl_cli.memory_plan import FLOOR_MARGIN_BYTES, MIB
from tests.tiny_gguf import tiny_moe

ROOT = Path(__file__).resolve().parents[2]
STEP = 256
BYTES_A_TOKEN = 2 * 2 * 2 * 16 * 2 + 2 * 4 * 8  # keys and values of 2 layers of 2 heads of 16 halves; cosines and sines
_ARMED = """
import sys
import models.kv_cache
import models.loader
import pearl_cli.residency.arena

def allocated(*args, **named):
    raise AssertionError("allocated")

models.loader.load_model = models.kv_cache.KVCache.__init__ = pearl_cli.residency.arena.SlotArena.__init__ = allocated
from pearl_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def pearl(*args: str, armed: bool = False) -> subprocess.CompletedProcess[str]:
    """armed: whatever allocates weights, caches or slots raises."""
    code = ["-c", _ARMED] if armed else ["-m", "pearl_cli"]
    return subprocess.run([sys.executable, *code, *args], cwd=ROOT, capture_output=True, text=True)


def test_the_shape_of_qwen3_30b_takes_24_gib_at_262144_tokens() -> None:
    layer = LayerMemory(num_kv_heads=4, head_dim=128, value_dim=128)
    assert 48 * layer.n_bytes(262144, "f16", "f16") == 2 * 48 * 4 * 128 * 262144 * 2 == 24 << 30


@pytest.mark.skipif(sys.platform != "linux", reason="what a process weighs is read from /proc")
@pytest.mark.parametrize("trained", [262144, 1048576])
def test_refused_before_anything_is_allocated(trained: int, tmp_path: Path) -> None:
    model = tiny_moe("qwen3moe")
    model.metadata["qwen3moe.context_length"] = trained
    path = str(model.write(tmp_path / "model.gguf"))
    plan = json.loads(pearl("plan", path, "--json", "-t", "1").stdout)
    assert plan["context"] == 4096  # unless asked for more
    ram_mib = plan["floor_bytes"] // MIB + 56
    command = ("complete", "-m", path, "-p", "a", "-n", "1", "-t", "1", "--ram", f"{ram_mib}MiB", "-c")

    refused = pearl(*command, "0", armed=True)
    assert refused.returncode == 2, refused.stderr
    line = refused.stderr.splitlines()[-1]
    assert f"KV cache {-(-trained * BYTES_A_TOKEN // MIB)}MiB for {trained} tokens" in line
    found = re.search(r"below the floor .*process (\d+)MiB, .*workspace (\d+)MiB.*; -c (\d+) would fit$", line)
    assert found is not None, line
    process_mib, workspace_mib, longest = map(int, found.groups())
    assert longest % STEP == 0
    left = (ram_mib - process_mib - workspace_mib) * MIB - FLOOR_MARGIN_BYTES
    assert longest * BYTES_A_TOKEN == pytest.approx(left, abs=2 * MIB)  # weights, slots and rounded figures

    assert pearl(*command, str(longest)).returncode == 0
    beyond = longest + 2 * FLOOR_MARGIN_BYTES // BYTES_A_TOKEN  # the process may weigh a little more or less
    assert pearl(*command, str(beyond), armed=True).returncode == 2


def test_what_allocates_would_be_noticed(tmp_path: Path) -> None:
    path = str(tiny_moe("qwen3moe").write(tmp_path / "model.gguf"))
    done = pearl("complete", "-m", path, "-p", "a", "-n", "1", "-t", "1", armed=True)
    assert "AssertionError: allocated" in done.stderr
