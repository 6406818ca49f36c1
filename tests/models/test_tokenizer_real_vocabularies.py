"""Every test string of llama.cpp's five vocabularies gives the expected ids. Needs the data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.gguf import GGUFModel
from models.tokenizer import Tokenizer

SHARED = Path(os.environ.get("PEARL_SHARED") or Path(__file__).resolve().parents[3] / "shared")
FOLDER = SHARED / "data" / "vocab"
NAMES = ("gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "llama-spm")
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real vocabularies at {FOLDER} (set PEARL_SHARED)")


@pytest.mark.parametrize("name", NAMES)
def test_every_string_gives_the_expected_ids_and_comes_back(name: str) -> None:
    path = FOLDER / f"ggml-vocab-{name}.gguf"
    with GGUFModel.open(path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    texts = Path(f"{path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    expected = [[int(token) for token in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    assert len(expected) == 46
    assert len(texts) >= len(expected)
    for text, ids in zip(texts, expected, strict=False):
        assert tokenizer.encode(text, add_bos=False) == ids, repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("name", "text", "token_id"), [("qwen2", "<|im_end|>", 151645), ("llama-spm", "</s>", 2)])
def test_a_control_token_is_read_only_on_request(name: str, text: str, token_id: int) -> None:
    with GGUFModel.open(FOLDER / f"ggml-vocab-{name}.gguf") as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    assert tokenizer.encode(text, add_bos=False, special=True) == [token_id]
    assert token_id not in tokenizer.encode(text, add_bos=False)
    assert token_id in tokenizer.stop_ids
