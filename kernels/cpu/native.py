"""Machine code for the vector-IR functions; numba code reaches it through an address (native_call.py).

Every such function takes int64 arguments only (addresses and counts) and returns nothing, so one numba kernel serves
every quant type and instruction set: the type's function is an argument. LLVM compiles one function in some ten
milliseconds, so they are compiled when a model first needs them and are not cached on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from kernels.cpu.features import TARGET, Target
from kernels.cpu.vector_ir import I64, Emitter

Emit = Callable[..., None]  # emit(e, *arguments): fills the body of a function

_lock = threading.Lock()
_engines: list[Any] = []  # engines own the code behind the addresses that were handed out
_addresses: dict[tuple[str, str], int] = {}


def build_module(name: str, n_arguments: int, emit: Emit, isa: str) -> ir.Module:
    """An IR module with one function `name` of `n_arguments` int64 arguments."""
    module = ir.Module(name)
    module.triple = llvm.get_process_triple()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * n_arguments), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(Emitter(builder, isa), *function.args)
    builder.ret_void()
    return module


def optimised(module: ir.Module, target: Target) -> tuple[Any, Any]:
    """(module, machine) after LLVM's optimiser ran for `target`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    machine = llvm.Target.from_triple(module.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed, machine


def address_of(name: str, n_arguments: int, emit: Emit, target: Target = TARGET) -> int:
    """Address of the compiled function; the same name for the same instruction set is compiled once in a process."""
    key = (name, target.isa)
    with _lock:
        if key not in _addresses:
            parsed, machine = optimised(build_module(name, n_arguments, emit, target.isa), target)
            engine = llvm.create_mcjit_compiler(parsed, machine)
            engine.finalize_object()
            _engines.append(engine)
            _addresses[key] = int(engine.get_function_address(name))
        return _addresses[key]


def assembly(name: str, n_arguments: int, emit: Emit, target: Target = TARGET) -> str:
    """The machine code of a function as text, to read while tuning."""
    parsed, machine = optimised(build_module(name, n_arguments, emit, target.isa), target)
    return str(machine.emit_assembly(parsed))
