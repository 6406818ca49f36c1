"""Which vector instructions the inner loops use. Chosen once at import, overridden by PEARL_CPU or by an argument in
tests.

    avx512vnni  8-bit dot products (vpdpbusd, vpdpwssd) of AVX512-VNNI, 256 or 512 bits wide
    avxvnni     the same instructions in their AVX encoding, on processors without AVX512
    avx2        vpmaddubsw and vpmaddwd
    neon        the sdot instruction of Armv8.2 dot product
    portable    plain vector IR that LLVM lowers to whatever the machine has
Integer sums within a block are exact in each of them, so they differ only where a float multiply-add is split.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import llvmlite.binding as llvm

ISAS = ("avx512vnni", "avxvnni", "avx2", "neon", "portable")
_AVX512 = "avx512"


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for: an instruction set of ISAS, and LLVM's processor name and feature string."""

    isa: str
    cpu: str
    features: str


def host_features() -> dict[str, bool]:
    """LLVM's feature flags of this machine; empty where LLVM cannot tell."""
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


def runnable(isa: str) -> bool:
    """Whether this machine can execute `isa`."""
    have = host_features()
    if isa == "avx512vnni":
        return all(have.get(f, False) for f in ("avx512vnni", "avx512vl", "avx512bw", "f16c", "fma"))
    if isa == "avxvnni":
        return all(have.get(f, False) for f in ("avxvnni", "avx2", "f16c", "fma"))
    if isa == "avx2":
        return all(have.get(f, False) for f in ("avx2", "f16c", "fma"))
    if isa == "neon":
        return have.get("dotprod", False)
    return isa == "portable"


def choose_isa(override: str | None = None) -> str:
    """The instruction set to use: `override`, else PEARL_CPU, else the first of ISAS that this machine can run.

    Raises ValueError for a name that is not in ISAS or that this machine cannot run.
    """
    wanted = override or os.environ.get("PEARL_CPU") or ""
    can_run = [isa for isa in ISAS if runnable(isa)]
    if not wanted:
        return can_run[0]
    if wanted not in can_run:
        raise ValueError(f"PEARL_CPU={wanted}: this machine can run {', '.join(can_run)}")
    return wanted


def target(isa: str | None = None) -> Target:
    """LLVM's processor and features for `isa` (default: choose_isa()); features of wider sets are switched off, so
    that a test of `avx2` runs what an AVX2 machine would run."""
    chosen = choose_isa(isa)
    have = host_features()
    if chosen in ("avxvnni", "avx2"):
        drop = (_AVX512, "avx10", "amx") if chosen == "avxvnni" else (_AVX512, "avx10", "amx", "avxvnni")
        have = {f: on and not f.startswith(drop) for f, on in have.items()}
    flags = ",".join(f"{'+' if on else '-'}{f}" for f, on in sorted(have.items()))
    return Target(chosen, llvm.get_host_cpu_name(), flags)


TARGET = target()
