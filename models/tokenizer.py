"""Text to token ids and back, from the vocabulary inside a GGUF. Chat templates are `models.chat_template`'s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from models.errors import GGUFError, UnsupportedTokenizer, UsageError
from models.pre_tokenizers import PreTokenizer, find_pre_tokenizer
from models.tokenizer_bpe import ByteLevelBpe
from models.tokenizer_special import SpecialSplitter
from models.tokenizer_spm import SentencePieceBpe
from models.tokenizer_stops import stop_ids
from models.tokenizer_vocab import TokenType, Vocabulary, flag, text_list, text_value

MODELS = ("gpt2", "llama", "gemma4")
_RAW = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


class Encoder(Protocol):
    """What one kind of vocabulary does with a text that holds no special token."""

    notes: list[str]

    def encode(self, text: str, at_start: bool, after_special: bool) -> list[int]: ...
    def token_bytes(self, text: str) -> bytes: ...
    def space_was_added(self, at_start: bool, after_special: bool) -> bool: ...


class Tokenizer:
    """One vocabulary, ready to use; immutable. `notes`: lines the user should see once (odd files, defaults used).

    `bos_id`, `eos_id`, `pad_id`, `unk_id` are None where the vocabulary has none; `stop_ids` end a reply.
    """

    def __init__(self, vocab: Vocabulary, encoder: Encoder, add_bos: bool, notes: Iterable[str] = ()) -> None:
        self._vocab = vocab
        self._encoder = encoder
        self.vocab_size = len(vocab.tokens)
        self.bos_id = vocab.special_ids.get("bos")
        self.eos_id = vocab.special_ids.get("eos")
        self.pad_id = vocab.special_ids.get("pad")
        self.unk_id = vocab.special_ids.get("unk")
        self.add_bos = add_bos
        self.stop_ids = stop_ids(vocab)
        self.notes = (*notes, *encoder.notes)
        self._special = frozenset(vocab.ids_of(*_RAW))
        self._hidden = frozenset(vocab.ids_of(TokenType.CONTROL, TokenType.UNKNOWN))
        self._always = self._splitter(TokenType.USER_DEFINED)
        self._on_request = self._splitter(*_RAW)

    def _splitter(self, *types: TokenType) -> SpecialSplitter:
        return SpecialSplitter((self._vocab.tokens[i], i) for i in self._vocab.ids_of(*types))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], pre: str | None = None) -> Tokenizer:
        """Build from GGUF metadata; `pre` overrides `tokenizer.ggml.pre`.

        Raises UnsupportedTokenizer for a kind or pre-tokenizer that is not implemented, GGUFError for a broken table.
        """
        model = text_value(metadata, "tokenizer.ggml.model")
        if model not in MODELS:
            fault = "tokenizer.ggml.model is missing" if model is None else f"tokenizer '{model}' is not supported"
            raise UnsupportedTokenizer(f"{fault}; supported: {', '.join(MODELS)}")
        vocab = Vocabulary.from_metadata(metadata, model)
        notes: list[str] = []
        encoder: Encoder
        bos_default = True
        if model == "gpt2":
            pre_tokenizer = _read_pre_tokenizer(metadata, pre)
            encoder, bos_default = ByteLevelBpe(vocab, metadata, pre_tokenizer), pre_tokenizer.add_bos
            if pre is None and metadata.get("tokenizer.ggml.pre") == "default":
                notes.append(
                    "the file's pre-tokenizer is 'default': its maker did not know the right one; pearl convert --pre "
                    "NAME stores it"
                )
        else:
            if pre is not None:
                raise UsageError("--pre is for byte-level BPE; this model's vocabulary is of the SentencePiece kind")
            encoder = SentencePieceBpe(vocab, metadata)
        if flag(metadata, "tokenizer.ggml.add_eos_token", False):
            notes.append("tokenizer.ggml.add_eos_token is true; no end token is put behind a prompt that is to go on")
        add_bos = _read_add_bos(metadata, vocab, bos_default)
        if model == "gemma4":  # older files say that there is none; llama.cpp puts one in front all the same
            add_bos = "bos" in vocab.special_ids
        return cls(vocab, encoder, add_bos, notes)

    def encode(self, text: str, add_bos: bool | None = None, special: bool = False) -> list[int]:
        """Ids of `text`. `add_bos` None: as the model wants it; never a second one. `special`: read control tokens.

        UsageError when the text cannot be written as UTF-8 or holds a character the vocabulary cannot express.
        """
        _check_utf8(text)
        ids: list[int] = []
        at_start, after_special = True, False
        for piece in (self._on_request if special else self._always).split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encoder.encode(piece, at_start, after_special)
            at_start, after_special = False, isinstance(piece, int)
        if self.add_bos if add_bos is None else add_bos:
            if self.bos_id is None:
                raise UsageError("this vocabulary has no begin-of-text token to put in front")
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        return ids

    def encode_prompt(self, text: str, special: bool = False) -> list[int]:
        """Ids to begin a raw completion with: never empty, because a model cannot run on nothing.

        An empty text in a model without BOS becomes its BOS, EOS or first control token, as llama.cpp does it.
        """
        ids = self.encode(text, special=special)
        if ids:
            return ids
        candidates = [self.bos_id, self.eos_id, *self._vocab.ids_of(TokenType.CONTROL)]
        starts = [token_id for token_id in candidates if token_id is not None]
        if not starts:
            raise UsageError("the prompt is empty and the vocabulary has no token to begin with; give a text (-p)")
        return starts[:1]

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it."""
        return self._vocab.tokens[self._checked(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token stands for; special tokens stand for their spelling."""
        text = self.token_text(token_id)
        if token_id in self._special:
            return text.encode("utf-8", "surrogateescape")
        return self._encoder.token_bytes(text)

    def special_id(self, text: str) -> int | None:
        """The id of the control or user-defined token that is spelt `text`."""
        return next((token_id for token_id in self._special if self._vocab.tokens[token_id] == text), None)

    def is_control(self, token_id: int) -> bool:
        """Whether the token is none that a reader should see."""
        return self._checked(token_id) in self._hidden

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of a whole sequence, the inverse of `encode`: a space that encoding put in front is taken away again.

        Bytes that are not UTF-8 become U+FFFD. For a reply that goes on from other text use `continuation`.
        """
        out = bytearray()
        at_start, after_special = True, False
        for token_id in ids:
            raw = self.token_bytes(token_id)
            is_special = token_id in self._special
            if is_special:
                out += b"" if skip_special and self.is_control(token_id) else raw
            else:
                added = self._encoder.space_was_added(at_start, after_special)
                out += raw.removeprefix(b" ") if added else raw
            # A BOS in front leaves the text behind it at the start.
            at_start, after_special = at_start and token_id == self.bos_id, is_special
        return out.decode("utf-8", "replace")

    def continuation(self, ids: Iterable[int]) -> str:
        """Text of ids that follow other text: every token as it stands, control tokens left out."""
        pieces = (self.token_bytes(i) for i in ids if not self.is_control(i))
        return b"".join(pieces).decode("utf-8", "replace")

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        return token_id


def _read_pre_tokenizer(metadata: Mapping[str, Any], pre: str | None) -> PreTokenizer:
    """By name, or from `pearl.tokenizer.splits`: the patterns a converter found in a tokenizer.json without a name."""
    splits = text_list(metadata, "pearl.tokenizer.splits")
    if pre is not None or splits is None:
        return find_pre_tokenizer(text_value(metadata, "tokenizer.ggml.pre") if pre is None else pre)
    return PreTokenizer(tuple(splits), flag(metadata, "pearl.tokenizer.ignore_merges", False))


def _read_add_bos(metadata: Mapping[str, Any], vocab: Vocabulary, default: bool) -> bool:
    wanted = flag(metadata, "tokenizer.ggml.add_bos_token", default and "bos" in vocab.special_ids)
    if wanted and "bos" not in vocab.special_ids:
        raise GGUFError("tokenizer.ggml.add_bos_token is true, but the file names no tokenizer.ggml.bos_token_id")
    return wanted


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text is not valid Unicode at character {error.start}; give it as UTF-8") from None
