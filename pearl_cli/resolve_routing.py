"""Turn the automatic parts of routing settings into numbers for an open engine, once, and say which."""

from __future__ import annotations

from dataclasses import replace

from models.errors import UsageError
from models.gguf import GGUFModel
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.measure_link import measure_link
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.predict.choose import choose_forecasting
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.routing.lambda_file import stored_lambda
from pearl_cli.routing.settings import RoutingSettings


def resolve_routing(opened: OpenedEngine, settings: RoutingSettings) -> RoutingSettings:
    """`settings` with a bonus factor from the file beside the model and inserts from speeds measured now (which empties
    the sequence). Raises UsageError where there is nothing to go by.
    """
    check_measurable(settings, opened.plan.all_resident)
    if settings.inserts is None:
        queue = opened.controller.queue
        copied = queue.link_bytes_per_s if isinstance(queue, CopyQueue) and queue.host.holds_all else None
        speed = measure_link(
            opened.engine, opened.controller.layers, opened.reader.read, lambda: opened.controller.last_call.stall_ms,
            copied,
        )  # fmt: skip
        used = opened.config.router.num_experts_per_tok
        settings = replace(settings, inserts=speed.hidden_inserts(min(used, settings.steering.top_m or used)))
        opened.say(f"--inserts auto is {settings.inserts}: {speed.label()}")
    if settings.lambda_ is None:
        settings, source = stored_lambda(
            opened.gguf.paths[0], model_fingerprint(opened.gguf), settings,
            logical_evict(opened.gguf, opened.options, settings), logical_residency(opened, settings),
        )  # fmt: skip
        opened.say(f"--lambda auto: {source}")
    return settings


def check_automatic(settings: RoutingSettings, gguf: GGUFModel, options: RunOptions, all_resident: bool) -> None:
    """Raises UsageError where there is nothing to go by, as far as that is known before anything is measured."""
    check_measurable(settings, all_resident)
    if settings.lambda_ is None and settings.inserts is not None:
        evict = logical_evict(gguf, options, settings)
        stored_lambda(gguf.paths[0], model_fingerprint(gguf), settings, evict, settings.residency or 1.0)


def check_measurable(settings: RoutingSettings, all_resident: bool) -> None:
    """Raises UsageError where inserts shall come from measured copies and there will be none."""
    if settings.inserts is None and all_resident:
        raise UsageError("--inserts auto measures copies, and every expert is in memory: give a number or --budget")


def logical_evict(gguf: GGUFModel, options: RunOptions, settings: RoutingSettings) -> str:
    """What the logical cache of `settings` evicts by, `auto` resolved."""
    return choose_forecasting(gguf, options.predictor, options.stride, settings.evict).evict


def logical_residency(opened: OpenedEngine, settings: RoutingSettings) -> float:
    """Share of the experts that the logical cache of `settings` holds."""
    if settings.residency is not None:
        return settings.residency
    held = [state.own_cache.capacity for state in opened.controller.layers if state is not None]
    return sum(held) / len(held) / opened.config.router.num_experts
