"""The forecast that ships with the demo model: it is that model's, small, and evicts better than its rivals on text
that neither it nor the model has seen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.chat_template import ChatTemplate
from models.demo.texts import held_out_texts
from models.gguf import GGUFModel
from models.tokenizer import Tokenizer
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.predict.base import NextUse
from pearl_cli.predict.choose import choose_forecasting, forecast_beside, make_forecaster
from pearl_cli.predict.ema import EmaNextUse
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.predict.predictor_file import load_predictor
from pearl_cli.recording import LayerRecord, RecordingProvider
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction import make_policy
from pearl_cli.session import demo_model

CONTEXT = 1024


@pytest.fixture(scope="module")
def forecast_path() -> Path:
    path = forecast_beside(demo_model())
    assert path is not None
    return path


def test_it_is_this_models_and_taken_without_a_flag(forecast_path: Path) -> None:
    with GGUFModel.open(demo_model()) as gguf:
        chosen = choose_forecasting(gguf, "auto", 1, "auto")
        assert (chosen.name, chosen.evict) == ("horizon-mlp", "pearl")
        assert chosen.card is not None
        assert chosen.card.fingerprint == model_fingerprint(gguf)
        assert chosen.card.recall[0] > 0.6
        assert chosen.card.ece < 0.01
    assert forecast_path.stat().st_size < 1.5e6


def misses(records: list[list[LayerRecord]], layer: int, slots: int, policy: str, next_use: NextUse | None) -> int:
    """Of one layer, over calls of many tokens."""
    cache, count = LayerCache(layer, 32, slots, make_policy(policy)), 0
    for call in records:
        ids, hidden = call[layer].topk_ids, call[layer].hidden
        assert hidden is not None
        expected = next_use.expected(layer, hidden.astype(np.float32), ids) if next_use is not None else None
        for token, row in enumerate(ids):
            count += int(np.count_nonzero(~cache.resident[row]))
            cache.event(row, expected[token] if expected is not None else None)
    return count


def test_it_evicts_better_than_recency_and_frequency_on_held_out_text(forecast_path: Path) -> None:
    with open_engine(demo_model(), RunOptions(threads=1, ctx_size=CONTEXT, predictor="none")) as opened:
        tokenizer = Tokenizer.from_metadata(opened.gguf.metadata)
        template = ChatTemplate.from_metadata(opened.gguf.metadata, tokenizer)
        recorder = opened.engine.provider = RecordingProvider(opened.controller, opened.backend, keep_hidden=True)
        for messages in held_out_texts(["arithmetic", "passages", "code", "chat"], 4):
            opened.engine.reset()
            opened.engine.prefill(template.encode(tokenizer, messages, add_generation_prompt=False)[:CONTEXT])
    records = [call.layers for call in recorder.calls]
    card, arrays = load_predictor(forecast_path)
    for slots in (8, 16):
        total = {
            name: sum(misses(records, layer, slots, policy, next_use) for layer in card.layers)
            for name, policy, next_use in [
                ("lru", "lru", None),
                ("lfu", "lfu", None),
                ("lfru", "lfru", None),
                ("ema", "pearl", EmaNextUse(6, 32, 4)),
                ("forecast", "pearl", make_forecaster(card, arrays)),
            ]
        }
        as_trained = make_forecaster(card, arrays, recalibrates=False)
        without = sum(misses(records, layer, slots, "pearl", as_trained) for layer in card.layers)
        assert total["forecast"] <= 1.002 * without, (total, without)
        assert total["forecast"] < 0.97 * min(count for name, count in total.items() if name != "forecast"), total
