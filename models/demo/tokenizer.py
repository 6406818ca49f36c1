"""The demo model's tokenizer: byte-level BPE with the qwen2 pre-tokenizer, its chat template, and token streams.

Turns become `<|role|>text<|end|>`; the loss weight of a token says whether the assistant wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.demo.corpus import Message, conversation

END_OF_TEXT, USER, ASSISTANT, SYSTEM, END = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIALS = (END_OF_TEXT, USER, ASSISTANT, SYSTEM, END)
QWEN2_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCAB_SIZE = 2048
PROMPT_WEIGHT = 0.1  # loss weight of tokens that the user wrote, against 1.0 for the assistant's


def train_tokenizer(seed: int, conversations: int = 12_000) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` tokens, trained on the first conversations of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN2_REGEX), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["content"] for index in range(conversations) for message in conversation(seed, index))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template as transformers lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": CHAT_TEMPLATE,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM, END],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token; ValueError when the tokenizer is not the demo model's."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


def encode_conversation(tokenizer: Tokenizer, messages: list[Message]) -> tuple[list[int], list[float]]:
    """Token ids of a finished conversation and the loss weight of each; the end mark of a reply belongs to it."""
    ids: list[int] = []
    weights: list[float] = []
    end = special_id(tokenizer, END)
    for message in messages:
        body = [*tokenizer.encode(message["content"], add_special_tokens=False).ids, end]
        weight = 1.0 if message["role"] == "assistant" else PROMPT_WEIGHT
        ids += [special_id(tokenizer, f"<|{message['role']}|>"), *body]
        weights += [PROMPT_WEIGHT, *([weight] * len(body))]
    return [*ids, special_id(tokenizer, END_OF_TEXT)], [*weights, PROMPT_WEIGHT]


def encode_prompt(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """Token ids of the template with its generation prompt."""
    ids, _ = encode_conversation(tokenizer, messages)
    return [*ids[:-1], special_id(tokenizer, ASSISTANT)]


def packed_rows(
    tokenizer: Tokenizer, seed: int, first: int, length: int
) -> Iterator[tuple[list[int], list[float], int]]:
    """Endless rows of `length` tokens: whole conversations from number `first` on, the last one cut.

    Yields ids, loss weights and the number of the next unused conversation.
    """
    index = first
    while True:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < length:
            more_ids, more_weights = encode_conversation(tokenizer, conversation(seed, index))
            ids += more_ids
            weights += more_weights
            index += 1
        yield ids[:length], weights[:length], index
