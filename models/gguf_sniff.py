"""What a file is that is not a GGUF, and what to do about it. Only makes messages; never opens a model."""

from __future__ import annotations

import difflib
import stat
from pathlib import Path

from models.errors import FileError, GGUFError
from models.gguf_cursor import show

_OLD_MAGICS = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA", b"ggml": "GGML", b"ggjt": "GGJT"}


def missing_file(path: Path) -> FileError:
    """The error for a path that does not exist, with the nearest name in its folder, or where a broken link points."""
    if path.is_symlink():
        return FileError(f"{path}: a link to {path.readlink()}, which is not there; download that file again")
    if not path.parent.is_dir():
        return FileError(f"{path}: no such file (there is no folder {path.parent})")
    names = [p.name for p in path.parent.iterdir() if p.suffix == ".gguf" and p.exists()]
    near = difflib.get_close_matches(path.name, names, 1, 0.6)
    return FileError(f"{path}: no such file" + (f"; did you mean {path.with_name(near[0])}?" if near else ""))


def describe_other_file(path: Path, head: bytes, file_bytes: int) -> FileError:
    """The error for something that is no GGUF: `head` its first bytes (at least 8 where there are that many)."""
    if path.is_dir():
        return _describe_folder(path)
    if not stat.S_ISREG(path.stat().st_mode):
        return FileError(f"{path}: not a regular file; a model must be a file that can be read at any position")
    return GGUFError(f"{path}: {_describe_content(head, file_bytes)}")


def _describe_folder(path: Path) -> FileError:
    models = sorted(p.name for p in path.glob("*.gguf"))
    if models:
        more = f" (one of {len(models)} .gguf files there)" if len(models) > 1 else ""
        return FileError(f"{path}: is a folder; open a file in it, such as {path / models[0]}{more}")
    if any(path.glob("*.safetensors")):
        if not (path / "config.json").is_file():
            return FileError(f"{path}: holds safetensors but no config.json; download the whole folder")
        return FileError(f"{path}: is a folder of safetensors; convert it first: pearl convert {path} -o OUT_DIR")
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        return FileError(
            f"{path}: holds pickled weights, which can run code and are not read; get the safetensors form"
        )
    return FileError(f"{path}: is a folder without .gguf or .safetensors files")


def _describe_content(head: bytes, file_bytes: int) -> str:
    text = head.lstrip().lower()
    if file_bytes == 0:
        return "the file is empty (0 bytes); download it again"
    if head.startswith(b"version https://git-lfs") or b"git-lfs" in head:
        return f"a git-lfs pointer, {file_bytes} bytes, not the model itself; run git lfs pull"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "an HTML page, not a model: the download returned an error or login page; download it again"
    if head[:4] == b"FUGG":
        return "a big-endian GGUF; pearl reads little-endian files: convert it again for this byte order"
    if head[:4] in _OLD_MAGICS:
        return f"a {_OLD_MAGICS[head[:4]]} file, the format before GGUF (2023); convert the original checkpoint again"
    if head[:4] == b"PK\x03\x04" or head[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x03", b"\x80\x05"):
        return "a pickle (PyTorch .bin or .pt), which can run code and is not read; get the model's safetensors form"
    if len(head) > 8 and head[8:9] == b"{":
        return "a safetensors file; convert its folder first: pearl convert FOLDER -o OUT_DIR"
    if b"GGUF".startswith(head[:4]):
        return f"the file is cut short: {file_bytes} bytes, even the header needs 24; download it again"
    return f"not a GGUF file: it starts with {show(head[:4])} instead of 'GGUF'"
