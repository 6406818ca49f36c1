"""llama.cpp as a peer: greedy continuations of a GGUF by the Python package `llama_cpp`, or by the program
llama-completion where $PEARL_LLAMA_COMPLETION says where it is.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
from pathlib import Path
from typing import Protocol

from models.tokenizer import Tokenizer

CONTEXT = 64
_RUNS = 3  # on a busy machine the program now and then exits before it has printed its last words


class Peer(Protocol):
    """`prompt` as text and as the ids that pearl makes of it."""

    def continuation(self, model: Path, tokenizer: Tokenizer, prompt: str, ids: list[int], n_new: int) -> bytes:
        """The bytes of the `n_new` most likely tokens behind the prompt; never a stop token."""
        ...


class LibraryPeer:
    """The package, fed with ids: what it makes of the text is compared too."""

    def continuation(self, model: Path, tokenizer: Tokenizer, prompt: str, ids: list[int], n_new: int) -> bytes:
        from llama_cpp import GGML_TYPE_F32, Llama, LogitsProcessorList

        peer = Llama(
            str(model), n_ctx=CONTEXT, n_threads=1, verbose=False, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32
        )
        try:
            assert peer.tokenize(prompt.encode(), add_bos=False) == ids

            def never_stop(_: object, scores: object) -> object:
                for stop in tokenizer.stop_ids:
                    scores[stop] = -float("inf")  # type: ignore[index]
                return scores

            found = peer.generate(ids, temp=0.0, logits_processor=LogitsProcessorList([never_stop]))
            return peer.detokenize(list(itertools.islice(found, n_new)))
        finally:
            peer.close()


class ProgramPeer:
    """The program, fed with text."""

    def __init__(self, program: str) -> None:
        self._program = program

    def continuation(self, model: Path, tokenizer: Tokenizer, prompt: str, ids: list[int], n_new: int) -> bytes:
        options = {
            "-m": model, "-p": prompt, "-n": n_new, "-c": CONTEXT, "-t": 1, "--temp": 0, "-ctk": "f32", "-ctv": "f32",
        }  # fmt: skip
        words = [str(word) for option in options.items() for word in option]
        flags = ["-no-cnv", "--no-warmup", "--ignore-eos", "--simple-io", "--no-display-prompt"]
        return max((self._output([self._program, *words, *flags]) for _ in range(_RUNS)), key=len)

    def _output(self, command: list[str]) -> bytes:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
        return done.stdout


def find_peer() -> Peer | None:
    """The peer of this machine, None where there is none."""
    program = os.environ.get("PEARL_LLAMA_COMPLETION")
    if importlib.util.find_spec("llama_cpp") is not None:
        return LibraryPeer()
    return ProgramPeer(program) if program else None
