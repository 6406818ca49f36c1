"""What one `pearl bench` was asked for, and everything that can be refused before a model is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import UsageError
from pearl_cli.bench.ablate import variants
from pearl_cli.bench.runner import Test
from pearl_cli.flag_files import check_place, file_of
from pearl_cli.options import RunOptions
from pearl_cli.text_file import read_text
from pearl_cli.trace_texts import read_texts


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Fields are the flags of `pearl bench`; None for one that was not given."""

    n_prompt: list[int]
    n_gen: list[int]
    n_depth: list[int]
    repetitions: int
    prompt_file: Path | None = None
    force_text: bool = False
    ablate: str | None = None
    price: Path | None = None
    timeline: Path | None = None
    vs: str | None = None
    vs_model: Path | None = None

    def tests(self) -> list[Test]:
        """Prompts first, then decoding, each at every depth."""
        prompts = [Test(n, 0, depth) for n in self.n_prompt if n for depth in self.n_depth]
        return prompts + [Test(0, n, depth) for n in self.n_gen if n for depth in self.n_depth]

    def check(self, options: RunOptions) -> None:
        """Raises UsageError for flags that contradict or need each other, FileError for a place that cannot be written.
        """
        if not self.tests():
            raise UsageError("there is nothing to measure: -p and -n are both 0; give one of them a number of tokens")
        if self.force_text and self.prompt_file is None:
            raise UsageError("--force-text feeds the text of --prompt-file; give one, or leave it out")
        if self.vs_model is not None and self.vs is None:
            raise UsageError("--vs-model is the file for --vs; give --vs llama-bench=PATH too, or leave it out")
        if self.ablate is not None:
            for flag, value in (("--price", self.price), ("--vs", self.vs)):
                if value is not None:
                    raise UsageError(f"{flag} is of one setting, --ablate runs several: give one of them")
            if len(variants(options, self.ablate)) == 1:
                raise UsageError(f"--ablate '{self.ablate}' names no piece; write evict,predictor, or evict=lfu")
        check_place("--timeline", self.timeline, [self.prompt_file, self.price, options.model])

    def text(self) -> str | None:
        """Of --prompt-file. Raises FileError."""
        if self.prompt_file is None:
            return None
        with file_of("--prompt-file"):
            return read_text(self.prompt_file)

    def price_texts(self) -> list[tuple[str, Any]]:
        """Of --price, empty without it. Raises FileError."""
        if self.price is None:
            return []
        with file_of("--price"):
            return list(read_texts([self.price]))
