"""The findings of one run as JSON and as Markdown tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu.gpu_state import held_back
from tests.gpu.kernel_checks import Check

_COLUMNS = {
    "model": "model", "percent": "resident %", "policy": "policy", "fetching": "fetching", "median_ts": "t/s",
    "itl_ms_p50": "p50 ms", "itl_ms_p99": "p99 ms", "hit_rate": "hits", "miss_mb": "missed MB a token",
    "prefetch_precision": "precision", "prompt_ts": "prompt t/s",
}  # fmt: skip


def failures(findings: dict[str, Any]) -> list[str]:
    """One line for everything that is wrong; empty when all is well."""
    lines = list(findings["faults"])
    for check in findings["kernels"]:
        if not check["ok"]:
            what = check["fault"] or f"error {check['error']:.2e}, allowed {check['limit']:.0e}"
            lines.append(f"{check['op']}, {check['n_tokens']} tokens: {what}")
    for row in findings["streaming"]:
        lines += [f"{row['model']}: {name} differs from {row['from']}" for name in row["different"]]
        if not row["finite"]:
            lines.append(f"{row['model']}: logits are not finite")
    for run in findings["runs"]:
        if run.get("fault"):
            lines.append(f"{run['model']} {run['percent']}% {run['policy']}: {run['fault']}")
    return lines


def as_record(check: Check) -> dict[str, Any]:
    return {**check.__dict__, "ok": check.ok}


def write(findings: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """gpu.json and gpu.md in `folder`, whole at every moment; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_markdown = folder / "gpu.json", folder / "gpu.md"
    for path, text in ((as_json, json.dumps(findings, indent=1)), (as_markdown, markdown(findings))):
        scratch = path.with_suffix(".new")
        scratch.write_text(text)
        scratch.replace(path)
    return as_json, as_markdown


def markdown(findings: dict[str, Any]) -> str:
    faults = failures(findings)
    kernels = findings["kernels"]
    parts = [
        f"# {findings['device']}\n",
        f"{findings['seconds']:.0f} s, {', '.join(f'{k} {v}' for k, v in findings['versions'].items())}\n",
        f"{len(kernels)} kernel checks; {sum(row['compared'] for row in findings['streaming'])} comparisons of streamed"
        f" with resident decoding and of recorded with single launches: "
        f"{'all right' if not faults else f'{len(faults)} wrong'}\n",
        *[f"- {fault}" for fault in faults],
        *_circumstances(findings),
        "",
        _table(findings["runs"]),
    ]
    left_out = sum(1 for row in findings["runs"] if row.get("left_out"))
    if left_out:
        parts.append(f"\n{left_out} more cases were left out, because the time was up.")
    step = findings.get("step")
    if step:
        parts.append(
            f"\nOne decode step at 50 %: {step['launches']} launches, {step['device_us']:.0f} us on the device,"
            f" {step['copy_us']:.0f} us of them copies.\n"
        )
        parts += ["| kernel | count | us |", "|---|---:|---:|"]
        parts += [f"| {row['name']} | {row['count']} | {row['us']:.0f} |" for row in step["slowest"]]
    return "\n".join(parts) + "\n"


def _circumstances(findings: dict[str, Any]) -> list[str]:
    """What the device could do at that time."""
    lines = [f"- {name}: {gb_s:.0f} GB/s" for name, gb_s in findings["bandwidths"].items()]
    newest = findings["states"][-1] if findings["states"] else {}
    if newest:
        lines.append("- " + ", ".join(f"{name} {value}" for name, value in newest.items()))
    return [*lines, *(f"- clocks were held back: {reason}" for reason in held_back(findings["states"]))]


def _table(runs: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(_COLUMNS.values()) + " |", "|---" * len(_COLUMNS) + "|"]
    for run in runs:
        if run.get("left_out") or run.get("fault"):
            continue
        row = {**run, "miss_mb": (run["miss_bytes_per_token"] or 0) / 1e6}
        lines.append("| " + " | ".join(_cell(row[name]) for name in _COLUMNS) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
