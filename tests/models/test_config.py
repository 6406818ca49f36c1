"""The typed config: what each architecture's metadata means, what may be left out, and what is refused by name."""

from collections.abc import Iterator

import pytest
from gguf.constants import Keys

from kernels.router_spec import RouterSpec
from models.config import ModelConfig
from models.config_keys import INERT
from models.config_rope import RopeConfig
from models.config_table import ARCHITECTURES
from models.errors import GGUFError, UnsupportedError
from models.gguf import GGUFModel
from models.registry import ARCHITECTURES as BUILDERS
from tests.tiny_gguf import Typed, tiny_moe


@pytest.fixture
def config_of(tmp_path):
    def read(architecture="olmoe", drop=(), drop_tensors=(), **changes) -> ModelConfig:
        """Config of a tiny model; `changes` are keys with dots as double underscores, without the architecture."""
        model = tiny_moe(architecture)
        model.metadata |= {f"{architecture}.{k.replace('__', '.')}": v for k, v in changes.items()}
        for name in drop:
            del model.metadata[name]
        model.tensors = [t for t in model.tensors if t.name not in drop_tensors]
        with GGUFModel.open(model.write(tmp_path / "m.gguf")) as gguf:
            return ModelConfig.from_gguf(gguf)

    return read


def test_every_architecture_with_a_table_has_a_builder_and_the_other_way_round():
    assert set(ARCHITECTURES) == set(BUILDERS)


def keys_of(names: type) -> Iterator[str]:
    """The keys that gguf-py spells in `names` and the classes in it."""
    for name, value in vars(names).items():
        if isinstance(value, str) and not name.startswith("_"):
            yield value
        elif isinstance(value, type):
            yield from keys_of(value)


def test_keys_are_gguf_pys():
    tables = [{key.name for key in table.fields.values()} | set(table.neutral) for table in ARCHITECTURES.values()]
    unknown = {f"{{arch}}.{name}" for name in INERT.union(*tables)} - set(keys_of(Keys))
    # One that old files have, and one that llama.cpp has before gguf-py is released with it.
    assert unknown <= {"{arch}.rope.scale_linear", "{arch}.attention.recurrent_layers"}


def test_fields_of_a_qwen3moe_file(config_of):
    config = config_of("qwen3moe", rope__freq_base=1e6, expert_feed_forward_length=24, context_length=512)
    expected = {
        "architecture": "qwen3moe",
        "name": "tiny qwen3moe",
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "value_dim": 16,
        "intermediate_size": 0,
        "moe_intermediate_size": 24,
        "vocab_size": 259,
        "context_length": 512,
        "rms_norm_eps": pytest.approx(1e-5),
        "rope": RopeConfig(theta=1e6, n_rot=16, interleaved=False, original_context=512),
        "router": RouterSpec(num_experts=8, num_experts_per_tok=2, norm_topk_prob=True),
        "tied_embeddings": False,
        "sliding_window": 0,
    }
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(("architecture", "interleaved"), [("llama", True), ("olmoe", False), ("qwen3moe", False)])
def test_pairing_of_rotated_components(config_of, architecture, interleaved):
    assert config_of(architecture).rope.interleaved is interleaved


@pytest.mark.parametrize(("architecture", "norm"), [("llama", True), ("olmoe", False), ("qwen3moe", True)])
def test_weights_are_normalised_by_the_architectures_rule_unless_the_file_says_otherwise(config_of, architecture, norm):
    assert config_of(architecture).router.norm_topk_prob is norm
    assert config_of(architecture, expert_weights_norm=not norm).router.norm_topk_prob is (not norm)


@pytest.mark.parametrize(("stored", "scale"), [(None, 1.0), (0.0, 1.0), (2.5, 2.5)])
def test_a_scale_of_zero_or_none_means_one(config_of, stored, scale):
    changes = {} if stored is None else {"expert_weights_scale": stored}
    assert config_of(**changes).router.scale == scale


@pytest.mark.parametrize(("number", "gating"), [(1, "softmax"), (2, "sigmoid"), (3, "softmax_topk")])
def test_gating_functions(config_of, number, gating):
    assert config_of(expert_gating_func=number).router.gating == gating


def test_gating_is_softmax_where_the_file_is_silent_and_unknown_ones_are_refused(config_of):
    assert config_of().router.gating == "softmax"
    with pytest.raises(UnsupportedError, match=r"expert_gating_func 9 .*1 \(softmax\), 2 \(sigmoid\)"):
        config_of(expert_gating_func=9)


def test_expert_groups(config_of):
    router = config_of(expert_group_count=4, expert_group_used_count=2).router
    assert (router.num_groups, router.num_groups_used) == (4, 2)
    for count, used in ((3, 1), (4, 5)):
        with pytest.raises(GGUFError, match="no possible grouping"):
            config_of(expert_group_count=count, expert_group_used_count=used)


def test_each_default_is_noted_with_its_reason_and_no_other_key_is(config_of):
    config = config_of("olmoe")
    assert "olmoe.expert_weights_norm = False (the architecture's rule)" in config.defaults_used
    assert "olmoe.attention.key_length = 16 (embedding_length / attention.head_count)" in config.defaults_used
    config = config_of("olmoe", expert_weights_norm=False, attention__key_length=16)
    noted = " ".join(config.defaults_used)
    assert "yarn" not in noted  # a default that this model does not use
    assert "expert_weights_norm" not in noted
    assert "key_length" not in noted


REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "expert_used_count",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_required_key_is_named(config_of, name):
    with pytest.raises(GGUFError, match=f"metadata 'olmoe.{name}' is missing; architecture 'olmoe' needs it"):
        config_of(drop=[f"olmoe.{name}"])


@pytest.mark.parametrize(
    ("name", "value", "noun"),
    [
        ("block_count", 2.0, "a whole number"),
        ("block_count", True, "a whole number"),
        ("block_count", "2", "a whole number"),
        ("rope__freq_base", 10000, "a float"),
        ("expert_weights_norm", 1, "a bool"),
        ("rope__scaling__type", 1, "a string"),
    ],
)
def test_types_are_strict(config_of, name, value, noun):
    with pytest.raises(GGUFError, match=f"olmoe.{name.replace('__', '.')}' must be {noun}"):
        config_of(**{name: value})


def test_values_stored_per_layer_are_read_if_equal_and_refused_if_not(config_of):
    assert config_of(attention__head_count_kv=Typed("i32", [2, 2])).num_kv_heads == 2
    with pytest.raises(UnsupportedError, match="head_count_kv' differs from layer to layer"):
        config_of(attention__head_count_kv=Typed("i32", [2, 4]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention__head_count": 0}, "num_heads is 0"),
        ({"attention__head_count": 3}, "head_dim is 0"),
        ({"block_count": 2**31}, "2147483648 layers in a file of 27 tensors"),
        ({"attention__head_count_kv": 3}, "4 heads do not divide by 3"),
        ({"expert_used_count": 9}, "9 of 8 experts per token"),
        ({"rope__dimension_count": 32}, "32 rotated components in heads of 16"),
        ({"rope__dimension_count": 7}, "7 rotated components"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "epsilon' is nan"),
        ({"rope__freq_base": float("inf")}, "freq_base' is inf"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, "rms_norm_eps is 0"),
        ({"embedding_length": 128}, r"'token_embd.weight' has shape \[64, 259\], the metadata says \[128, 259\]"),
        ({"vocab_size": 300}, r"the metadata says \[64, 300\]"),
    ],
)
def test_sizes_that_cannot_be_are_refused(config_of, changes, message):
    with pytest.raises(GGUFError, match=message):
        config_of(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention__clamp_kqv", 8.0),
        ("logit_scale", 0.5),
        ("leading_dense_block_count", 1),
        ("expert_shared_count", 2),
        ("rope__scaling__yarn_log_multiplier", 0.1),
        ("swiglu_clamp_exp", Typed("f32", [0.0, 7.0])),
    ],
)
def test_maths_that_is_not_implemented_is_refused_unless_neutral(config_of, name, value):
    with pytest.raises(UnsupportedError, match=f"olmoe.{name.replace('__', '.')}' = .* is not implemented"):
        config_of(**{name: value})
    neutral = [0.0, 0.0] if isinstance(value, Typed) else type(value)(0)
    config_of(**{name: neutral})


def test_unknown_keys_are_refused_if_they_smell_of_maths_and_reported_if_not(config_of):
    with pytest.raises(UnsupportedError, match=r"'olmoe\.swiglu_limit' = '7.0' is not implemented"):
        config_of(swiglu_limit=7.0)
    assert config_of(colour="blue", pooling_type=0).unread_keys == ("olmoe.colour",)


def test_key_and_value_width_must_agree(config_of):
    with pytest.raises(UnsupportedError, match=r"key_length 16 and attention\.value_length 8 differ"):
        config_of("qwen3moe", attention__value_length=8)


@pytest.mark.parametrize("count", [None, 0])
def test_dense_models_are_refused_by_name(config_of, count):
    drop, changes = (["llama.expert_count"], {}) if count is None else ([], {"expert_count": 0})
    with pytest.raises(UnsupportedError, match="a dense 'llama' model without experts"):
        config_of("llama", drop=drop, **changes)


def test_defaults_of_yarn_are_noted_where_it_is_used(config_of):
    noted = config_of(rope__scaling__type="yarn", rope__scaling__factor=4.0).defaults_used
    assert "olmoe.rope.scaling.original_context_length = 128 (context_length)" in noted
    assert "olmoe.rope.scaling.yarn_beta_fast = 32.0 (YaRN's own)" in noted


def test_rope_scalings(config_of):
    assert config_of().rope.scaling == "none"
    assert config_of(rope__scaling__type="linear").rope.scaling == "none"
    linear = config_of(rope__scaling__factor=4.0).rope
    assert (linear.scaling, linear.factor) == ("linear", 4.0)
    yarn = config_of(
        rope__scaling__type="yarn",
        rope__scaling__factor=40.0,
        rope__scaling__original_context_length=64,
        rope__scaling__attn_factor=0.5,
        rope__scaling__yarn_beta_fast=16.0,
    ).rope
    assert (yarn.scaling, yarn.factor, yarn.original_context) == ("yarn", 40.0, 64)
    assert (yarn.attention_factor, yarn.beta_fast, yarn.beta_slow) == (0.5, 16.0, 1.0)
    with pytest.raises(UnsupportedError, match=r"rope.scaling.type 'longrope' .*none, linear, yarn"):
        config_of(rope__scaling__type="longrope", rope__scaling__factor=4.0)
    with pytest.raises(GGUFError, match=r"scaling\.factor is 0\.5"):
        config_of(rope__scaling__factor=0.5)


def test_tied_embeddings_follow_from_the_tensors(config_of):
    assert config_of(drop_tensors=["output.weight"]).tied_embeddings is True
    with pytest.raises(GGUFError, match=r"'token_embd\.weight' is missing"):
        config_of(drop_tensors=["token_embd.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"general.architecture": 5}, "'general.architecture' is missing or no string"),
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
    ],
)
def test_what_is_no_whole_model_is_refused(tmp_path, changes, message):
    model = tiny_moe("olmoe")
    model.metadata |= changes
    model.metadata = {k: v for k, v in model.metadata.items() if v is not None}
    with (
        GGUFModel.open(model.write(tmp_path / "m.gguf")) as gguf,
        pytest.raises((GGUFError, UnsupportedError), match=message),
    ):
        ModelConfig.from_gguf(gguf)


def test_a_vocabulary_without_weights_opens_but_is_no_model(tmp_path):
    model = tiny_moe("olmoe")
    model.tensors = []
    with GGUFModel.open(model.write(tmp_path / "m.gguf")) as gguf:
        assert gguf.tensors == {}
        with pytest.raises(GGUFError, match="metadata and no tensors"):
            ModelConfig.from_gguf(gguf)
