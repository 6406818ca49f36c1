"""`pearl eval` of the model that ships gives the perplexity that transformers computes of its dequantised weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from models.demo.texts import held_out_texts
from pearl_cli.__main__ import main
from pearl_cli.evaluate.text_ids import ids_of
from pearl_cli.evaluate.token_scores import log_softmax
from pearl_cli.options import RunOptions
from pearl_cli.session import demo_model, open_session
from pearl_cli.terminal import Terminal
from pearl_cli.trace_texts import read_texts
from tests.tiny_models import hf_logits
from tests.tolerances import PERPLEXITY_RELATIVE

CONTEXT, WINDOWS = 256, 3
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name: str) -> str:
    """transformers' name of a tensor of pearl's shards."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] != "blk":
        return f"{WHOLE[parts[0]]}.weight"
    rest = NAMES[parts[2]] if len(parts) == 3 else f"mlp.experts.{parts[3]}.{parts[2].removeprefix('ffn_')}_proj"
    return f"model.layers.{parts[1]}.{rest}.weight"


def hf_demo(folder: Path, metadata: dict[str, Any], vocab_size: int) -> Any:
    """transformers' OLMoE in float32 with the shipped weights, dequantised."""
    get = {key.removeprefix("olmoe."): value for key, value in metadata.items()}
    config = transformers.OlmoeConfig(
        vocab_size=vocab_size, hidden_size=get["embedding_length"], intermediate_size=get["feed_forward_length"],
        num_hidden_layers=get["block_count"], num_attention_heads=get["attention.head_count"],
        num_key_value_heads=get["attention.head_count_kv"], rms_norm_eps=get["attention.layer_norm_rms_epsilon"],
        rope_theta=get["rope.freq_base"], num_experts=get["expert_count"], num_experts_per_tok=get["expert_used_count"],
        norm_topk_prob=False, tie_word_embeddings=False, eos_token_id=0, architectures=["OlmoeForCausalLM"],
        dtype="float32",
    )  # fmt: skip
    tensors = {}
    for path in sorted(demo_model().parent.glob("*-of-*.gguf")):
        for tensor in gguf.GGUFReader(path).tensors:
            floats = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            tensors[hf_name(tensor.name)] = torch.from_numpy(floats.copy())
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_perplexity_of_the_demo_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f"{json.dumps(each)}\n" for each in held_out_texts(["chat", "passages"], 8)))
    with open_session(RunOptions(no_profile=True), Terminal("off")) as session:
        metadata = dict(session.opened.gguf.metadata)
        ids = np.array(ids_of(read_texts([text]), session.tokenizer, metadata))
        model = hf_demo(tmp_path / "hf", metadata, session.opened.config.vocab_size)
    capsys.readouterr()
    assert main(["eval", "-f", str(text), "-c", str(CONTEXT), "--chunks", str(WINDOWS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = []
    for start in range(0, WINDOWS * CONTEXT, CONTEXT):
        window = ids[start : start + CONTEXT]
        log = log_softmax(hf_logits(model, window))
        parts.append(-log[np.arange(CONTEXT // 2, CONTEXT - 1), window[CONTEXT // 2 + 1 :]])
    nll = np.concatenate(parts)
    assert (found["n_windows"], found["n_tokens"]) == (WINDOWS, nll.size)
    assert found["perplexity"]["value"] == pytest.approx(math.exp(nll.mean()), rel=PERPLEXITY_RELATIVE)
