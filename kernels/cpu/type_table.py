"""Compiled dot kernels by quant type id, in the array form that parallel kernels index.

Row `id` of `TypeTable.rows` int64 [256, 4] is (address of the rows function or 0, weights a block, bytes a block,
FORM_*).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from kernels.cpu.dots import DIRECT_TYPES, quantize_address, rows_address
from kernels.cpu.features import Target
from kernels.cpu.quantize_activations import FORM_F32, QUANTIZERS, form_of
from kernels.quant_types import QuantType, block_bytes, block_size

_log = logging.getLogger("pearl.kernels")


class TypeTable:
    """The kernels of one target, compiled type by type as `require` asks for them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.rows = np.zeros((256, 4), np.int64)
        self.forms = [FORM_F32] * 256  # FORM_* by type id, of the types required so far
        self.quantizers = [0] * (1 + len(QUANTIZERS))  # address by FORM_*; 0 for FORM_F32
        self._ready: set[int] = set()

    def require(self, quant_types: Iterable[int]) -> bool:
        """Compile what `quant_types` (ids) need and are missing; returns whether all of them have a direct kernel.

        A type without one is named once in the log of `pearl.kernels`.
        """
        direct = True
        for type_id in quant_types:
            if type_id not in self._ready:
                self._compile(QuantType(type_id))
            direct = direct and self.rows[type_id, 0] != 0
        return direct

    def _compile(self, quant_type: QuantType) -> None:
        address = form = 0
        if quant_type in DIRECT_TYPES:
            form = form_of(quant_type)
            address = rows_address(quant_type, self.target)
            self._require_form(form)
            self._require_form(FORM_F32)
        else:
            _log.warning("%s has no direct CPU kernel: its rows are dequantised at each use, slowly", quant_type.name)
            self.require([QuantType.F32])
        self.rows[quant_type] = (address, block_size(quant_type), block_bytes(quant_type), form)
        self.forms[quant_type] = form
        self._ready.add(int(quant_type))

    def _require_form(self, form: int) -> None:
        if form != FORM_F32 and not self.quantizers[form]:
            self.quantizers[form] = quantize_address(form, self.target)
