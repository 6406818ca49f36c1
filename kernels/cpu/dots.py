"""The dot kernel of every direct quant type: name, form of activations, and the address of its compiled function.

    void rows(w, row_bytes, n_rows, n_cols, record, out)     out[i] = row i . record, float32, n_rows >= 1
A row's result depends on that row and the record alone: not on its neighbours, the thread or how rows were cut into
calls.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import dot_float, dot_iq4_xs, dot_k, dot_k_staged, dot_k_tables, dot_legacy
from kernels.cpu.features import TARGET, Target
from kernels.cpu.native import Emit, address_of
from kernels.cpu.quantize_activations import FORM_KEYS, FORM_Q8_32, QUANTIZERS
from kernels.cpu.vector_ir import Emitter
from kernels.quant_types import QuantType

DIRECT_TYPES: tuple[QuantType, ...] = (*dot_float.FLOAT_TYPES, *dot_legacy.UNPACK, *dot_k.UNPACK)
N_ROW_ARGUMENTS = 6
_ARRANGING = (dot_legacy, dot_iq4_xs, dot_k_tables)  # families that lay the record out anew, once for a call's rows
_WHOLE = (*dot_legacy.UNPACK, QuantType.Q4_K)
"""Types with code of its own, 5 to 12 per cent faster, for rows of a multiple of their family's WHOLE_COLS. Not Q5_K:
that gains 2 per cent, and loses 7 to 11 in other rows, whose loop then shares its registers."""


def _family(quant_type: QuantType) -> Any:
    """The module with the row dot of `quant_type`."""
    if quant_type in dot_float.FLOAT_TYPES:
        return dot_float
    if quant_type == QuantType.IQ4_XS:
        return dot_iq4_xs
    if quant_type in dot_k_staged.STAGED:
        return dot_k_staged
    if quant_type in dot_k_tables.TABLED:
        return dot_k_tables
    return dot_k if quant_type in dot_k.UNPACK else dot_legacy


def emit_rows(quant_type: QuantType) -> Emit:
    """Emits the `rows` function of `quant_type`."""
    family = _family(quant_type)

    def emit(e: Emitter, w: Any, row_bytes: Any, n_rows: Any, n_cols: Any, record: Any, out: Any) -> None:
        x = family.arranged(e, quant_type, n_cols, record) if family in _ARRANGING else record

        def rows(**how: Any) -> None:
            def one(i: Any, _: list[Any]) -> list[Any]:
                value = family.row_dot(e, quant_type, e.b.add(w, e.b.mul(i, row_bytes)), n_cols, x, **how)
                e.store(value, e.b.add(out, e.b.shl(i, e.i64(2))), 4)
                return []

            e.loop(n_rows, [], one)

        if quant_type not in _WHOLE:
            rows()
            return
        rest = e.b.and_(n_cols, e.i64(family.WHOLE_COLS - 1))
        with e.b.if_else(e.b.icmp_unsigned("==", rest, e.i64(0))) as (then, otherwise):
            with then:
                rows(whole=True)
            with otherwise:
                rows(whole=False)

    return emit


def rows_address(quant_type: QuantType, target: Target = TARGET) -> int:
    """Address of the `rows` function of a direct type. Raises KeyError for other types."""
    if quant_type not in DIRECT_TYPES:
        raise KeyError(quant_type)
    return address_of(f"rows_{quant_type.name.lower()}", N_ROW_ARGUMENTS, emit_rows(quant_type), target)


def quantize_address(form: int, target: Target = TARGET) -> int:
    """Address of `quantize(x, record, n_cols)` for FORM_Q8_32 or FORM_Q8_256."""
    if form < FORM_Q8_32:
        raise KeyError(form)
    return address_of(f"quantize_{FORM_KEYS[form]}", 3, QUANTIZERS[form], target)
