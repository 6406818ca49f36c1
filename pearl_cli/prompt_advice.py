"""What to say after a reply about its flags: a long prompt waited for experts, since each chunk reads again what is not
in memory and a longer chunk reads it less often; or the context was too short for the reply.
"""

from __future__ import annotations

from models.config import ModelConfig
from pearl_cli.engine import Generation
from pearl_cli.memory_plan import typed
from pearl_cli.workspace import workspace_bytes

_WORTH_SAYING_MS = 3000.0
_WORTH_SAYING_SHARE = 0.2  # of the prompt's time
_LONGEST = 4096


def context_advice(generation: Generation, context: int) -> str | None:
    """One line where the reply ended because the context of so many tokens was full, else None."""
    if not generation.context_full:
        return None
    return f"the context of {context} tokens is full, so that the text ends here; a larger -c holds more"


def chunk_advice(generation: Generation, config: ModelConfig, chunk_tokens: int, context: int) -> str | None:
    """One line, or None where the prompt went through in one chunk or hardly waited."""
    n_tokens, stats = generation.prompt_tokens - generation.reused_tokens, generation.prompt_stats
    longer = min(_rounded_up(n_tokens), _LONGEST, context)
    waited = stats.stall_ms
    if longer <= chunk_tokens or waited < max(_WORTH_SAYING_MS, _WORTH_SAYING_SHARE * generation.prompt_ms):
        return None
    n_chunks, n_longer = -(-n_tokens // chunk_tokens), -(-n_tokens // longer)
    more = workspace_bytes(config, longer) - workspace_bytes(config, chunk_tokens)
    return (
        f"the prompt waited {waited / 1e3:.0f} of {generation.prompt_ms / 1e3:.0f} s for {typed(stats.miss_bytes)} of "
        f"experts, read again for each of its {n_chunks} chunks; -ub {longer} makes {n_longer}, for {typed(more)} "
        "more memory"
    )


def _rounded_up(n_tokens: int) -> int:
    """The next power of two."""
    return 1 << max(0, n_tokens - 1).bit_length()
