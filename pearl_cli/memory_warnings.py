"""What a plan that is obeyed as asked should still say: slots too few to help, a ceiling above what the machine has
left.
"""

from __future__ import annotations

from collections.abc import Callable

from models.config import ModelConfig
from models.errors import MemoryPlanError
from pearl_cli.host_memory import available_bytes
from pearl_cli.memory_plan import MemoryPlan, typed


def warn_of_plan(
    plan: MemoryPlan, config: ModelConfig, notify: Callable[[str], None] | None, on_gpu: bool = False
) -> None:
    """At most one line each for tight slots and, where the plan is for host memory, scarce memory."""
    if notify is None:
        return
    kept = min(plan.slots.capacities[layer] for layer in config.moe_layers)
    used = config.router.num_experts_per_tok
    if kept < used:
        again, flag = ("copied", "--vram") if on_gpu else ("read", "--ram")
        notify(
            f"the expert slots hold {kept or 'less than one'} of a layer's experts and every token uses {used}: most"
            f" will be {again} again for each token; a larger --budget or {flag} helps more than anything else"
        )
    if on_gpu:
        return
    try:
        available = available_bytes()
    except MemoryPlanError:  # the system does not say; the ceiling was given for that reason
        return
    wanted = plan.total_bytes - plan.needs.process_bytes
    if wanted > available:
        notify(f"this run may take {typed(wanted)} more, only {typed(available, up=False)} is free: it may be killed")
