"""The routing flags of a run, with the defaults of each policy filled in and what does not apply refused."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import UsageError
from pearl_cli.options import RunOptions
from pearl_cli.routing import physical
from pearl_cli.routing.steering import DEFAULTS, Steering

DEFAULT_LAMBDA = 0.1  # about half a percent of perplexity on the demo model
DEFAULT_TOP_J = 1
DEFAULT_INSERTS = {"cache-prior": 0, "psr": 1, physical.NAME: 0}


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """lambda_: bonus in widths of the router's scores, None: found by price `lambda_price` (a share of perplexity);
    inserts: experts put into a layer's cache a token, None: from measured speeds; residency: share of a layer's experts
    that the logical cache holds, None: what the slots hold; evict: policy of the logical cache; steering: what the
    published description leaves open.
    """

    name: str = "exact"
    lambda_: float | None = 0.0
    lambda_price: float | None = None
    top_j: int = DEFAULT_TOP_J
    inserts: int | None = 0
    residency: float | None = None
    evict: str = "auto"
    steering: Steering = DEFAULTS

    @property
    def exact(self) -> bool:
        return self.name == "exact"

    @property
    def deterministic(self) -> bool:
        return self.name != physical.NAME

    def label(self) -> str:
        """One line for records and people, as the flags would be typed."""
        if self.exact and self.residency is None:
            return "exact"
        parts = [self.name]
        if not self.exact:
            shown = f"auto:{100 * self.lambda_price:g}%" if self.lambda_ is None else f"{self.lambda_:g}"  # type: ignore[operator]
            parts += [f"lambda {shown}", f"top-j {self.top_j}"]
            parts.append(f"inserts {'auto' if self.inserts is None else self.inserts}")
        if self.steering.label():
            parts.append(f"steer {self.steering.label()}")
        if self.residency is not None:
            parts.append(f"residency {100 * self.residency:g}%")
        if not self.deterministic:
            parts.append(physical.MARK)
        return ", ".join(parts)


def routing_settings(options: RunOptions, simulated: bool = False) -> RoutingSettings:
    """What the flags of `options` mean. `simulated`: exact routing may have a logical cache beside it, to count what it
    would miss. Raises UsageError for flags that do not apply.
    """
    name = options.routing
    residency = options.residency.percent / 100 if options.residency is not None else None
    if name == "exact":
        given: dict[str, object] = {"--lambda": options.lambda_, "--top-j": options.top_j, "--inserts": options.inserts,
                                    "--steer": options.steer}  # fmt: skip
        given |= {} if simulated else {"--residency": residency}
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} is for cache-aware routing; add --routing psr, or leave it out")
        return RoutingSettings(residency=residency, evict=options.evict)
    if name == physical.NAME and residency is not None:
        raise UsageError(f"--residency sizes a logical cache; --routing {name} goes by the slots, which --budget sizes")
    if options.evict == "static":
        raise UsageError(f"--routing {name} goes by what it has seen, --evict static by a profile; use lru or pearl")
    if options.route_trace is not None:
        raise UsageError(f"--route-trace says which experts compute, so --routing {name} has no choice; give one")
    lambda_, price = _lambda(options.lambda_)
    inserts = DEFAULT_INSERTS[name] if options.inserts is None else options.inserts
    if name == "cache-prior" and inserts != 0:
        raise UsageError("--routing cache-prior inserts nothing; --routing psr does")
    return RoutingSettings(
        name=name,
        lambda_=lambda_,
        lambda_price=price,
        top_j=DEFAULT_TOP_J if options.top_j is None else options.top_j,
        inserts=None if inserts == "auto" else int(inserts),
        residency=residency,
        evict=options.evict,
        steering=_steering(name, options.steer),
    )


def _steering(name: str, given: Steering | None) -> Steering:
    if given is None:
        return DEFAULTS
    if name == "cache-prior" and given != Steering(smoothing=given.smoothing):
        raise UsageError("--steer: cache-prior inserts nothing, so only smoothing= applies; --routing psr has the rest")
    return given


def _lambda(given: str | None) -> tuple[float | None, float | None]:
    """(factor, None) or, for auto:PRICE%, (None, price as a share)."""
    if given is None:
        return DEFAULT_LAMBDA, None
    if given.startswith("auto:"):
        return None, float(given[5:].rstrip("%")) / 100
    return float(given), None
