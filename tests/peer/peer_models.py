"""Test brick: tiny models with a vocabulary for llama.cpp, as folders, and pearl's greedy continuation of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from models.tokenizer import Tokenizer
from tests.convert.checkpoints import byte_level_tokenizer, write_tokenizer
from tests.tiny_models import FAMILIES, save_hf
from tests.tiny_vocab import gpt2_alphabet

PROMPT, N_NEW = "the quick fox 12 abc, and so on", 16
VOCAB, END = 259, 258

# What llama.cpp takes for granted and these tiny models do otherwise.
FIELDS: dict[str, dict[str, Any]] = {
    "deepseek2": {"q_lora_rank": 40},  # direct queries are DeepSeek-V2-Lite's, which it knows by 27 layers
    "lfm2moe": {"routed_scaling_factor": 1.0},
    "mellum": {  # it rotates all layers by one base
        "rope_parameters": {
            "full_attention": FAMILIES["mellum"][2]["rope_parameters"]["full_attention"],
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    },
    "olmoe": {"num_key_value_heads": 4},
}


def save_with_tokenizer(model: Any, folder: Path) -> Path:
    """The model as a folder with a byte-level BPE over all bytes, two merges and a token that ends the text."""
    tokens = [*gpt2_alphabet(), "ab", "abc"]
    bpe = {
        "type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["a b", "ab c"],
        "byte_fallback": False,
    }  # fmt: skip
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": END, "content": "<|end|>", "special": True, **plain}
    save_hf(model, folder)
    # Without a name for each of these, transformers' own classes put tokens into the vocabulary.
    named = dict.fromkeys(("bos_token", "pad_token", "unk_token"), "<|end|>")
    write_tokenizer(folder, byte_level_tokenizer(model=bpe, added_tokens=[end]), add_bos_token=False, **named)
    return folder


def our_continuation(path: Path, n_new: int) -> tuple[Tokenizer, list[int], bytes]:
    """The file's tokenizer, PROMPT's ids, and the bytes of the `n_new` most likely tokens behind it."""
    backend = CpuBackend(1)
    with GGUFModel.open(path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        ids = tokenizer.encode(PROMPT, add_bos=False)
        cache, new = model.new_cache(len(ids) + n_new, "f32", "f32"), []
        logits = model.forward(np.array(ids), cache, experts, "prefill")
        for _ in range(n_new):
            assert logits is not None
            logits[list(tokenizer.stop_ids)] = -np.inf
            new.append(int(logits.argmax()))
            logits = model.forward(np.array(new[-1:]), cache, experts, "decode")
        return tokenizer, ids, b"".join(map(tokenizer.token_bytes, new))


def printable(text: bytes) -> bytes:
    """What is left of a text that a program has printed: no zero bytes, and its own line ends at the end."""
    return text.replace(b"\0", b"").strip(b"\n")
