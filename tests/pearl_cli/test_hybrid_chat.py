"""Chats with a hybrid model: the state is reused where the new prompt goes on, else taken up again where the turns
meet, and what must be computed again is said.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.model import Model
from models.resident import ResidentExperts
from pearl_cli.__main__ import main
from pearl_cli.engine import Engine, Generation
from pearl_cli.residency.call_work import CallCancelled
from tests.tiny_models import prompt, tiny_model, write_gguf
from tests.tiny_vocab import CONTROL, byte_level
from tests.tolerances import LOGITS_RELATIVE

VOCABULARY = byte_level("gpt-2", ["t h"], extra={"<|end|>": CONTROL}, eos_token_id=257)
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content if m.role != 'assistant' else '...' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
)
IDS = prompt(24).tolist()
Model_ = tuple[Model, ResidentExperts]


class Greedy:
    def sample(self, logits: np.ndarray, recent: object) -> int:
        return int(np.argmax(logits))

    def accept(self, token_id: int) -> None:
        pass


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = {key: getattr(value, "tolist", lambda value=value: value)() for key, value in VOCABULARY.items()}
    keys["tokenizer.chat_template"] = TEMPLATE
    model = tiny_model("qwen3next", vocab_size=258, max_position_embeddings=512)
    return write_gguf(model, tmp_path_factory.mktemp("hybrid") / "model.gguf", "qwen3next", keys)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model_]:
    backend = CpuBackend(1)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        yield model, ResidentExperts(model, ExpertStore(gguf, model.config), backend)


def engine_of(model: Model_, chunk_tokens: int = 5) -> Engine:
    return Engine(model[0], model[0].new_cache(64, "f32", "f32"), model[1], chunk_tokens)


def reply(engine: Engine, ids: list[int], keep_at: int = 0, n: int = 4) -> Generation:
    generation = engine.generate(ids, Greedy(), n, keep_at=keep_at)
    list(generation)
    return generation


def assert_as_fresh(engine: Engine, model: Model_) -> None:
    """The next logits are those of an engine that has seen the same tokens and no others."""
    found = engine.decode_step(7)
    fresh = engine_of(model)
    expected = fresh.prefill(engine.tokens)
    assert np.abs(found - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()


def test_a_prompt_that_goes_on_reuses_all(model: Model_) -> None:
    engine = engine_of(model)
    reply(engine, IDS[:9], keep_at=7)
    told = list(engine.tokens)
    again = reply(engine, [*told, *IDS[9:15]], keep_at=len(told) + 4)
    assert (again.reused_tokens, again.repeated_tokens) == (len(told), 0)
    assert_as_fresh(engine, model)


def test_a_prompt_that_departs_goes_back_to_where_the_turns_meet(model: Model_) -> None:
    engine = engine_of(model)
    reply(engine, IDS[:9], keep_at=7)
    departed = reply(engine, [*IDS[:8], *IDS[12:20]], keep_at=12)
    assert (departed.reused_tokens, departed.repeated_tokens) == (7, 1)
    assert_as_fresh(engine, model)


def test_regenerating_starts_at_the_same_place_and_gives_the_same(model: Model_) -> None:
    engine = engine_of(model)
    first = [step.token_id for step in engine.generate(IDS[:9], Greedy(), 6, keep_at=7)]
    again = engine.generate(IDS[:9], Greedy(), 6, keep_at=7)
    assert [step.token_id for step in again] == first
    assert (again.reused_tokens, again.repeated_tokens) == (7, 1)


def test_without_a_place_kept_all_is_computed_again(model: Model_) -> None:
    engine = engine_of(model)
    reply(engine, IDS[:9])
    departed = reply(engine, [*IDS[:8], *IDS[12:20]])
    assert (departed.reused_tokens, departed.repeated_tokens) == (0, 8)
    assert_as_fresh(engine, model)


def test_a_cancelled_prompt_is_taken_up_again_where_it_was_kept(model: Model_) -> None:
    engine = engine_of(model, chunk_tokens=4)
    reply(engine, IDS[:9], keep_at=7)
    calls = iter([False, True])
    generation = engine.generate([*IDS[:7], *IDS[12:20]], Greedy(), 4, cancelled=lambda: next(calls, True))
    plain = engine.model.forward

    def interrupted(*arguments: object, **more: object) -> object:
        plain(*arguments, **more)  # type: ignore[arg-type]
        engine.cache.length -= 4  # as if the call had ended between its last two layers
        raise CallCancelled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engine.model), "forward", lambda self, *a, **k: interrupted(*a, **k))
        assert list(generation) == []
    assert generation.finish_reason == "cancelled"
    again = reply(engine, [*IDS[:7], *IDS[12:20]])
    assert again.reused_tokens == 7
    assert_as_fresh(engine, model)


def test_only_models_with_states_part_their_prompts(model: Model_, tmp_path: Path) -> None:
    assert list(engine_of(model)._chunks(2, 14, 9)) == [(2, 7), (7, 9), (9, 14)]
    backend = CpuBackend(1)
    with GGUFModel.open(write_gguf(tiny_model("qwen3moe"), tmp_path / "m.gguf", "qwen3moe")) as gguf:
        plain = load_model(gguf, backend)
        engine = Engine(plain, plain.new_cache(64), ResidentExperts(plain, ExpertStore(gguf, plain.config), backend), 5)
    assert list(engine._chunks(2, 14, 9)) == [(2, 7), (7, 12), (12, 14)]


def test_the_chat_goes_back_to_the_turns_end_and_says_what_it_repeats(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template drops each reply from the next prompt; /clear leaves only the system text in common."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\nand on\n/clear\nanew\n"))
    options = ["-n", "6", "--temp", "0", "-sys", "s" * 40, "-c", "512", "--budget", "100%", "--show-timings"]
    assert main(["chat", "-m", str(path), *options]) == 0
    _, err = capsys.readouterr()
    # "[assistant]<think>" alone is computed again in the second turn: the state is kept before it
    opening = len("[assistant]")
    assert f"({opening} of them again)" in err
    system = len("[system]") + 40 + 1 + len("[user]")  # "<|end|>" is one token, the others a byte each
    assert err.count("tokens of the conversation were computed again") == 1
    assert f"{system} tokens of the conversation were computed again" in err


def test_info_shows_the_state_and_plan_counts_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = 3 * 4 * ((4 - 1) * (2 * 2 * 16 + 4 * 16) + 4 * 16 * 16)
    assert main(["info", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["supported"], report["state_bytes"]) == (True, state)
    assert main(["info", str(path)]) == 0
    assert "3 layers keep a state instead" in capsys.readouterr().out
    plans = []
    for context in ("64", "128"):
        assert main(["plan", str(path), "-c", context, "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out)["kv_bytes"])
    growth = (plans[1] - plans[0]) // 64
    assert plans[0] - 64 * growth == 2 * state, "the state as it is, and as it was where the turns meet"
