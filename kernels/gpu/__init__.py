"""Triton kernels; nothing here is imported by the CPU path."""

from __future__ import annotations

import os

# Products and sums may fuse, as in the CPU kernels. Triton asks callers to say so; the choice is part of a result.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
