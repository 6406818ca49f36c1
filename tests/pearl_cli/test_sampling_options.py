"""Who decides a sampling setting: the user's flag, then the model's file, then llama.cpp's default."""

import json

import numpy as np
import pytest

from convert.gguf_metadata import Metadata
from convert.hf_sampling import add_sampling
from models.errors import CheckpointError, GGUFError
from pearl_cli.sampling import SamplingParams
from pearl_cli.sampling_options import SamplingFlags


def test_a_flag_beats_the_file_and_the_file_beats_the_default():
    flags = SamplingFlags(SamplingParams(top_k=5), frozenset({"top_k"}))
    chosen = flags.for_model({"general.sampling.temp": 0.25, "general.sampling.top_k": 77})
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.25, 5, SamplingParams().top_p)


def test_without_recommendation_the_defaults_are_llama_cpps():
    chosen = SamplingFlags(SamplingParams(), frozenset()).for_model({})
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p) == (0.8, 40, 0.95, 0.05)


@pytest.mark.parametrize(
    ("key", "flag"),
    [("temp", "--temp"), ("top_k", "--top-k"), ("top_p", "--top-p"), ("penalty_last_n", "--repeat-last-n")],
)
@pytest.mark.parametrize("value", [-2.5, "x", True, float("nan"), np.array([1, 2]), np.array([])], ids=repr)
def test_a_recommendation_that_is_none_is_refused_by_its_flag(key, flag, value):
    with pytest.raises(GGUFError, match=rf"general.sampling.{key} is .*, which is no value for {flag}; give {flag}"):
        SamplingFlags(SamplingParams(), frozenset()).for_model({f"general.sampling.{key}": value})


def test_a_flag_goes_before_a_recommendation_that_is_none():
    chosen = SamplingFlags(SamplingParams(temperature=0.3), frozenset({"temperature"}))
    assert chosen.for_model({"general.sampling.temp": "x"}).temperature == 0.3


def test_a_recommended_top_k_below_0_keeps_all():
    assert SamplingFlags(SamplingParams(), frozenset()).for_model({"general.sampling.top_k": -1}).top_k == 0


def test_a_checkpoints_recommendation_is_stored(tmp_path):
    values = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    metadata = Metadata()
    add_sampling(metadata, tmp_path)
    assert set(metadata) == {"general.sampling.temp", "general.sampling.top_k", "general.sampling.penalty_repeat"}


@pytest.mark.parametrize("values", [{"temperature": "hot"}, {"top_k": -1}, {"top_p": True}])
def test_a_recommendation_that_is_no_number_is_named(tmp_path, values):
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=next(iter(values))):
        add_sampling(Metadata(), tmp_path)
