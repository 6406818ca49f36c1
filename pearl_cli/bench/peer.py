"""llama.cpp's llama-bench on the same file, one run at a time, so that two programs can be measured turn by turn."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from models.errors import PearlError, UsageError
from pearl_cli.bench.runner import Test
from pearl_cli.flag_files import typed_path


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """`program`: path of llama-bench; `model`: a stock GGUF (llama.cpp does not read pearl shards)."""

    program: Path
    model: Path
    threads: int

    @classmethod
    def from_flag(cls, flag: str, model: Path, threads: int) -> LlamaBench:
        """Parse `llama-bench=PATH`. Raises UsageError."""
        name, _, path = flag.partition("=")
        if name != "llama-bench" or not path:
            raise UsageError(f"--vs '{flag}': write --vs llama-bench=PATH, the path of llama.cpp's program")
        program = typed_path(path)
        if not program.is_file():
            raise UsageError(f"--vs: {program} does not exist; give the path of llama.cpp's llama-bench")
        if not os.access(program, os.X_OK):
            raise UsageError(f"--vs: {program} cannot be run; give the path of llama.cpp's llama-bench")
        if not model.is_file():
            raise UsageError(f"--vs-model {model}: no such file; give the stock GGUF that llama-bench shall read")
        return cls(program, model, threads)

    def run(self, test: Test) -> float:
        """Tokens a second of one repetition of `test`. Raises PearlError when the program fails."""
        command = [str(self.program), "-m", str(self.model), "-t", str(self.threads), "-r", "1", "-o", "json"]
        command += ["-p", str(test.n_prompt), "-n", str(test.n_gen)]
        if test.n_depth:
            command += ["-d", str(test.n_depth)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PearlError(f"llama-bench failed on {self.model} with exit code {done.returncode}: {last}")
        try:
            return float(json.loads(done.stdout)[0]["avg_ts"])
        except (ValueError, LookupError, TypeError) as error:
            raise PearlError(f"--vs: {self.program} gave no figure as JSON; is it llama-bench?") from error
