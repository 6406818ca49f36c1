"""Samples of one test to one flat record: llama-bench's names where it has them, residency figures beside them."""

from __future__ import annotations

import math
import statistics
from typing import Any

from pearl_cli.bench.runner import Sample, Test
from pearl_cli.bench.workload import Workload
from pearl_cli.device.device_fields import device_fields
from pearl_cli.host_memory import peak_rss_bytes
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.residency.stats import TokenStats


def make_record(
    opened: OpenedEngine, test: Test, state: str, samples: list[Sample], workload: Workload
) -> dict[str, Any]:
    """`state`: "resident" (all experts in memory), "cold" (slots empty at the start) or "warm"."""
    n_tokens = test.n_prompt or test.n_gen
    total = sum((sample.stats for sample in samples), TokenStats())
    tokens = n_tokens * len(samples)
    speeds = [1e9 * n_tokens / sample.total_ns for sample in samples]
    latencies = sorted(ns / 1e6 for sample in samples for ns in sample.token_ns)
    is_decode = bool(test.n_gen)
    kernel_s = sum(sample.kernel_s for sample in samples)
    busy_s = sum(sample.read_busy_s for sample in samples)
    elapsed_s = sum(sample.total_ns for sample in samples) / 1e9
    return {
        **_model_fields(opened),
        "test": test.name,
        "state": state,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "avg_ns": round(statistics.mean(sample.total_ns for sample in samples)),
        "stddev_ns": round(_stddev([sample.total_ns for sample in samples])),
        "avg_ts": statistics.mean(speeds),
        "stddev_ts": _stddev(speeds),
        "median_ts": statistics.median(speeds),
        "samples_ns": [sample.total_ns for sample in samples],
        "samples_ts": speeds,
        "hit_rate": total.hit_rate if total.hits + total.misses else None,
        "miss_bytes_per_token": total.miss_bytes / tokens,
        "prefetch_bytes_per_token": total.prefetch_bytes / tokens,
        "prefetch_precision": total.prefetch_precision,
        "prefetch_wasted_bytes_per_token": total.wasted_prefetch_bytes / tokens,
        "promoted_per_token": total.promoted / tokens,
        "queue_wait_ms_per_token": 1e3 * sum(sample.queue_wait_s for sample in samples) / tokens,
        "reads_per_token": sum(sample.reads for sample in samples) / tokens,
        "stall_ms_per_token": total.stall_ms / tokens,
        "ttft_ms": statistics.median(sample.ttft_ns for sample in samples) / 1e6,
        "itl_ms_p50": _percentile(latencies, 50) if is_decode else None,
        "itl_ms_p99": _percentile(latencies, 99) if is_decode else None,
        "ms_outside_kernels": 1e3 * (elapsed_s - kernel_s) / tokens - total.stall_ms / tokens if kernel_s else None,
        "kernel_gb_s": active_bytes(opened) * tokens / kernel_s / 1e9 if is_decode and kernel_s else None,
        "read_gb_s": sum(sample.read_bytes for sample in samples) / busy_s / 1e9 if busy_s else None,
        "peak_rss_bytes": peak_rss_bytes(),
        "seed": workload.seed,
        "fed": None if not is_decode else "teacher-forced" if workload.teacher_forced else "free-running",
        "ids": samples[0].ids,
    }


def _model_fields(opened: OpenedEngine) -> dict[str, Any]:
    total_bytes = sum(info.n_bytes for info in opened.gguf.tensors.values())
    experts_held, experts_total = opened.experts_held
    return {
        "model_filename": str(opened.gguf.paths[0]),
        "model_type": opened.config.name or opened.config.architecture,
        "model_size": total_bytes,
        "n_threads": opened.threads,
        "backend": opened.backend.name,
        **device_fields(opened.controller, opened.device, opened.plan),
        "evict": opened.evict,
        "predictor": opened.predictor,
        **_auto(opened),
        "routing": opened.policy.name,
        **_steering(opened),
        "budget_bytes": opened.expert_bytes_total if opened.plan.all_resident else opened.plan.slots.n_bytes,
        "expert_bytes_total": opened.expert_bytes_total,
        "experts_held": experts_held,
        "experts_total": experts_total,
    }


def _auto(opened: OpenedEngine) -> dict[str, Any]:
    """What `--predictor auto` measured and chose last; nothing before it has."""
    auto = opened.controller.auto
    return auto.verdict.fields() if auto is not None and auto.verdict is not None else {}


def _steering(opened: OpenedEngine) -> dict[str, Any]:
    """How cache-aware routing was set; nothing for exact and recorded routing."""
    settings = opened.routing
    if settings.exact:
        return {}
    return {
        "routing_label": settings.label(),
        "lambda": settings.lambda_,
        "top_j": settings.top_j,
        "inserts": settings.inserts,
        "steer": settings.steering.label(),
        "residency": settings.residency,
        "deterministic": settings.deterministic,
    }


def active_bytes(opened: OpenedEngine) -> int:
    """Weight bytes that decoding one token reads: all but the embedding table (one row) and the experts not chosen."""
    tensors, router = opened.gguf.tensors, opened.config.router
    total = sum(info.n_bytes for info in tensors.values())
    if "output.weight" in tensors:
        total -= tensors["token_embd.weight"].n_bytes
    experts = opened.expert_bytes_total
    return total - experts + experts * router.num_experts_per_tok // router.num_experts


def _stddev(values: list[Any]) -> float:
    return float(statistics.stdev(values)) if len(values) > 1 else 0.0


def _percentile(ordered: list[float], percent: float) -> float:
    """Nearest-rank percentile of an ascending list."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
