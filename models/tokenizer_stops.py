"""Which tokens end a reply: what the file lists, and the end-of-turn tokens known by their spelling."""

from __future__ import annotations

from models.tokenizer_vocab import TokenType, Vocabulary

# Spellings that end a turn in some published family; files often name another token as eos_token_id.
END_SPELLINGS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",  # Llama 3, Granite
    "<|im_end|>", "<|endoftext|>",  # ChatML, Qwen, OLMo
    "<|end|>", "<|return|>", "<|call|>",  # Phi-3, gpt-oss
    "<|flush|>", "<|calls|>",  # Solar
    "<end_of_turn>", "<turn|>", "<eos>", "</s>",  # Gemma, Llama 2, Mistral
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>",  # CodeLlama, Kimi, SmolVLM
    "<｜end▁of▁sentence｜>", "[e~[", "<|end_of_sentence|>",  # DeepSeek, MiniMax, ERNIE
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",  # Qwen's borders between files
))  # fmt: skip
# Families whose "<|end|>" closes a message inside a reply that goes on.
_INNER_END = "<|end|>"
_REPLY_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})


def stop_ids(vocab: Vocabulary) -> frozenset[int]:
    """Ids at which generation ends: eos, eot, eom, the converter's eos list, and special tokens spelt like an end.

    A normal token that looks like an end ("</s>" in a vocabulary of markup) does not count. Where the vocabulary has
    both ends of a gpt-oss or Solar reply, "<|end|>" is left out, even when the file lists it.
    """
    ends = {vocab.special_ids[name] for name in ("eos", "eot", "eom") if name in vocab.special_ids} | set(vocab.eos_ids)
    special = vocab.ids_of(TokenType.CONTROL, TokenType.USER_DEFINED)
    ends |= {token_id for token_id in special if vocab.tokens[token_id] in END_SPELLINGS}
    texts = {vocab.tokens[token_id] for token_id in ends}
    if any(pair <= texts for pair in _REPLY_ENDS):
        ends = {token_id for token_id in ends if vocab.tokens[token_id] != _INNER_END}
    return frozenset(ends)
