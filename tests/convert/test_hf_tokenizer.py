"""tokenizer.json, its companions and the chat template as GGUF keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from convert.hf_tokenizer import _prepend_scheme
from convert.open_source import open_source
from convert.pipeline import ConvertOptions, convert
from models.chat_template import ChatTemplate
from models.errors import CheckpointError, UnsupportedTokenizer, UsageError
from models.gguf import GGUFModel
from models.tokenizer import Tokenizer
from tests.convert.checkpoints import VOCAB, byte_level_tokenizer, config, weights, write_folder, write_tokenizer

SPACE = "\u2581"


def metadata_of(folder: Path, **options: Any) -> dict[str, Any]:
    path = convert(folder, folder.parent / "out", ConvertOptions(quant="f32", **options))
    with GGUFModel.open(path) as model:
        return dict(model.metadata)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "hf", weights(), config(eos_token_id=33))


def test_byte_level_vocabulary(folder: Path) -> None:
    write_tokenizer(folder, add_bos_token=False)
    keys = metadata_of(folder)
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", "qwen2")
    assert list(keys["tokenizer.ggml.merges"]) == ["a b", "ab c"]  # one was written as a string, one as a pair
    tokens, types = list(keys["tokenizer.ggml.tokens"]), keys["tokenizer.ggml.token_type"].tolist()
    assert len(tokens) == len(types) == VOCAB
    assert (tokens[33], types[33]) == ("<|end|>", 3)
    assert (tokens[34], types[34]) == ("<think>", 4)
    assert (tokens[35], types[35]) == ("[PAD35]", 5)
    assert (tokens[0], types[0]) == ("a", 1)
    assert keys["tokenizer.ggml.add_bos_token"] is False
    assert Tokenizer.from_metadata(keys).encode("abcab") == [32, 31]


def test_stop_ids_are_the_union_of_all_files(folder: Path) -> None:
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (folder / "config.json").write_text(json.dumps(config(eos_token_id=7)))
    keys = metadata_of(folder)
    assert keys["tokenizer.ggml.eos_token_ids"].tolist() == [7, 9, 33]
    assert keys["tokenizer.ggml.eos_token_id"] == 33


def test_post_processor_decides_about_bos(folder: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "A"}}],
    }
    write_tokenizer(
        folder, byte_level_tokenizer(post_processor=template), bos_token={"content": "<|end|>"}, add_bos_token=False
    )
    keys = metadata_of(folder)
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.bos_token_id"] == 33


def with_split(pattern: dict[str, str]) -> dict[str, Any]:
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return byte_level_tokenizer(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [step, {"type": "ByteLevel", "use_regex": False}]}
    )


@pytest.mark.parametrize(
    ("pattern", "stored", "ids"),
    [
        ({"Regex": "[a-c]{2}"}, "[a-c]{2}", [31, 31, 2]),  # "ab" "ab" "c": no piece holds "abc"
        ({"String": "b"}, "b", [0, 1, 0, 1, 2]),
    ],
)
def test_cutting_without_a_name_is_stored(
    folder: Path, pattern: dict[str, str], stored: str, ids: list[int]
) -> None:
    write_tokenizer(folder, with_split(pattern))
    notes: list[str] = []
    path = convert(folder, folder.parent / "out", ConvertOptions(quant="f32"), note=notes.append)
    with GGUFModel.open(path) as model:
        keys = dict(model.metadata)
    assert list(keys["pearl.tokenizer.splits"]) == [stored]
    assert keys["pearl.tokenizer.ignore_merges"] is False
    assert "tokenizer.ggml.pre" not in keys
    assert [note for note in notes if "no name in a GGUF" in note]
    assert Tokenizer.from_metadata(keys).encode("ababc") == ids
    assert metadata_of(folder, pre="llama-bpe")["tokenizer.ggml.pre"] == "llama-bpe"


def test_stored_cutting_survives_a_merge(folder: Path) -> None:
    write_tokenizer(folder, with_split({"Regex": "[a-c]{2}"}))
    pearl = convert(folder, folder.parent / "out", ConvertOptions(quant="f32"))
    with GGUFModel.open(convert(pearl, folder.parent / "merged.gguf", ConvertOptions(merge=True))) as model:
        assert Tokenizer.from_metadata(model.metadata).encode("ababc") == [31, 31, 2]


def test_a_pattern_that_does_not_compile_is_refused(folder: Path) -> None:
    write_tokenizer(folder, with_split({"Regex": "("}))
    with pytest.raises(UnsupportedTokenizer, match=r"cuts text by '\('"):
        metadata_of(folder)


def test_unknown_override_is_named(folder: Path) -> None:
    write_tokenizer(folder)
    with pytest.raises(UnsupportedTokenizer, match="zzz-new"):
        metadata_of(folder, pre="zzz-new")


def test_byte_level_with_its_own_regex_is_gpt2(folder: Path) -> None:
    write_tokenizer(
        folder, byte_level_tokenizer(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})
    )
    assert metadata_of(folder)["tokenizer.ggml.pre"] == "gpt-2"


def test_other_models_are_refused(folder: Path) -> None:
    write_tokenizer(folder, {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})
    with pytest.raises(UnsupportedTokenizer, match="Unigram"):
        metadata_of(folder)


def test_folder_without_tokenizer_says_what_to_do(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="--no-vocab"):
        metadata_of(folder)


def test_token_beyond_the_vocabulary_is_refused(folder: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer["model"]["vocab"]["far"] = VOCAB
    write_tokenizer(folder, tokenizer)
    with pytest.raises(CheckpointError, match="'far' the id 40"):
        metadata_of(folder)


_FLAGS = {"normalized": False, "single_word": False, "lstrip": False, "rstrip": False}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A Mixtral-like tokenizer.json: byte fallback, legacy normaliser, merges u+s e+r us+er, space+user,
    space+space.
    """
    pieces = ["u", "s", "e", "r", SPACE, "us", "er", "user", SPACE + "user", SPACE * 2]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    return {
        "added_tokens": [{"id": i, "content": tokens[i], "special": True, **_FLAGS} for i in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": ["u s", "e r", "us er", f"{SPACE} user", f"{SPACE} {SPACE}"],
        },
        **changes,
    }


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
CUT_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
METASPACE = {"type": "Metaspace", "replacement": SPACE, "split": False}


@pytest.mark.parametrize(
    ("changes", "scheme"),
    [
        ({}, "legacy"),
        ({"normalizer": REPLACE, "pre_tokenizer": CUT_AT_SPACES}, "never"),  # Gemma's
        ({"normalizer": None, "pre_tokenizer": {**METASPACE, "prepend_scheme": "first"}}, "first"),
        ({"normalizer": None, "pre_tokenizer": {**METASPACE, "prepend_scheme": "always"}}, "always"),
        ({"normalizer": None, "pre_tokenizer": {**METASPACE, "prepend_scheme": "never"}}, "never"),
    ],
)
def test_sentencepiece_style_tokenizes_like_hugging_face(tmp_path: Path, changes: dict[str, Any], scheme: str) -> None:
    folder = weights()
    n = 269
    folder["model.embed_tokens.weight"] = folder["lm_head.weight"] = weights()["lm_head.weight"].repeat(7, axis=0)[:n]
    written = write_folder(tmp_path / "hf", folder, config(vocab_size=n, bos_token_id=1, eos_token_id=2))
    write_tokenizer(written, sentencepiece(**changes), eos_token="</s>", bos_token="<s>")
    keys = metadata_of(written)
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["pearl.tokenizer.space_prefix"] == scheme
    assert keys["tokenizer.ggml.add_space_prefix"] is (scheme != "never")
    assert keys["tokenizer.ggml.token_type"][:5].tolist() == [2, 3, 3, 6, 6]
    scores = keys["tokenizer.ggml.scores"]
    ids = {token: number for number, token in enumerate(keys["tokenizer.ggml.tokens"])}
    assert scores[ids["us"]] > scores[ids["user"]] > scores[ids[SPACE + "user"]]
    theirs = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", "truncation": None, "padding": None, **sentencepiece(**changes)})
    )
    ours = Tokenizer.from_metadata(keys)
    for text in ("user", "<s>user", "<s> user", "user<s>user", "us er  user", "\u00e9"):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_bos=False, special=True) == expected, text


def test_cutting_at_spaces_that_are_still_there_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"here: .*MergedWithPrevious"):
        _prepend_scheme(sentencepiece(normalizer=None, pre_tokenizer=CUT_AT_SPACES), "here")


def test_chat_template_file_wins(folder: Path) -> None:
    write_tokenizer(folder, chat_template="from config")
    (folder / "chat_template.jinja").write_text("from file")
    assert metadata_of(folder)["tokenizer.chat_template"] == "from file"


def test_named_templates(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write_tokenizer(folder, chat_template=named)
    keys = metadata_of(folder)
    assert keys["tokenizer.chat_template"] == "D"
    assert keys["tokenizer.chat_template.tool_use"] == "T"
    assert (
        ChatTemplate.from_metadata(keys, Tokenizer.from_metadata(keys)).render([{"role": "user", "content": "x"}])
        == "D"
    )


def test_absent_template_is_said(folder: Path) -> None:
    write_tokenizer(folder)
    notes: list[str] = []
    convert(folder, folder.parent / "out", ConvertOptions(quant="f32"), note=notes.append)
    assert any("--template" in note for note in notes)


def test_a_pre_tokenizer_is_not_named_for_a_kind_that_has_none(tmp_path: Path) -> None:
    folder = weights()
    n = 269
    folder["model.embed_tokens.weight"] = folder["lm_head.weight"] = weights()["lm_head.weight"].repeat(7, axis=0)[:n]
    written = write_folder(tmp_path / "hf", folder, config(vocab_size=n, bos_token_id=1, eos_token_id=2))
    write_tokenizer(written, sentencepiece(), eos_token="</s>", bos_token="<s>")
    with pytest.raises(UsageError, match=r"--pre qwen2 is for byte-level BPE; .*hf has one of the SentencePiece kind"):
        open_source(written, pre="qwen2")
