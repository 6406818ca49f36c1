"""The demo model in torch for training and for scoring checkpoints: OLMoE's arithmetic, tokens sorted by expert.

Not the runtime: that reads the exported file. Shapes: B rows, T positions, N = B*T tokens, D hidden, H heads,
E experts, K experts per token, I expert width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the demo model; the names are those of transformers' OlmoeConfig."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    intermediate_size: int = 64
    num_experts: int = 32
    num_experts_per_tok: int = 4
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 1024


class SortedExperts(torch.autograd.Function):  # type: ignore[misc]
    """SwiGLU experts over tokens sorted by expert, one matmul an expert, with the weighted sum over K inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """x [N, D], topk_* [N, K], gate_up [E, 2I, D], down [E, D, I] -> [N, D] in x's dtype."""
        n, k = topk_ids.shape
        place, counts = padded_places(topk_ids, gate_up.shape[0])
        gate_up, down = gate_up.to(x.dtype), down.to(x.dtype)
        xs = x.new_zeros(sum(counts), x.shape[1])
        xs[place] = x.repeat_interleave(k, 0)
        hidden = xs.new_empty(len(xs), gate_up.shape[1])
        for rows, out, w in zip(xs.split(counts), hidden.split(counts), gate_up, strict=True):
            torch.mm(rows, w.T, out=out)
        gate, up = hidden.chunk(2, dim=1)
        act = F.silu(gate) * up
        ys = torch.empty_like(xs)
        for rows, out, w in zip(act.split(counts), ys.split(counts), down, strict=True):
            torch.mm(rows, w.T, out=out)
        picked = ys[place].view(n, k, -1)
        ctx.save_for_backward(xs, topk_weights, hidden, act, picked, gate_up, down, place)
        ctx.counts = counts
        return (picked * topk_weights[:, :, None].to(x.dtype)).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, topk_weights, gate_up and down."""
        xs, topk_weights, hidden, act, picked, gate_up, down, place = ctx.saved_tensors
        (n, k), counts, dy = topk_weights.shape, ctx.counts, grads[0]
        d_weights = torch.bmm(picked, dy[:, :, None]).squeeze(2).to(topk_weights.dtype)
        d_ys = torch.zeros_like(xs)
        d_ys[place] = (dy[:, None] * topk_weights[:, :, None].to(dy.dtype)).view(n * k, -1)
        d_act, d_down = torch.empty_like(act), torch.empty_like(down)
        for e, (g, a, da) in enumerate(zip(d_ys.split(counts), act.split(counts), d_act.split(counts), strict=True)):
            torch.mm(g, down[e], out=da)
            torch.mm(g.T, a, out=d_down[e])
        gate, up = hidden.chunk(2, dim=1)
        sig = torch.sigmoid(gate)
        d_hidden = torch.cat((d_act * up * (sig * (1 + gate * (1 - sig))), d_act * (gate * sig)), dim=1)
        d_xs, d_gate_up = torch.empty_like(xs), torch.empty_like(gate_up)
        for e, (g, x, dx) in enumerate(zip(d_hidden.split(counts), xs.split(counts), d_xs.split(counts), strict=True)):
            torch.mm(g, gate_up[e], out=dx)
            torch.mm(g.T, x, out=d_gate_up[e])
        return d_xs[place].view(n, k, -1).sum(1), d_weights, None, d_gate_up.float(), d_down.float()


def padded_places(topk_ids: Tensor, num_experts: int) -> tuple[Tensor, list[int]]:
    """Row of every (token, choice) [N*K] in a buffer sorted by expert, and the rows of each expert.

    Counts are rounded up to 32: a bfloat16 matmul on a CPU is set up once a shape, so shapes must repeat.
    """
    flat = topk_ids.flatten()
    counts = torch.bincount(flat, minlength=num_experts)
    padded = (counts + 31) // 32 * 32
    shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    order = flat.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(flat)) + shift[flat[order]]
    return place, padded.tolist()


class Block(nn.Module):  # type: ignore[misc]
    """One layer's parameters, named after transformers' where they are plain."""

    def __init__(self, c: DemoConfig) -> None:
        super().__init__()
        d, i, e = c.hidden_size, c.intermediate_size, c.num_experts
        self.input_layernorm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.randn(3 * d, d) * 0.02)
        self.o_proj = nn.Parameter(torch.randn(d, d) * 0.02)
        self.q_norm = nn.Parameter(torch.ones(d))
        self.k_norm = nn.Parameter(torch.ones(d))
        self.post_attention_layernorm = nn.Parameter(torch.ones(d))
        self.router = nn.Parameter(torch.randn(e, d) * 0.02)
        self.gate_up = nn.Parameter(torch.randn(e, 2 * i, d) * 0.03)
        self.down = nn.Parameter(torch.randn(e, d, i) * 0.03)


class KVCache:
    """Keys and values of every layer for rows of unequal length: `[layer][B, H, T, D/H]`."""

    def __init__(self, c: DemoConfig, rows: int, length: int) -> None:
        shape = (c.num_hidden_layers, rows, c.num_attention_heads, length, c.hidden_size // c.num_attention_heads)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)


class DemoModel(nn.Module):  # type: ignore[misc]
    """OLMoE: RMS norms over the whole query and key, NeoX rope, softmax then top-k, weights not renormalised."""

    def __init__(self, c: DemoConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.c, self.dtype = c, dtype
        self.embed_tokens = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.02)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        self.lm_head = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.02)
        half = c.hidden_size // c.num_attention_heads // 2
        angles = torch.outer(torch.arange(c.max_position_embeddings), c.rope_theta ** (-torch.arange(half) / half))
        mask = torch.full((c.max_position_embeddings, c.max_position_embeddings), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        routes: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> logits [B, T, V] and the balance loss; writes `cache`, appends topk_ids [N, K] to `routes`."""
        b, t = ids.shape
        if positions is None:
            positions = torch.arange(t).expand(b, t)
        x, balance = F.embedding(ids, self.embed_tokens), torch.zeros(())
        for number, block in enumerate(self.layers):
            assert isinstance(block, Block)
            x = x + self._attention(block, self._norm(x, block.input_layernorm), positions, number, cache)
            y, loss = self._experts(block, self._norm(x, block.post_attention_layernorm).flatten(0, 1), routes)
            x, balance = x + y.view_as(x), balance + loss / len(self.layers)
        return self._linear(self._norm(x, self.norm), self.lm_head).float(), balance

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.c.rms_norm_eps)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(self.dtype), weight.to(self.dtype))

    def _rope(self, x: Tensor, positions: Tensor) -> Tensor:
        b, t = positions.shape
        x = x.view(b, t, self.c.num_attention_heads, -1)
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).transpose(1, 2)

    def _attention(self, block: Block, x: Tensor, positions: Tensor, number: int, cache: KVCache | None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self._linear(x, block.qkv).float().split(d, dim=-1)
        q, k = self._rope(self._norm(q, block.q_norm), positions), self._rope(self._norm(k, block.k_norm), positions)
        v = v.view(b, t, self.c.num_attention_heads, -1).transpose(1, 2)
        if cache is None:
            q, k, v = q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)
            # plain matmuls: faster here than torch's fused CPU kernel in bfloat16 with rows of a few hundred tokens
            scores = torch.matmul(q, k.mT).float() * q.shape[-1] ** -0.5 + self.mask[:t, :t]
            y = torch.matmul(scores.softmax(-1).to(self.dtype), v)
        else:
            where = positions[:, None, :, None].expand_as(k)
            cache.keys[number].scatter_(2, where, k)
            cache.values[number].scatter_(2, where, v)
            seen = torch.arange(cache.keys.shape[3]) <= positions[:, None, :, None]
            y = F.scaled_dot_product_attention(q, cache.keys[number], cache.values[number], attn_mask=seen)
        return self._linear(y.transpose(1, 2).reshape(b, t, d), block.o_proj).float()

    def _experts(self, block: Block, x: Tensor, routes: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        probs = F.linear(x, block.router).softmax(-1)  # [N, E], float32: the choice must not depend on bfloat16
        topk_weights, topk_ids = probs.topk(self.c.num_experts_per_tok, dim=-1)
        if routes is not None:
            routes.append(topk_ids)
        y = SortedExperts.apply(x.to(self.dtype), topk_weights, topk_ids, block.gate_up, block.down)
        share = torch.bincount(topk_ids.flatten(), minlength=self.c.num_experts) / topk_ids.numel()
        return y.float(), self.c.num_experts * (share * probs.mean(0)).sum()
