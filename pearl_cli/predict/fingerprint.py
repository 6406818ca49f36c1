"""Tell models apart by their routers: what a forecast learned holds for every file with the same routers, whatever the
quantisation of the experts.
"""

from __future__ import annotations

import hashlib

import numpy as np

from models.gguf import GGUFModel

_BYTES_PER_LAYER = 1 << 16


def model_fingerprint(gguf: GGUFModel) -> str:
    """Hex digest over architecture and the first 64 KiB of every layer's router. Raises ReadFailure."""
    digest = hashlib.sha256(str(gguf.metadata.get("general.architecture")).encode())
    for name in sorted(gguf.tensors):
        if not name.endswith("ffn_gate_inp.weight"):
            continue
        info = gguf.tensors[name]
        part = np.empty(min(info.n_bytes, _BYTES_PER_LAYER), np.uint8)
        gguf.read_bytes(info.file_index, info.offset, part, f"tensor {name}")
        digest.update(f"{name}{list(info.shape)}{info.quant_type.name}".encode())
        digest.update(part.tobytes())
    return digest.hexdigest()[:32]
