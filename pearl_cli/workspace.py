"""What computing a chunk of a prompt takes beside weights and caches, on the CPU: pure arithmetic, kept true by a test
that measures runs.

Of each token, in bytes: the residual row; what experts keep from layer to layer; and the widest half of any layer, with
all arrays that its code holds at once. D, H, E below are hidden size, heads, experts.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layer_memory import LayerMemory
from pearl_cli.memory_plan import MIB

_FLOAT = 4
_FORMS = 2.25  # of a value quantised for its readers: as Q8_0 (34 bytes of 32) and as Q8_K (292 of 256), where both are
_PAIR_INDICES = 32  # of a (token, expert) pair: who it is, in the orders of tokens and of experts
_FIXED_BYTES = 8 * MIB  # tiles and partial sums of the threads
_LOGITS = 4  # rows of the vocabulary: logits, and what sampling makes of them


def workspace_bytes(config: ModelConfig, chunk_tokens: int) -> int:
    """Upper estimate for `chunk_tokens` computed at once, an eighth of it for what an allocator cannot use again."""
    mixer = max(_mixer_bytes(config, config.memory_of(layer)) for layer in range(config.num_layers))
    row = _FLOAT * config.hidden_size
    per_token = row + _expert_bytes(config) + max(mixer, _feed_forward_bytes(config))
    return int(chunk_tokens * per_token) * 9 // 8 + _LOGITS * _FLOAT * config.vocab_size + _FIXED_BYTES


def _expert_bytes(config: ModelConfig) -> float:
    """The buffers of (token, expert) pairs, which stay: gate and up, the unit of both quantised, and down's rows."""
    width, hidden = config.moe_intermediate_size, config.hidden_size
    pair = (2 * _FLOAT + _FORMS) * width + _FLOAT * hidden + _PAIR_INDICES
    return config.router.num_experts_per_tok * pair


def _normed_bytes(config: ModelConfig) -> float:
    """A normed row and its quantised forms."""
    return (_FLOAT + _FORMS) * config.hidden_size


def _mixer_bytes(config: ModelConfig, kept: LayerMemory) -> float:
    """The first half of a layer, which leaves a row to be added."""
    row = _FLOAT * config.hidden_size
    if kept.num_kv_heads:
        inner = _latent_bytes(config, kept) if config.latent is not None else _attention_bytes(config, kept)
    elif config.delta_net is not None:
        delta = config.delta_net
        # projections (queries, keys, values, gates, two rates), the same convolved, memory's answer, that gated
        rows = 2 * delta.conv_width + 3 * delta.value_width + 2 * delta.num_heads
        inner = _FLOAT * rows + _FORMS * delta.value_width
    elif config.mamba is not None:  # projections, what is convolved of them, the scan's answer
        net = config.mamba
        inner = _FLOAT * (net.projected_width + net.conv_width + net.inner_width) + _FORMS * net.inner_width
    else:  # a short convolution: three rows of projections, the convolved one
        inner = (4 * _FLOAT + _FORMS) * config.hidden_size
    return _normed_bytes(config) + inner + row


def _attention_bytes(config: ModelConfig, kept: LayerMemory) -> float:
    """Queries, keys and values; then the queries' norm, or what attention gives back, in parts where it sees a window;
    the sums of each head; the gate of some architectures.
    """
    q, out = config.num_heads * kept.head_dim, config.num_heads * kept.value_dim
    projected = q + kept.num_kv_heads * (kept.head_dim + kept.value_dim)
    mixed = max(q, (2 if kept.window else 1) * out) + 3 * config.num_heads
    gated = 2 * out if config.delta_net is not None or config.architecture == "afmoe" else 0
    return _FLOAT * (projected + mixed + gated) + _FORMS * out


def _latent_bytes(config: ModelConfig, kept: LayerMemory) -> float:
    """Queries as projected, then carried into the latent's space; the latent; what attention gives back there, and
    carried out of it, head by head.
    """
    latent, heads = config.latent, config.num_heads
    assert latent is not None
    n_rot = kept.head_dim - latent.kv_lora_rank
    compressed = (_FLOAT + _FORMS) * latent.q_lora_rank + _FLOAT * latent.q_lora_rank
    queries = heads * (latent.nope_dim + n_rot + kept.head_dim)
    answers = heads * (kept.value_dim + latent.value_dim) + 3 * heads
    keys = 3 * (kept.head_dim + kept.value_dim)
    return compressed + _FLOAT * (queries + keys + answers) + _FORMS * heads * latent.value_dim


def _feed_forward_bytes(config: ModelConfig) -> float:
    """The second half: the router's logits and choice, the shared expert or a dense half beside them, the sum."""
    hidden, num_experts = config.hidden_size, config.router.num_experts
    widest = max(config.shared_intermediate_size, config.intermediate_size)
    dense = (3 * _FLOAT + _FORMS) * widest + (_FLOAT * hidden if widest else 0)
    beside = 2 * _normed_bytes(config) if config.architecture == "gemma4" else 0  # router, dense half and experts each
    return _normed_bytes(config) + 2 * _FLOAT * num_experts + dense + beside + _FLOAT * hidden
