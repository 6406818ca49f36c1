"""Whole ways through the product against transformers:

folder -> convert -> complete, and a stock GGUF opened as it is.
"""

import json

import numpy as np
import pytest
import tiny_models

from pearl_cli.__main__ import main
from tests.convert.checkpoints import byte_level_tokenizer

ARCHITECTURES = ("olmoe", "qwen3moe", "llama")
TEXT = "abcabdcafe"
N_NEW = 24


def greedy_ids(capsys, model, *args):
    assert main(["complete", "-m", str(model), "-p", TEXT, "-n", str(N_NEW), "--temp", "0", "--json", *args]) == 0
    done = json.loads(capsys.readouterr().out)
    return done["prompt_ids"], done["ids"]


def stock_vocabulary():
    """What llama.cpp's converter writes for the tokenizer of `checkpoint`."""
    vocab = byte_level_tokenizer()["model"]["vocab"]
    tokens = [*vocab, *(f"[PAD{number}]" for number in range(len(vocab), tiny_models.VOCAB))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocab) + [5] * (len(tokens) - len(vocab)),
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(params=ARCHITECTURES)
def checkpoint(request, tmp_path):
    """A random transformers model saved by transformers, with a tokenizer of fewer tokens than its vocabulary."""
    model = tiny_models.tiny_model(request.param)
    folder = tiny_models.save_hf(model, tmp_path / "hf")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(added_tokens=[])))
    return request.param, model, folder


def test_converted_folder_gives_transformers_greedy_ids(checkpoint, tmp_path, capsys):
    _, model, folder = checkpoint
    assert main(["convert", str(folder), "-o", str(tmp_path / "pearl"), "--quant", "f32"]) == 0
    path = capsys.readouterr().out.strip().splitlines()[-1]
    prompt_ids, ids = greedy_ids(capsys, path, "-ctk", "f32", "-ctv", "f32")
    assert ids == tiny_models.hf_greedy(model, np.array(prompt_ids), N_NEW)
    assert greedy_ids(capsys, path, "-ctk", "f32", "-ctv", "f32", "--budget", "50%")[1] == ids


def test_stock_gguf_gives_transformers_greedy_ids(checkpoint, tmp_path, capsys):
    architecture, model, _ = checkpoint
    path = tiny_models.write_gguf(model, tmp_path / "stock.gguf", architecture, stock_vocabulary())
    assert main(["convert", str(path), "-o", str(tmp_path / "shards")]) == 0
    shards = capsys.readouterr().out.strip().splitlines()[-1]
    stock = greedy_ids(capsys, path, "-ctk", "f32", "-ctv", "f32")
    assert stock[1] == tiny_models.hf_greedy(model, np.array(stock[0]), N_NEW)
    assert greedy_ids(capsys, shards, "-ctk", "f32", "-ctv", "f32", "--budget", "50%") == stock
