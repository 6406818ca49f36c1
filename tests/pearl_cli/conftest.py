"""A tiny random model on disk for commands that run one."""

from pathlib import Path

import pytest
from tiny_gguf import Typed, tiny_moe, write_gguf

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock GGUF of a random OLMoE with a byte vocabulary and a chat template."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    model = tiny_moe("olmoe")
    metadata = {**model.metadata, "tokenizer.chat_template": TEMPLATE, "tokenizer.ggml.merges": Typed("str", [])}
    return write_gguf(path, metadata, model.tensors)


@pytest.fixture(autouse=True)
def _own_cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage profiles of test models stay out of the user's cache, and out of each other's runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
