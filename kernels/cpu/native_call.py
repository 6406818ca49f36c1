"""The call from numba code through the address of a native function, with any number of int64 arguments."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.vector_ir import I64


@intrinsic
def call_native(typing_context: Any, function: Any, *arguments: Any) -> Any:
    """Call the void function at address `function` with the int64 `arguments` (see `native.address_of`)."""
    n_arguments = len(arguments)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, packed = values
        kind = ir.FunctionType(ir.VoidType(), [I64] * n_arguments)
        unpacked = cgutils.unpack_tuple(builder, packed, n_arguments)
        builder.call(builder.inttoptr(address, kind.as_pointer()), unpacked)
        return context.get_dummy_value()

    return types.void(types.int64, types.StarArgUniTuple(types.int64, n_arguments)), codegen
