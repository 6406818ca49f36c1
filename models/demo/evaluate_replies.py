"""Greedy answers of an exported demo model in torch, many prompts at a time; for scoring, not for users."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from models.demo.tokenizer import END, END_OF_TEXT
from models.demo.train_model import Block, DemoConfig, DemoModel, KVCache


def load_exported(folder: Path) -> tuple[DemoModel, Tokenizer]:
    """Model (float32) and tokenizer of a folder that `export` wrote; the inverse of `export.hf_state`."""
    said = json.loads((folder / "config.json").read_text())
    config = DemoConfig(**{name: said[name] for name in DemoConfig.__dataclass_fields__ if name in said})
    state, model = load_file(folder / "model.safetensors"), DemoModel(config)
    with torch.no_grad():
        model.embed_tokens.copy_(state["model.embed_tokens.weight"])
        model.norm.copy_(state["model.norm.weight"])
        model.lm_head.copy_(state["lm_head.weight"])
        for number, block in enumerate(model.layers):
            assert isinstance(block, Block)
            at = f"model.layers.{number}."
            block.qkv.copy_(torch.cat([state[f"{at}self_attn.{name}_proj.weight"] for name in "qkv"]))
            block.o_proj.copy_(state[at + "self_attn.o_proj.weight"])
            block.router.copy_(state[at + "mlp.gate.weight"])
            for name in ("q_norm", "k_norm"):
                getattr(block, name).copy_(state[f"{at}self_attn.{name}.weight"])
            for name in ("input_layernorm", "post_attention_layernorm"):
                getattr(block, name).copy_(state[f"{at}{name}.weight"])
            for expert in range(config.num_experts):
                of = f"{at}mlp.experts.{expert}."
                block.gate_up[expert].copy_(torch.cat((state[of + "gate_proj.weight"], state[of + "up_proj.weight"])))
                block.down[expert].copy_(state[of + "down_proj.weight"])
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def greedy_replies(
    model: DemoModel, tokenizer: Tokenizer, prompts: Sequence[list[int]], max_new: int = 192, rows: int = 50
) -> list[str]:
    """The arg-max reply to each prompt, without its end mark; cut after `max_new` tokens."""
    ends = {tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)}
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    replies = [""] * len(prompts)
    for start in range(0, len(by_length), rows):
        chosen = by_length[start : start + rows]
        for i, ids in zip(chosen, _greedy_ids(model, [prompts[i] for i in chosen], max_new, ends), strict=True):
            replies[i] = tokenizer.decode(ids, skip_special_tokens=False)
    return replies


@torch.no_grad()  # type: ignore[untyped-decorator]
def _greedy_ids(model: DemoModel, prompts: list[list[int]], max_new: int, ends: set[int]) -> list[list[int]]:
    lengths = torch.tensor([len(p) for p in prompts])
    longest = int(lengths.max())
    cache = KVCache(model.c, len(prompts), longest + max_new)
    # padding at the right is never seen: a position is overwritten by its real token before anything may attend to it
    padded = torch.tensor([p + [0] * (longest - len(p)) for p in prompts])
    logits, _ = model(padded, cache=cache)
    token = logits[torch.arange(len(prompts)), lengths - 1].argmax(-1)
    out: list[list[int]] = [[] for _ in prompts]
    running = [True] * len(prompts)
    for position in range(max_new):
        for row, value in enumerate(token.tolist()):
            running[row] = running[row] and value not in ends
            if running[row]:
                out[row].append(value)
        if not any(running):
            break
        logits, _ = model(token[:, None], (lengths + position)[:, None], cache)
        token = logits[:, 0].argmax(-1)
    return out
