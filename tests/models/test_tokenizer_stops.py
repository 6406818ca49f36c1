"""Which tokens end a reply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.errors import GGUFError
from models.tokenizer import Tokenizer
from tests.tiny_vocab import CONTROL, NORMAL, USER_DEFINED, byte_level


def stops(extra: dict[str, int], **keys: Any) -> list[str]:
    tokenizer = Tokenizer.from_metadata(byte_level("gpt-2", (), extra, **keys))
    return sorted(tokenizer.token_text(token_id) for token_id in tokenizer.stop_ids)


def test_an_end_of_turn_token_stops_beside_the_named_eos() -> None:
    extra = {"<|end_of_text|>": CONTROL, "<|eot_id|>": CONTROL, "<|start|>": CONTROL}
    assert stops(extra, eos_token_id=256) == ["<|end_of_text|>", "<|eot_id|>"]
    assert stops({"</s>": CONTROL, "<|end_of_sentence|>": CONTROL}) == ["</s>", "<|end_of_sentence|>"]  # ERNIE


def test_eot_and_eom_by_id_whatever_they_are_called() -> None:
    extra = {"a!": CONTROL, "b!": CONTROL, "c!": CONTROL}
    assert stops(extra, eos_token_id=256, eot_token_id=257, eom_token_id=258) == ["a!", "b!", "c!"]


@pytest.mark.parametrize("listed", [np.array([7, 9], dtype=np.int32), [7, 9]])
def test_the_list_of_a_generation_config_is_a_union(listed: Any) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level("gpt-2", eos_token_id=7, eos_token_ids=listed))
    assert tokenizer.stop_ids == {7, 9}


def test_a_listed_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(GGUFError, match="eos_token_ids is 900"):
        Tokenizer.from_metadata(byte_level("gpt-2", eos_token_ids=[900]))


def test_a_normal_token_that_looks_like_an_end_does_not_stop() -> None:
    assert stops({"</s>": NORMAL, "<|im_end|>": USER_DEFINED}) == ["<|im_end|>"]


@pytest.mark.parametrize("listed", [[], [258]])
def test_the_inner_end_of_a_gpt_oss_reply_does_not_stop(listed: list[int]) -> None:
    extra = {"<|return|>": CONTROL, "<|call|>": CONTROL, "<|end|>": CONTROL}
    assert stops(extra, eos_token_id=256, eos_token_ids=listed) == ["<|call|>", "<|return|>"]
    assert stops({"<|end|>": CONTROL, "<|return|>": CONTROL}) == ["<|end|>", "<|return|>"]


def test_without_types_the_named_ids_are_control_tokens() -> None:
    metadata = byte_level("gpt-2", (), {"<e>": NORMAL}, eos_token_id=256)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.stop_ids == {256}
    assert tokenizer.is_control(256)
