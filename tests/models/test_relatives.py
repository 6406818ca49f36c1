"""What a refusal of a file says beside the list: the nearest relative, or what such a file is instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.config import ModelConfig
from models.config_table import ARCHITECTURES
from models.errors import GGUFError, PearlError, UnsupportedArchitecture, UnsupportedError
from models.gguf import GGUFModel
from models.relatives import _RELATIVES, nearest_relative
from tests.tiny_gguf import tiny_moe

LIST = ", ".join(sorted(ARCHITECTURES))


def refusal(tmp_path: Path, **metadata: object) -> PearlError:
    """How a file with these keys, dots as double underscores, is refused; None takes a key away."""
    model = tiny_moe("olmoe")
    model.metadata |= {key.replace("__", "."): value for key, value in metadata.items()}
    model.metadata = {key: value for key, value in model.metadata.items() if value is not None}
    with GGUFModel.open(model.write(tmp_path / "m.gguf")) as gguf, pytest.raises(PearlError) as caught:
        ModelConfig.from_gguf(gguf)
    return caught.value


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("bert", "it turns text into vectors and writes none"),
        ("clip", "this is the image or sound half of a model; give the file of its language half"),
        ("whisper", "it hears speech and is no language model"),
        ("mamba2", "nearest relative: granitehybrid"),
        ("deepseek32", "nearest relative: deepseek2"),
        ("granite", "nearest relative: granitemoe"),
        ("qwen3", "nearest relative: qwen3moe"),
        ("ernie4_5", "nearest relative: ernie4_5-moe"),
        ("hunyuan-dense", "nearest relative: hunyuan-moe"),
        ("hy_v5", "nearest relative: hy_v3"),
        ("qwen3vl", "nearest relative: qwen3vlmoe"),
        ("olmoe9", "nearest relative: olmoe"),
        ("hy_v4", "nearest relative: deepseek2"),
        ("kimi-linear", "nearest relative: qwen3next"),
        ("minimax-m3", "nearest relative: minimax-m2"),
        ("falcon", "none of them is a near relative"),
        ("", "none of them is a near relative"),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_list_and_its_relative(
    tmp_path: Path, name: str, end: str
) -> None:
    error = refusal(tmp_path, general__architecture=name)
    assert isinstance(error, UnsupportedArchitecture)
    assert str(error).endswith(f"m.gguf: architecture '{name}' is not supported; supported: {LIST}; {end}")


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("adapter", "(type 'model'); merge it into its model first"),
        ("mmproj", "(type 'model'); this is the image or sound half of a model; give the file of its language half"),
        ("imatrix", "(type 'model'); give it to pearl convert --imatrix"),
        ("vocab", "(type 'model')"),
    ],
)
def test_a_file_that_is_no_model_is_refused_with_what_to_do(tmp_path: Path, kind: str, end: str) -> None:
    error = refusal(tmp_path, general__type=kind)
    assert isinstance(error, UnsupportedError)
    assert str(error).endswith(f"m.gguf: general.type is '{kind}'; pearl runs whole models {end}")


def test_a_dense_model_and_one_of_no_architecture_are_refused(tmp_path: Path) -> None:
    assert "a dense 'olmoe' model without experts" in str(refusal(tmp_path, olmoe__expert_count=None))
    nameless = refusal(tmp_path, general__architecture=None)
    assert isinstance(nameless, GGUFError)
    assert "'general.architecture' is missing" in str(nameless)


def test_relatives_are_supported_and_no_beginning_hides_a_longer_one() -> None:
    assert set(_RELATIVES.values()) <= set(ARCHITECTURES)
    starts = list(_RELATIVES)
    hidden = [b for i, a in enumerate(starts) for b in starts[i + 1 :] if b.startswith(a)]
    assert not hidden
    assert nearest_relative("qwen35", ARCHITECTURES) == "nearest relative: qwen35moe"
