"""Write a training checkpoint as a transformers OLMoE folder, which `pearl convert` reads like any download."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import OlmoeConfig, OlmoeForCausalLM

from models.demo.tokenizer import END, END_OF_TEXT, save_tokenizer
from models.demo.train_model import Block, DemoConfig, DemoModel


def hf_state(model: DemoModel) -> dict[str, Tensor]:
    """The weights under transformers' published tensor names, one tensor an expert and linear."""
    state = {
        "model.embed_tokens.weight": model.embed_tokens,
        "model.norm.weight": model.norm,
        "lm_head.weight": model.lm_head,
    }
    for number, block in enumerate(model.layers):
        assert isinstance(block, Block)
        at = f"model.layers.{number}."
        for name, part in zip("qkv", block.qkv.chunk(3), strict=True):
            state[f"{at}self_attn.{name}_proj.weight"] = part
        state[at + "self_attn.o_proj.weight"] = block.o_proj
        state[at + "self_attn.q_norm.weight"] = block.q_norm
        state[at + "self_attn.k_norm.weight"] = block.k_norm
        state[at + "input_layernorm.weight"] = block.input_layernorm
        state[at + "post_attention_layernorm.weight"] = block.post_attention_layernorm
        state[at + "mlp.gate.weight"] = block.router
        for expert, (gate_up, down) in enumerate(zip(block.gate_up, block.down, strict=True)):
            gate, up = gate_up.chunk(2)
            state[f"{at}mlp.experts.{expert}.gate_proj.weight"] = gate
            state[f"{at}mlp.experts.{expert}.up_proj.weight"] = up
            state[f"{at}mlp.experts.{expert}.down_proj.weight"] = down
    return {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}


def hf_config(c: DemoConfig, tokenizer: Tokenizer) -> OlmoeConfig:
    """transformers' config of the same sizes."""
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    return OlmoeConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_attention_heads,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        num_experts=c.num_experts,
        num_experts_per_tok=c.num_experts_per_tok,
        norm_topk_prob=False,
        tie_word_embeddings=False,
        pad_token_id=end_of_text,
        bos_token_id=None,
        eos_token_id=[tokenizer.token_to_id(END), end_of_text],
        architectures=["OlmoeForCausalLM"],
        dtype="float32",
    )


def export(model: DemoModel, tokenizer: Tokenizer, folder: Path) -> float:
    """Write the folder, load it back with transformers, and return the largest difference of logits (float32)."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = hf_config(model.c, tokenizer)
    config.save_pretrained(folder)
    save_file(hf_state(model), folder / "model.safetensors", metadata={"format": "pt"})
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id, "temperature": 0.3}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
    save_tokenizer(tokenizer, folder)
    theirs = OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(0, model.c.vocab_size, (2, 96), generator=torch.Generator().manual_seed(1))
    dtype, model.dtype = model.dtype, torch.float32
    with torch.no_grad():
        difference = float((theirs(ids).logits - model(ids)[0]).abs().max())
    model.dtype = dtype
    return difference
