"""Cache-Prior and prefetch-steered routing against a plain transcription of the published listing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from kernels.backend import Activations
from kernels.quant_types import QuantType
from kernels.reference.backend import ReferenceBackend
from kernels.router_spec import RouterSpec
from models.expert_provider import RouterWeights
from pearl_cli.residency.eviction import make_policy
from pearl_cli.routing.cache_prior import CachePriorRouting
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.psr import PrefetchSteeredRouting
from pearl_cli.routing.steering import DEFAULTS, Steering, parse_steering
from tests.tolerances import FLOAT32_RELATIVE

D, E, K, LAYERS = 16, 12, 3, 4
CAPACITY = 5


def random_routers(spec: RouterSpec, biased: bool, seed: int = 0) -> list[RouterWeights | None]:
    """Layer 1 has no experts."""
    rng = np.random.default_rng(seed)
    backend = ReferenceBackend()
    routers: list[RouterWeights | None] = []
    for layer in range(LAYERS):
        matrix = (2.0 * rng.standard_normal((E, D)) / D**0.5).astype(np.float32)
        weight = backend.weight(matrix.view(np.uint8).reshape(-1), QuantType.F32, E, D)
        norm = (1 + 0.2 * rng.standard_normal(D)).astype(np.float32)
        bias = (0.1 * rng.standard_normal(E)).astype(np.float32) if biased else None
        routers.append(None if layer == 1 else RouterWeights(layer, spec, norm, 1e-5, weight, bias))
    return routers


@dataclass
class Listing:
    """The listing, step by step, with lists and dictionaries; one token at a time."""

    routers: list[RouterWeights | None]
    lambda_: float
    top_j: int
    inserts: int
    steering: Steering = DEFAULTS
    order: dict[int, list[int]] = field(default_factory=dict)  # least recent first; equal recency: larger id later
    width: dict[int, float] = field(default_factory=dict)
    stamp: dict[tuple[int, int], int] = field(default_factory=dict)
    clock: dict[int, int] = field(default_factory=dict)
    ahead: set[tuple[int, int]] = field(default_factory=set)  # (layer, expert) inserted and not chosen since
    backend: ReferenceBackend = field(default_factory=ReferenceBackend)

    def scores(self, router: RouterWeights, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a = self.backend.norm(residual, router.ffn_norm, router.norm_eps)
        z = np.asarray(self.backend.linear(a, router.ffn_gate_inp))[0].astype(np.float64)
        s = 1 / (1 + np.exp(-z)) if router.spec.gating == "sigmoid" else z
        return z, s if router.exp_probs_b is None else s + router.exp_probs_b

    def weights(self, router: RouterWeights, residual: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        z, _ = self.scores(router, residual)
        scores = 1 / (1 + np.exp(-z)) if router.spec.gating == "sigmoid" else np.exp(z) / np.exp(z).sum()
        w = scores[chosen]
        return w / w.sum() if router.spec.norm_topk_prob else w

    def groups(self, router: RouterWeights, s: np.ndarray) -> np.ndarray:
        spec = router.spec
        if spec.num_groups == 1:
            return s
        size = E // spec.num_groups
        parts = [sorted(s[g * size : (g + 1) * size], reverse=True) for g in range(spec.num_groups)]
        rank = [part[0] + part[1] if router.exp_probs_b is not None else part[0] for part in parts]
        best = sorted(range(spec.num_groups), key=lambda g: (-rank[g], g))[: spec.num_groups_used]
        return np.array([s[e] if e // size in best else -np.inf for e in range(E)])

    def evict(self, layer: int, keep: list[int]) -> None:
        held = self.order.setdefault(layer, [])
        while len(held) > CAPACITY:
            victim = min((e for e in held if e not in keep), key=lambda e: (self.stamp.get((layer, e), -1), e))
            held.remove(victim)
            self.ahead.discard((layer, victim))

    def step(self, layer: int, residual: np.ndarray) -> list[int]:
        router = self.routers[layer]
        assert router is not None
        _, s = self.scores(router, residual)
        spread = float(max(s) - min(s))
        before = self.width.get(layer)
        a = self.steering.smoothing
        self.width[layer] = spread if before is None else (1 - a) * before + a * spread
        s = self.groups(router, s)
        own = sorted(range(E), key=lambda e: (-s[e], e))
        held = self.order.setdefault(layer, [])
        share = {e: self.steering.bonus if (layer, e) in self.ahead else 1.0 for e in held}
        share |= dict.fromkeys(own[: self.top_j], 1.0)
        steered = [s[e] + self.lambda_ * self.width[layer] * share.get(e, 0.0) for e in range(E)]
        chosen = sorted(range(E), key=lambda e: (-steered[e], e))[:K]
        self.clock[layer] = self.clock.get(layer, 0) + 1
        for e in chosen:
            self.stamp[layer, e] = self.clock[layer]
            self.ahead.discard((layer, e))
            if e not in held:
                held.append(e)
        self.evict(layer, chosen)
        later = next((r for r in self.routers[layer + 1 :] if r is not None), None)
        if later is not None and self.inserts:
            seen_by = later if self.steering.norm == "next" else replace(later, ffn_norm=router.ffn_norm)
            _, ahead = self.scores(seen_by, residual)
            ahead = self.groups(later, ahead)
            ranked = sorted(range(E), key=lambda e: (-ahead[e], e))[: self.steering.top_m or K]
            there = self.order.setdefault(later.layer, [])
            new = [e for e in ranked if e not in there][: self.inserts]
            if self.steering.refresh:
                for e in set(ranked) & set(there):
                    self.stamp[later.layer, e] = self.clock.get(later.layer, 0)
            for e in new:
                there.append(e)
                self.ahead.add((later.layer, e))
                if self.steering.recency == "recent":
                    self.stamp[later.layer, e] = self.clock.get(later.layer, 0)
            self.evict(later.layer, new)
        return chosen


SPECS = {
    "softmax": (RouterSpec(E, K), False),
    "sigmoid_biased": (RouterSpec(E, K, gating="sigmoid", norm_topk_prob=True), True),
    "grouped": (RouterSpec(E, K, gating="sigmoid", num_groups=4, num_groups_used=2), True),
}


def compare_with_listing(
    spec: RouterSpec, routers: list[RouterWeights | None], lambda_: float, inserts: int, steering: Steering = DEFAULTS
) -> int:
    """60 decoded tokens, every choice, weight and resident equal; returns how many choices the bonus changed."""
    backend = ReferenceBackend()
    capacities = [None if r is None else CAPACITY for r in routers]
    logical = LogicalCache(capacities, E, lambda: make_policy("lru"), steering=steering)
    policy = PrefetchSteeredRouting(backend, logical, routers, lambda_, 1, inserts, steering)
    listing = Listing(routers, lambda_, 1, inserts, steering)
    rng = np.random.default_rng(3)
    steered = 0
    for token in range(60):
        policy.begin(np.zeros(1, np.int64), token, "decode")
        for router in routers:
            if router is None:
                continue
            residual = rng.standard_normal((1, D)).astype(np.float32)
            a = backend.norm(residual, router.ffn_norm, router.norm_eps)
            logits = backend.linear(a, router.ffn_gate_inp)
            routing = policy.select(router, residual, a, logits)
            assert routing.topk_ids[0].tolist() == listing.step(router.layer, residual)
            np.testing.assert_allclose(
                routing.topk_weights[0], listing.weights(router, residual, routing.topk_ids[0]), rtol=FLOAT32_RELATIVE
            )
            own_ids, _ = backend.route(logits, spec, router.exp_probs_b)
            steered += set(own_ids[0].tolist()) != set(routing.topk_ids[0].tolist())
            for layer, held in listing.order.items():
                assert np.flatnonzero(logical.layer(layer).resident).tolist() == sorted(held)
    counts = policy.counts
    assert counts.uses == 60 * 3 * K
    assert (counts.inserts > 0) == (inserts > 0)
    assert counts.agreed < counts.uses
    return steered


@pytest.mark.parametrize("inserts", [0, 1, 2, 4])
@pytest.mark.parametrize("lambda_", [0.1, 0.4])
@pytest.mark.parametrize("name", SPECS)
def test_choices_and_caches_are_those_of_the_listing(name: str, lambda_: float, inserts: int) -> None:
    spec, biased = SPECS[name]
    assert compare_with_listing(spec, random_routers(spec, biased), lambda_, inserts) > 10


@pytest.mark.parametrize(
    "text",
    ["top-m=1", "top-m=9", "recency=last-use", "refresh=no", "bonus=0.25", "bonus=0", "smoothing=0.5", "norm=this",
     "top-m=6,recency=last-use,refresh=no,bonus=0.5,norm=this"],
)  # fmt: skip
def test_every_open_choice_does_what_it_says(text: str) -> None:
    spec, biased = SPECS["softmax"]
    assert compare_with_listing(spec, random_routers(spec, biased), 0.2, 2, parse_steering(text)) > 10


@pytest.mark.parametrize("name", SPECS)
def test_ties_go_to_the_smaller_id(name: str) -> None:
    """Experts 0 and 11, 1 and 10, .. have one router row and bias each, so every choice, insert and group is tied."""
    spec, biased = SPECS[name]
    routers = random_routers(spec, biased)
    for router in routers:
        if router is not None:
            rows = router.ffn_gate_inp.data.reshape(E, -1)
            rows[E // 2 :] = rows[: E // 2][::-1]
            if router.exp_probs_b is not None:
                router.exp_probs_b[E // 2 :] = router.exp_probs_b[: E // 2][::-1]
    assert compare_with_listing(spec, routers, 0.2, 2) > 10


def run_one(policy: CachePriorRouting, routers: list[RouterWeights | None], phase: str, n_tokens: int) -> np.ndarray:
    backend = ReferenceBackend()
    router = routers[0]
    assert router is not None
    residual = np.random.default_rng(8).standard_normal((n_tokens, D)).astype(np.float32)
    a = backend.norm(residual, router.ffn_norm, router.norm_eps)
    policy.begin(np.zeros(n_tokens, np.int64), 0, phase)
    return policy.select(router, residual, a, backend.linear(a, router.ffn_gate_inp)).topk_ids


def test_a_prompt_is_routed_exactly_and_fills_the_cache() -> None:
    routers = random_routers(RouterSpec(E, K), False)
    backend = ReferenceBackend()
    logical = LogicalCache([CAPACITY, None, CAPACITY, CAPACITY], E, lambda: make_policy("lru"))
    policy = PrefetchSteeredRouting(backend, logical, routers, 5.0, 1, 2)
    ids = run_one(policy, routers, "prefill", 9)
    exact = LogicalCache([CAPACITY, None, CAPACITY, CAPACITY], E, lambda: make_policy("lru"))
    expected = run_one(CachePriorRouting(backend, exact, 0.0, 1, "exact"), routers, "prefill", 9)
    np.testing.assert_array_equal(ids, expected)
    assert policy.inserted is None
    assert policy.counts.uses == 0
    assert set(ids[-1].tolist()) <= set(np.flatnonzero(logical.layer(0).resident).tolist())
    assert np.isfinite(logical.ranges.value[0])


def test_a_bonus_without_end_keeps_the_first_choice_only() -> None:
    """J = 1 and a huge lambda: the router's best expert and, for the rest, residents."""
    routers = random_routers(RouterSpec(E, K), False)
    logical = LogicalCache([CAPACITY, None, CAPACITY, CAPACITY], E, lambda: make_policy("lru"))
    logical.use(0, np.array([[0, 1, 2], [2, 3, 4]], np.int32))
    policy = CachePriorRouting(ReferenceBackend(), logical, 1e6, 1)
    chosen = run_one(policy, routers, "decode", 1)[0]
    router = routers[0]
    assert router is not None
    exact = LogicalCache([E, None, E, E], E, lambda: make_policy("lru"))
    own = run_one(CachePriorRouting(ReferenceBackend(), exact, 0.0, 1), routers, "decode", 1)[0]
    assert own[0] in chosen
    assert set(chosen.tolist()) - {int(own[0])} <= {0, 1, 2, 3, 4}


def test_several_tokens_at_once_are_no_decoding() -> None:
    routers = random_routers(RouterSpec(E, K), False)
    logical = LogicalCache([CAPACITY, None, CAPACITY, CAPACITY], E, lambda: make_policy("lru"))
    with pytest.raises(ValueError, match="one token at a time"):
        run_one(CachePriorRouting(ReferenceBackend(), logical, 0.1, 1), routers, "decode", 2)


def test_logits_that_are_no_numbers_are_refused() -> None:
    routers = random_routers(RouterSpec(E, K), False)
    logical = LogicalCache([CAPACITY, None, CAPACITY, CAPACITY], E, lambda: make_policy("lru"))
    policy = CachePriorRouting(ReferenceBackend(), logical, 0.1, 1)
    policy.begin(np.zeros(1, np.int64), 0, "decode")
    router = routers[0]
    assert router is not None
    with pytest.raises(ValueError, match="not numbers"):
        policy.select(router, np.zeros((1, D)), Activations(np.zeros((1, D), np.float32)), np.full((1, E), np.nan))
