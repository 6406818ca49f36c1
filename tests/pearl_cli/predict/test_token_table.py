"""The table says of a token what its earlier occurrences used, and of a new one what is popular."""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations
from models.expert_provider import Routing
from pearl_cli.predict.token_table import TokenTable


def test_a_known_token_forecasts_its_own_experts() -> None:
    table = TokenTable(num_layers=2, num_experts=8, num_experts_per_tok=2)
    uses = {7: ([0, 1], [2, 3]), 9: ([4, 5], [6, 7])}
    likeliest = {}
    for token in [7, 9, 7, 9, 9, 9, 7]:
        table.begin(np.array([token]), 0, "decode")
        for layer, ids in enumerate(uses[token]):
            routing = Routing(np.array([ids], np.int32), np.ones((1, 2), np.float32))
            found = table.forecast(layer, None, Activations(None), routing)
            if layer == 0:
                assert found[0].layer == 1
                likeliest[token] = sorted(np.argsort(-found[0].scores, kind="stable")[:2].tolist())
            else:
                assert found == []
    assert likeliest == {7: [2, 3], 9: [6, 7]}
