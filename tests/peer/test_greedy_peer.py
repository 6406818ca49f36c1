"""The same tiny models through pearl and through llama.cpp give the same greedy text: Hugging Face folder, converter,
merged stock file. It holds pearl's reading of that format against its author's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from models.tokenizer import Tokenizer
from tests.convert.checkpoints import byte_level_tokenizer, write_tokenizer
from tests.peer.llama_cpp_peer import find_peer
from tests.tiny_models import FAMILIES, save_hf, tiny_model
from tests.tiny_vocab import gpt2_alphabet

PEER = find_peer()
PROMPT, N_NEW = "the quick fox 12 abc, and so on", 16
VOCAB, END = 259, 258

pytestmark = pytest.mark.skipif(
    PEER is None, reason="neither llama_cpp nor $PEARL_LLAMA_COMPLETION: no peer to compare with"
)


def tokenizer_json() -> dict[str, object]:
    """Byte-level BPE over all bytes, two merges, a token that ends the text."""
    tokens = [*gpt2_alphabet(), "ab", "abc"]
    model = {
        "type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["a b", "ab c"],
        "byte_fallback": False,
    }  # fmt: skip
    return byte_level_tokenizer(model=model, added_tokens=[{"id": END, "content": "<|end|>", "special": True}])


# What llama.cpp takes for granted and these tiny models do otherwise.
FIELDS: dict[str, dict[str, object]] = {
    "deepseek2": {"q_lora_rank": 40},  # direct queries are DeepSeek-V2-Lite's, which it knows by 27 layers
    "lfm2moe": {"routed_scaling_factor": 1.0},
    "olmoe": {"num_key_value_heads": 4},
}
COMPUTED_OTHERWISE = {"phimoe": "llama.cpp weighs the chosen experts by a softmax over all, not by SparseMixer's rule"}


def merged_file(family: str, folder: Path) -> Path:
    fields = FIELDS.get(family, {})
    hf = save_hf(tiny_model(family, vocab_size=VOCAB, eos_token_id=END, **fields), folder / "hf")
    write_tokenizer(hf, tokenizer_json(), add_bos_token=False)
    pearl = convert(hf, folder / "pearl", ConvertOptions(quant="f32"))
    return convert(pearl, folder / "merged.gguf", ConvertOptions(merge=True))


def our_continuation(path: Path, n_new: int) -> tuple[Tokenizer, list[int], bytes]:
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


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in COMPUTED_OTHERWISE])
def test_greedy_text_is_the_peers(family: str, tmp_path: Path) -> None:
    assert PEER is not None
    path = merged_file(family, tmp_path)
    tokenizer, ids, ours = our_continuation(path, N_NEW)
    assert printable(PEER.continuation(path, tokenizer, PROMPT, ids, N_NEW)) == printable(ours)


def printable(text: bytes) -> bytes:
    """What is left of a text that a program has printed: no zero bytes, and its own line ends at the end."""
    return text.replace(b"\0", b"").strip(b"\n")
