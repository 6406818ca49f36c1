"""The kernel checks of one group, as lines of JSON on stdout, each as soon as it is known.

Usage: python check_group.py GROUP. A process of its own for each: their kernels compile side by side, and one that
breaks its process, or the device's state in it, takes no other with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels.gpu.open_gpu import open_gpu
from tests.gpu.kernel_checks import checks_of_group
from tests.gpu.report import as_record

if __name__ == "__main__":
    for check in checks_of_group(open_gpu().backend, sys.argv[1], large=True):
        print(json.dumps(as_record(check)), flush=True)
