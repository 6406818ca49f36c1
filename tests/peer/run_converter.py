"""Runs llama.cpp's convert_hf_to_gguf.py on folders with a byte-level tokenizer, in F32; a program of
`test_converter_peer`.

The script knows tokenizers by a hash of what they make of one text. The tests' own is none that it can know, so it is
told what it is; all else is the script's.

usage: run_converter.py CONVERT_HF_TO_GGUF.PY < lines of FOLDER OUTPUT [FLAG...]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def main(script: Path) -> None:
    sys.path[:0] = [str(script.parent / "gguf-py"), str(script.parent)]
    import conversion

    find = conversion.get_model_class

    def with_known_vocab(*arguments: Any, **keywords: Any) -> Any:
        found = find(*arguments, **keywords)
        found.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
        found.set_vocab = lambda self: self._set_vocab_gpt2()
        return found

    conversion.get_model_class = with_known_vocab
    for line in sys.stdin:
        folder, out, *flags = line.split()
        sys.argv = [script.name, folder, "--outfile", out, "--outtype", "f32", *flags]
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
