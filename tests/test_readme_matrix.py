"""README's table of architectures is what the tests' own parametrisation says: a cell is there because a test runs it.

A wrong table is reported with the right one, to be put into README between its two marks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from models.registry import ARCHITECTURES

pytest.importorskip("transformers", reason="the tests of the architectures need it as oracle")

from tests.convert import test_round_trip
from tests.models import test_architectures
from tests.pearl_cli import test_every_architecture
from tests.peer import test_greedy_peer
from tests.tiny_models import architecture_of

ROOT = Path(__file__).resolve().parents[1]
GPU_TEST = ROOT / "tests/kernels/gpu/test_gpu_models.py"
BEGIN, END = "<!-- architectures -->\n", "<!-- end of architectures -->"
MODELS = {
    "afmoe": "Trinity",
    "deepseek2": "DeepSeek-V2, V3 and R1, Moonlight, Kimi, GLM-4.7-Flash",
    "dots1": "dots.llm1",
    "ernie4_5-moe": "ERNIE 4.5 with experts, text only",
    "exaone-moe": "K-EXAONE",
    "gemma4": "Gemma 4 with experts",
    "glm4moe": "GLM-4.5 and GLM-4.5-Air, the text half of 4.5V",
    "gpt-oss": "gpt-oss",
    "granitehybrid": "Granite 4.0 H with experts",
    "granitemoe": "Granite 3 with experts",
    "hunyuan-moe": "Hunyuan-A13B",
    "hy_v3": "Hy3",
    "lfm2moe": "LFM2 with experts",
    "llama": "Mixtral",
    "mellum": "Mellum 2",
    "minimax-m2": "MiniMax-M2",
    "olmoe": "OLMoE",
    "phimoe": "Phi-3.5-MoE",
    "qwen2moe": "Qwen1.5-MoE, Qwen2-MoE",
    "qwen35moe": "Qwen3.5 and 3.6 with experts, their text half",
    "qwen3moe": "Qwen3 with experts",
    "qwen3next": "Qwen3-Next",
    "qwen3vlmoe": "Qwen3-VL with experts, its text half",
}


def parameters_of(test: Callable[..., Any], name: str) -> list[Any]:
    """What pytest gives `test` for its argument `name`."""
    marks = getattr(test, "pytestmark", [])
    (values,) = [mark.args[1] for mark in marks if mark.name == "parametrize" and mark.args[0] == name]
    return list(values)


def gpu_families() -> list[str]:
    """The families of the GPU path's test, read from its text: importing it would load triton."""
    wanted = "test_tiny_models_give_the_logits_of_transformers"
    for node in ast.parse(GPU_TEST.read_text("utf-8")).body if GPU_TEST.exists() else ():
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            (values,) = [call.args[1] for call in calls if ast.literal_eval(call.args[0]) == "family"]
            return list(ast.literal_eval(values))
    return []


def architectures_of(families: Iterable[str]) -> set[str]:
    """`deepseek2_v3` is a family of `deepseek2`."""
    return {architecture_of(family) for family in families}


def columns() -> dict[str, set[str]]:
    """Title of each column, and the architectures that its test runs."""
    round_trip = parameters_of(
        test_round_trip.test_folder_to_pearl_to_stock_to_pearl_keeps_the_logits, "name"
    )
    streamed = parameters_of(test_every_architecture.test_streamed_equals_resident_bit_for_bit, "family")
    steered = parameters_of(
        test_every_architecture.test_steered_routing_has_the_same_bits_at_any_speed_of_reads, "family"
    )
    return {
        "Hugging Face": architectures_of(test_round_trip.MODELS[name][0] for name in round_trip),
        "stock GGUF": architectures_of(case.family for case in test_architectures.CASES.values()),
        "streamed": architectures_of(streamed),
        "`psr`": architectures_of(steered),
        "GPU path": architectures_of(gpu_families()),
        "as llama.cpp": architectures_of(parameters_of(test_greedy_peer.test_greedy_text_is_the_peers, "family")),
    }


def table() -> str:
    found = columns()
    lines = ["| architecture | models | " + " | ".join(found) + " |", "|---" * (len(found) + 2) + "|"]
    for architecture in sorted(ARCHITECTURES):
        cells = ["yes" if architecture in tested else "" for tested in found.values()]
        lines.append(f"| `{architecture}` | {MODELS[architecture]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_table_is_what_the_tests_run() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), readme, re.DOTALL)
    assert found is not None, f"README.md needs the marks {BEGIN!r} and {END!r}"
    assert found[1] == table(), f"README.md should have between its marks:\n{table()}"


def test_every_architecture_has_a_name_and_every_column_a_test() -> None:
    assert set(MODELS) == set(ARCHITECTURES)
    for title, tested in columns().items():
        assert tested <= set(ARCHITECTURES), title
        assert tested, f"no test backs the column {title}"


def test_the_columns_of_the_cpu_path_are_full() -> None:
    """A new architecture comes with all of these tests."""
    for title in ("Hugging Face", "stock GGUF", "streamed", "`psr`"):
        assert columns()[title] == set(ARCHITECTURES), title


def test_the_tests_behind_the_columns_take_these_parameters() -> None:
    assert test_architectures.loaded._fixture_function_marker.params == tuple(test_architectures.CASES.values())
