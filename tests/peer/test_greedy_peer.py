"""The same tiny models through pearl and through llama.cpp give the same greedy text: Hugging Face folder, converter,
merged stock file. It holds pearl's reading of that format against its author's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from convert.pipeline import ConvertOptions, convert
from models.config_table import ARCHITECTURES
from tests.peer.llama_cpp_peer import find_peer
from tests.peer.peer_models import END, FIELDS, N_NEW, PROMPT, VOCAB, our_continuation, printable, save_with_tokenizer
from tests.tiny_models import FAMILIES, tiny_model

PEER = find_peer()

pytestmark = pytest.mark.skipif(
    PEER is None, reason="neither llama_cpp nor $PEARL_LLAMA_COMPLETION: no peer to compare with"
)

COMPUTED_OTHERWISE = {
    "phimoe": "llama.cpp weighs the chosen experts by a softmax over all, not by SparseMixer's rule, and its norms do "
    "not take the mean off: see test_phimoe_by_the_peers_rules"
}


def merged_file(model: Any, folder: Path) -> Path:
    hf = save_with_tokenizer(model, folder / "hf")
    pearl = convert(hf, folder / "pearl", ConvertOptions(quant="f32"))
    return convert(pearl, folder / "merged.gguf", ConvertOptions(merge=True))


def same_greedy_text(path: Path) -> None:
    assert PEER is not None
    tokenizer, ids, ours = our_continuation(path, N_NEW)
    assert printable(PEER.continuation(path, tokenizer, PROMPT, ids, N_NEW)) == printable(ours)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in COMPUTED_OTHERWISE])
def test_greedy_text_is_the_peers(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, vocab_size=VOCAB, eos_token_id=END, **FIELDS.get(family, {}))
    same_greedy_text(merged_file(model, tmp_path))


def test_phimoe_by_the_peers_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of phimoe but the two rules: weights by a softmax over the chosen, and a model in which the mean that the
    norms take off is 0.
    """
    model = centred(tiny_model("phimoe", vocab_size=VOCAB, eos_token_id=END))
    monkeypatch.setitem(ARCHITECTURES, "phimoe", replace(ARCHITECTURES["phimoe"], gating="softmax"))
    same_greedy_text(merged_file(model, tmp_path))


def centred(model: Any) -> Any:
    """Whatever is added to the residual stream has the mean 0 over its components."""
    components = {"embed_tokens.weight": -1, "o_proj.weight": 0, "o_proj.bias": 0, "experts.down_proj": 1}
    with torch.no_grad():
        for name, values in model.named_parameters():
            for end, dim in components.items():
                if name.endswith(end):
                    values -= values.mean(dim, keepdim=True)
    return model
