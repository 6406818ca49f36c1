"""How byte-level BPE vocabularies cut a text before merging, by the name a GGUF keeps in `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json files, in the order they are applied: each cuts the pieces left
by the one before and isolates its matches. A name that is not in the table is refused, never replaced by a guess.
Unicode normalisation is not done here: a GGUF does not say whether its model wanted any, and llama.cpp does none.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import UnsupportedTokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`splits`: regular expressions in Oniguruma syntax. `ignore_merges`: a piece that is a token needs no merges.

    `add_bos`: what applies where the GGUF has no `tokenizer.ggml.add_bos_token`.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


# The letters of DeepSeek LLM's pattern: the cased ones of Unicode 13, as its tokenizer.json spells them out.
_CASED = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = _CONTRACTION + (
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HEAD, _LOWER, _UPPER = r"[^\r\n\p{L}\p{N}]?", r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_CASE_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BY_CASE = f"{_HEAD}[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}?|{_HEAD}[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}?"
_GPT4O = _BY_CASE + r"|\p{N}{1,3}" + _CASE_TAIL
_YOUTU = _BY_CASE + r"|\p{N}" + _CASE_TAIL
_NO_HAN = r"&&[^\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+|{_HEAD}[{_UPPER}{_NO_HAN}]*[{_LOWER}{_NO_HAN}]+{_CONTRACTION}?"
    rf"|{_HEAD}[{_UPPER}{_NO_HAN}]+[{_LOWER}{_NO_HAN}]*{_CONTRACTION}?|\p{{N}}{{1,3}}" + _TAIL
)
_TEKKEN = f"{_HEAD}[{_UPPER}]*[{_LOWER}]+|{_HEAD}[{_UPPER}]+[{_LOWER}]*" r"|\p{N}" + _CASE_TAIL
_CJK = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_ASIAN = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_LAST_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # threes counted from the end
_UNSPACED = (
    r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}"
    r"\x{0e00}-\x{0eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+"
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{0964}\x{06d4}\x{060c})]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = _CONTRACTION + (
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_EXAONE_MOE = _CONTRACTION + (
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_MERGELESS = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))

_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (_PLAIN_GPT2, "gpt-2 olmo mpt jais phi-2 trillion granite-docling exaone4 gigachat mellum a.x-4.0 modern-bert"),
    (_DIGITS_GPT2, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (_LLAMA3_MERGELESS, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), ignore_merges=True), "glm4 glm5"),
    (PreTokenizer((_QWEN2,)), "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo grok-2 solar-open"),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (
        PreTokenizer((
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
            r"\s+$",
            _ASIAN,
            r"\p{N}+",
        )),
        "deepseek-llm",
    ),
    (PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, r"\p{N}")), "deepseek-coder"),
    (_DEEPSEEK_V3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer((_LAST_THREES, _UNSPACED, _DEEPSEEK3)), "afmoe"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2"),
    (PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya cohere2moe"),
    (PreTokenizer((_KIMI,), ignore_merges=True), "kimi-k2"),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (PreTokenizer((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_SEED_CODER,)), "seed-coder"),
    (PreTokenizer((_EXAONE_MOE,)), "exaone-moe"),
    (
        PreTokenizer((
            r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}"
            r"\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|" + _CJK,
            _YOUTU,
        ), ignore_merges=True),
        "youtu",
    ),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
)
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: pre for pre, names in _FAMILIES for name in names.split()}


def find_pre_tokenizer(name: str | None) -> PreTokenizer:
    """The entry for a `tokenizer.ggml.pre` value; UnsupportedTokenizer names the value and the known ones."""
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    fault = f"tokenizer.ggml.pre = '{name}' is not supported" if name else "tokenizer.ggml.pre is missing"
    known = ", ".join(sorted(PRE_TOKENIZERS))
    raise UnsupportedTokenizer(f"{fault}; pearl convert --pre NAME stores the right one; supported: {known}")


def name_of_splits(splits: tuple[str, ...], ignore_merges: bool) -> str | None:
    """The first known name with exactly these patterns and merge rule, or None: the inverse of `find_pre_tokenizer`."""
    for name, pre in PRE_TOKENIZERS.items():
        if pre.splits == splits and pre.ignore_merges == ignore_merges:
            return name
    return None
