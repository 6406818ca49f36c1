"""Print bench records as a Markdown table, CSV, one JSON array, or a JSON object a line.

Records are flat dictionaries.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

FORMATS = ("md", "csv", "json", "jsonl")

Record = dict[str, Any]

# Columns of the table: (heading, record -> text). JSON and CSV carry every field.
_MIB = 2**20
_COLUMNS: list[tuple[str, Any]] = [
    ("model", lambda r: r["model_type"]),
    ("size", lambda r: f"{r['model_size'] / 2**30:.2f} GiB"),
    ("backend", lambda r: r["backend"]),
    ("threads", lambda r: str(r["n_threads"])),
    ("experts in memory", lambda r: f"{100 * r['experts_held'] / r['experts_total']:.0f} %"),
    ("evict", lambda r: r["evict"]),
    ("test", lambda r: r["test"]),
    ("t/s", lambda r: f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}"),
    ("hit rate", lambda r: _or_dash(r["hit_rate"], lambda v: f"{100 * v:.1f} %")),
    ("missed MiB/t", lambda r: _or_dash(r["miss_bytes_per_token"], lambda v: f"{v / _MIB:.1f}")),
    ("stall ms/t", lambda r: _or_dash(r["stall_ms_per_token"], lambda v: f"{v:.2f}")),
    ("p50 / p99 ms", lambda r: _or_dash(r["itl_ms_p50"], lambda v: f"{v:.1f} / {r['itl_ms_p99']:.1f}")),
    ("peak RSS", lambda r: f"{r['peak_rss_bytes'] / 2**30:.2f} GiB"),
]
_FETCHED = ("fetched MiB/t", lambda r: f"{r['prefetch_bytes_per_token'] / _MIB:.1f}")
_ABLATION_COLUMNS: list[tuple[str, Any]] = [
    ("variant", lambda r: r["ablation"]),
    ("start", lambda r: r["state"]),
    ("evict", lambda r: r["evict"]),
    ("predictor", lambda r: r["predictor"]),
    *[column for column in _COLUMNS if column[0] in ("test", "t/s", "hit rate", "missed MiB/t")],
    _FETCHED,
    ("right", lambda r: _or_dash(r["prefetch_precision"], lambda v: f"{100 * v:.0f} %")),
    *[column for column in _COLUMNS if column[0] in ("stall ms/t", "p50 / p99 ms")],
]

_STEERED_COLUMNS: list[tuple[str, Any]] = [
    ("routing", lambda r: r.get("routing_label", r["routing"])),
    ("fed", lambda r: _or_dash(r["fed"], str)),
    _FETCHED,
    ("price in perplexity", lambda r: _or_dash(r.get("perplexity_price"), _interval)),
]


def _interval(estimate: Any) -> str:
    if estimate["low"] is None:
        return f"{100 * estimate['value']:+.2f} %"
    return f"{100 * estimate['value']:+.2f} % ({100 * estimate['low']:+.2f} to {100 * estimate['high']:+.2f})"


def _or_dash(value: Any, show: Any) -> str:
    return "-" if value is None else str(show(value))


def markdown(records: list[Record]) -> str:
    """The table of `records`, columns padded for reading in a terminal."""
    columns = _ABLATION_COLUMNS if records and "ablation" in records[0] else _COLUMNS
    if any("routing_label" in record for record in records):
        columns = [*columns, *(column for column in _STEERED_COLUMNS if column not in columns)]
    rows = [[heading for heading, _ in columns]] + [[show(record) for _, show in columns] for record in records]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def format_records(records: list[Record], style: str) -> str:
    """`records` in one of FORMATS."""
    if style == "md":
        return markdown(records)
    if style == "json":
        return json.dumps(records, indent=1)
    if style == "jsonl":
        return "\n".join(json.dumps(record) for record in records)
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow(
            {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in record.items()}
        )
    return out.getvalue().rstrip("\n")
