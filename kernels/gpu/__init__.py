"""Triton kernels and the streams that feed them; of these the CPU path imports only files without torch and triton."""

from __future__ import annotations

import os

# Products and sums may fuse, as in the CPU kernels. Triton asks callers to say so; the choice is part of a result.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
