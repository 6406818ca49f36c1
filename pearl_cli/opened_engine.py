"""A running engine with what it was made of. Made by `open_engine`; opens nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from kernels.backend import Backend
from models.config import ModelConfig
from models.gguf import GGUFModel
from pearl_cli.device.kernel_timing import KernelTiming
from pearl_cli.engine import Engine
from pearl_cli.memory_plan import MemoryPlan
from pearl_cli.open_routing import open_routing
from pearl_cli.options import RunOptions
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.open_reader import ChunkReader
from pearl_cli.residency.usage_profile import UsageProfile
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.physical import PhysicalCachePrior
from pearl_cli.routing.settings import RoutingSettings


@dataclass(slots=True)
class OpenedEngine:
    """A context manager that ends reader threads and closes files. device: "cpu", or the name of the GPU; profile:
    which experts this and earlier sessions used, saved at the end, None for a run that leaves it alone.
    """

    engine: Engine
    gguf: GGUFModel
    config: ModelConfig
    plan: MemoryPlan
    controller: ResidencyController
    backend: Backend
    timing: KernelTiming
    device: str
    threads: int
    evict: str
    predictor: str
    routing: RoutingSettings
    policy: RoutingPolicy
    options: RunOptions
    expert_bytes_total: int
    profile: UsageProfile | None
    reader: ChunkReader
    notify: Callable[[str], None] | None

    @property
    def experts_held(self) -> tuple[int, int]:
        """(routed experts that fit in memory, all of them), summed over the layers that have experts."""
        total = self.config.router.num_experts * sum(layer is not None for layer in self.controller.layers)
        return total if self.plan.all_resident else sum(self.plan.slots.capacities), total

    def say(self, text: str) -> None:
        """A line for the user."""
        if self.notify is not None:
            self.notify(text)

    def routing_for(self, settings: RoutingSettings) -> RoutingPolicy:
        """A policy of these settings with an empty logical cache, not in force yet. Raises UsageError."""
        policy = open_routing(
            settings, self.gguf, self.config, self.options, self.engine.model.routers, self.backend,
            self.plan.slots.capacities, self.notify,
        )  # fmt: skip
        if isinstance(policy, PhysicalCachePrior):
            policy.landed = self.controller.landed
        return policy

    def route_by(self, settings: RoutingSettings, policy: RoutingPolicy) -> None:
        """Let a policy of `routing_for` choose experts from now on; between two forward calls."""
        self.controller.route_by(policy)
        self.routing, self.policy = settings, policy

    def close(self) -> None:
        if self.profile is not None:
            self.profile.save(self.controller.layers)
        self.controller.close()
        self.reader.close()
        self.gguf.close()

    def __enter__(self) -> OpenedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
