"""The most memory that a pearl command ever takes, in a process of its own. Linux only: it is read from /proc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def peak_rss_bytes(*args: str) -> int:
    code = (
        "import sys\nfrom pearl_cli.main import run\nassert run(sys.argv[1:]) == 0\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) * 1024
