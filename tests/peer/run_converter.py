"""Runs llama.cpp's convert_hf_to_gguf.py on folders without a tokenizer, in F32; a program of `test_converter_peer`.

usage: run_converter.py CONVERT_HF_TO_GGUF.PY < lines of FOLDER OUTPUT
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

    def without_vocab(*arguments: Any, **keywords: Any) -> Any:
        found = find(*arguments, **keywords)
        found.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
        return found

    conversion.get_model_class = without_vocab
    for line in sys.stdin:
        folder, out = line.split()
        sys.argv = [script.name, folder, "--outfile", out, "--outtype", "f32"]
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
