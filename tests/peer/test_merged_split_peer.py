"""llama.cpp loads a merged model that is split into several files by its first one, and continues as pearl does."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.pipeline import ConvertOptions, convert
from models.gguf import GGUFModel
from tests.peer.llama_cpp_peer import find_peer
from tests.peer.peer_models import END, FIELDS, N_NEW, PROMPT, VOCAB, our_continuation, printable, save_with_tokenizer
from tests.tiny_models import tiny_model

PEER = find_peer()

pytestmark = pytest.mark.skipif(
    PEER is None, reason="neither llama_cpp nor $PEARL_LLAMA_COMPLETION: no peer to compare with"
)


def merged(family: str, folder: Path, shard_bytes: int | None) -> Path:
    hf = save_with_tokenizer(
        tiny_model(family, vocab_size=VOCAB, eos_token_id=END, **FIELDS.get(family, {})), folder / "hf"
    )
    pearl = convert(hf, folder / "pearl", ConvertOptions(quant="f32"))
    return convert(pearl, folder / "merged", ConvertOptions(merge=True, shard_bytes=shard_bytes))


@pytest.mark.parametrize("family", ["olmoe", "qwen3moe", "deepseek2", "gpt-oss"])
def test_greedy_text_of_a_split(family: str, tmp_path: Path) -> None:
    assert PEER is not None
    first = merged(family, tmp_path, 3 << 15)
    with GGUFModel.open(first) as model:
        assert len(model.paths) > 2
        assert first == model.paths[0]
    tokenizer, ids, ours = our_continuation(first, N_NEW)
    assert printable(PEER.continuation(first, tokenizer, PROMPT, ids, N_NEW)) == printable(ours)


def test_phimoe_loads(tmp_path: Path) -> None:
    """Its text is not compared: llama.cpp weighs phimoe's experts by another rule than the model was made for."""
    assert PEER is not None
    path = merged("phimoe", tmp_path, None)
    tokenizer, ids, _ = our_continuation(path, 1)
    assert PEER.continuation(path, tokenizer, PROMPT, ids, N_NEW)
