"""The demo model's training form: its hand-written gradient, its cache, and its export to transformers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training the demo model needs the extra `train`")

from models.demo.evaluate import code_outcome  # noqa: E402
from models.demo.evaluate_replies import greedy_replies, load_exported  # noqa: E402
from models.demo.tokenizer import train_tokenizer  # noqa: E402
from models.demo.train import learning_rate  # noqa: E402
from models.demo.train_model import DemoConfig, DemoModel, KVCache, SortedExperts, padded_places  # noqa: E402
from tests.tolerances import DEMO_GRADIENT_RTOL, DEMO_LOGITS_ATOL  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(seed=3, conversations=200)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(1)
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "num_experts": 8,
        "max_position_embeddings": 128,
    }
    made = DemoModel(DemoConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


def test_sorted_experts_give_value_and_gradient_of_the_plain_sum():
    torch.manual_seed(2)
    n, k, e, d, i = 37, 2, 5, 12, 6

    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    x, weights, gate_up, down = leaf(n, d), leaf(n, k), leaf(e, 2 * i, d), leaf(e, d, i)
    ids = torch.stack([torch.randperm(e - 1)[:k] for _ in range(n)])  # the last expert stays empty
    hidden = torch.einsum("ewd,nd->new", gate_up, x)
    outputs = torch.einsum("edi,nei->ned", down, torch.nn.functional.silu(hidden[..., :i]) * hidden[..., i:])
    plain = (outputs.gather(1, ids[:, :, None].expand(n, k, d)) * weights[:, :, None]).sum(1)
    ours = SortedExperts.apply(x, weights, ids, gate_up, down)
    seed = torch.randn(n, d, dtype=torch.float64)
    leaves = (x, weights, gate_up, down)
    for mine, theirs in zip(
        torch.autograd.grad(ours, leaves, seed), torch.autograd.grad(plain, leaves, seed), strict=True
    ):
        assert float((mine - theirs).abs().max()) <= DEMO_GRADIENT_RTOL * float(theirs.abs().max())
    assert torch.allclose(ours, plain)


def test_padded_places_keep_experts_apart():
    ids = torch.tensor([[0, 3], [3, 1], [0, 1], [3, 0]])
    place, counts = padded_places(ids, 4)
    assert counts == [32, 32, 0, 32]
    assert sorted(place.tolist()) == [0, 1, 2, 32, 33, 64, 65, 66]
    assert (place // 32).tolist() == [0, 2, 2, 1, 0, 1, 2, 0]


def test_cached_rows_of_unequal_length_equal_the_whole_pass(model):
    ids = torch.randint(0, model.c.vocab_size, (2, 20), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        whole = model(ids)[0]
        cache = KVCache(model.c, 2, 24)
        model(ids[:, :12], cache=cache)  # row 0 continues at 8 as if the rest were padding, row 1 at 12
        step = model(torch.stack((ids[0, 8:9], ids[1, 12:13])), torch.tensor([[8], [12]]), cache)[0]
    assert float((step[0, 0] - whole[0, 8]).abs().max()) < DEMO_LOGITS_ATOL
    assert float((step[1, 0] - whole[1, 12]).abs().max()) < DEMO_LOGITS_ATOL


def test_greedy_replies_do_not_depend_on_their_batch(model, tokenizer):
    prompts = [tokenizer.encode(text).ids for text in ("3 + 4", "Hello! Who are you?", "x")]
    together = greedy_replies(model, tokenizer, prompts, max_new=6)
    assert together == [greedy_replies(model, tokenizer, [p], max_new=6)[0] for p in prompts]


def test_export_is_transformers_olmoe_and_loads_back(model, tokenizer, tmp_path):
    pytest.importorskip("transformers", reason="the export is checked by transformers")
    from models.demo.export import export

    assert export(model, tokenizer, tmp_path) < DEMO_LOGITS_ATOL
    again, words = load_exported(tmp_path)
    assert words.to_str() == tokenizer.to_str()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_learning_rate_warms_up_then_falls():
    assert learning_rate(1.0, 0, 0.0) == pytest.approx(0.01)
    assert learning_rate(1.0, 500, 0.0) == pytest.approx(1.0)
    assert learning_rate(1.0, 500, 0.5) == pytest.approx(0.51)
    assert learning_rate(1.0, 500, 1.2) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ("```python\ndef f(x):\n    return x + 1\n```", "passes"),
        ("```python\ndef f(x):\n    return x\n```", "parses"),
        ("```python\ndef f(x):\n    while True:\n        pass\n```", "parses"),
        ("```python\ndef f(x):\n    return open(x)\n```", "parses"),
        ("```python\ndef f(x:\n```", "broken"),
        ("def f(x): return x + 1", "broken"),
    ],
)
def test_code_outcome(reply, outcome):
    assert code_outcome(reply, "assert f(1) == 2") == outcome
