"""zlib's crc32, several times as fast where the processor multiplies without carries.

Four 128-bit accumulators take in 64 bytes a round: a * x^(512 + 64 or 512) mod P by two carry-less products each
(Gopal et al., "Fast CRC computation using PCLMULQDQ"). What they hold in the end is, for the checksum, as good as the
bytes they took in, so zlib finishes: 64 bytes and the tail. Elsewhere zlib does it all.
"""

from __future__ import annotations

import ctypes
import zlib
from functools import cache
from typing import Any

import numpy as np

from kernels.cpu.features import TARGET
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import I8, I64, Emitter, vec

_ROUND = 64
_WORTH_BYTES = 1 << 12
_PAIR = vec(I64, 2)
_BY_512 = (0x0154442BD4, 0x01C6E41596)  # x^(512+64) and x^512 modulo the polynomial, bits reversed
_ALL = 0xFFFFFFFF
_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)  # releases the GIL


def crc32(data: np.ndarray, value: int = 0) -> int:
    """Checksum of the bytes of `data` (contiguous), going on from `value`: `zlib.crc32`."""
    raw = data.reshape(-1).view(np.uint8)
    fold = _fold()
    if fold is None or raw.size < _WORTH_BYTES:
        return zlib.crc32(raw.data, value)
    whole = raw.size // _ROUND * _ROUND
    state = raw[:_ROUND].copy()
    state[:4].view("<u4")[:] ^= np.uint32(value ^ _ALL)
    fold(raw.ctypes.data + _ROUND, whole // _ROUND - 1, state.ctypes.data)
    # From a register of zeros: zlib's is the complement of its value.
    return zlib.crc32(raw[whole:].data, zlib.crc32(state.data, _ALL))


@cache
def _fold() -> Any:
    if "+pclmul" not in TARGET.features.split(","):
        return None
    return _FUNCTION(address_of("crc32_fold", 3, _emit))


def _emit(e: Emitter, data: Any, n_rounds: Any, state: Any) -> None:
    """Fold `n_rounds` times 64 bytes from `data` into the 64 bytes at `state`."""
    b = e.b
    constants = e.const(_PAIR, _BY_512)

    def times(pair: Any, lanes: int) -> Any:
        return e.call("llvm.x86.pclmulqdq", _PAIR, [pair, constants, I8(lanes)])

    def round_of(i: Any, accumulators: list[Any]) -> list[Any]:
        at = b.add(data, b.mul(i, e.i64(_ROUND)))
        return [
            b.xor(b.xor(times(pair, 0x00), times(pair, 0x11)), e.load(e.at(at, 16 * k), _PAIR))
            for k, pair in enumerate(accumulators)
        ]

    start = [e.load(e.at(state, 16 * k), _PAIR) for k in range(4)]
    for k, pair in enumerate(e.loop(n_rounds, start, round_of)):
        e.store(pair, e.at(state, 16 * k))
