"""Which test holds which of the known ways in which converters fail: a table, and that every test in it is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HELD_BY = {
    # a partial download: cut headers and weights, files cut while open
    "TRUNC": (
        "models/test_gguf_hostile.py::test_a_file_cut_anywhere_is_refused",
        "models/test_gguf_hostile.py::test_a_cut_in_the_weights_names_tensor_end_and_size",
        "models/test_gguf.py::test_file_cut_while_open_is_an_error_with_the_tensor_and_the_sizes",
        "convert/test_safetensors_header.py::test_cut_at_every_fourth_byte",
        "convert/test_round_trip.py::test_truncated_gguf_is_refused_before_writing",
    ),
    # a pointer, a web page or a pickle instead of a model
    "LFS-PTR": (
        "models/test_gguf_hostile.py::test_what_is_no_gguf_is_named_with_what_to_do",
        "convert/test_safetensors_header.py::test_other_content_is_named",
        "convert/test_hf_weights.py::test_pickles_are_refused",
        "pearl_cli/test_convert_command.py::test_git_lfs_pointer_is_named",
    ),
    # parts missing, swapped, joined, or of another model
    "SPLIT": (
        "models/test_gguf_split.py::test_any_member_opens_the_whole_set",
        "models/test_gguf_split.py::test_all_missing_members_are_listed",
        "models/test_gguf_split.py::test_swapped_members_are_refused",
        "models/test_gguf_split.py::test_members_joined_with_cat_are_recognised",
        "models/test_gguf_split.py::test_a_lone_file_named_like_a_member_is_a_file_of_its_own",
        "models/test_gguf_split.py::test_a_folder_named_like_a_member_does_not_confuse",
        "convert/test_hf_weights.py::test_all_missing_shards_are_listed",
    ),
    # rows that 256 does not divide
    "ROW-256": (
        "convert/test_recipe.py::test_rows_of_1408_fall_back_as_in_llama_cpp",
        "convert/test_recipe.py::test_rows_that_nothing_divides_become_f16",
        "convert/test_recipe.py::test_a_fallback_leaves_a_note",
        "convert/test_mixes.py::test_rows_that_a_mix_does_not_divide_fall_back",
    ),
    # all tensors held in memory
    "CONV-RAM": (
        "pearl_cli/test_convert_command.py::test_memory_is_bounded_by_an_expert_not_by_the_model",
        "convert/test_host_shards.py::test_pieces_held_at_a_time_do_not_grow_with_the_model",
        "convert/test_stream.py::test_only_a_few_jobs_are_started_ahead",
    ),
    # a full disk or a death that leaves something that looks finished
    "DISK-FULL": (
        "convert/test_shard_writer.py::test_short_space_is_refused_before_the_first_byte",
        "convert/test_shard_writer.py::test_full_disk_leaves_nothing_finished_and_resumes",
        "convert/test_shard_writer.py::test_an_older_output_stays_until_the_new_one_is_whole",
        "convert/test_kill_points.py::test_a_hundred_random_kills",
        "pearl_cli/test_convert_command.py::test_full_disk_in_a_real_process",
    ),
    # seven layouts of the same experts
    "EXP-NAMES": (
        "convert/test_expert_layouts.py::test_hugging_face_layouts_agree",
        "convert/test_expert_layouts.py::test_gguf_layouts_agree",
    ),
    # q and k permuted for the wrong architecture or not at all
    "QK-PERM": (
        "convert/test_hf_weights.py::test_rope_permutation_of_one_head",
        "convert/test_hf_weights.py::test_only_llama_permutes_q_and_k",
        "convert/test_rope_permutation.py::test_the_order_of_eight_rows_and_its_inverse",
        "convert/test_rope_permutation.py::test_numbered_rows_go_by_head_with_as_many_heads_as_k_has",
        "convert/test_rope_permutation.py::test_scores_of_six_positions_are_those_of_hugging_face",
        "convert/test_round_trip.py::test_folder_to_pearl_to_stock_to_pearl_keeps_the_logits",
    ),
    # the output matrix that is missing, doubled or different
    "TIE": (
        "convert/test_hf_weights.py::test_no_lm_head_means_tied",
        "convert/test_hf_weights.py::test_equal_lm_head_is_stored_once",
        "convert/test_hf_weights.py::test_differing_lm_head_wins_over_the_config",
    ),
    # scales of 8-bit floats ignored, or ragged at the edges
    "FP8-SCALE": (
        "convert/test_hf_weights.py::test_fp8_block_scales_with_ragged_edges",
        "convert/test_hf_weights.py::test_fp8_stack_of_experts_is_scaled_matrix_by_matrix",
        "convert/test_hf_weights.py::test_fp8_without_scale_is_refused",
        "convert/test_hf_architectures.py::test_expansion_of_8_bit_floats_is_scaled",
    ),
    # nibbles and gate and up in another order
    "MXFP4-PACK": (
        "convert/test_gpt_oss.py::test_one_byte_of_two_weights",
        "convert/test_gpt_oss.py::test_packed_experts_keep_every_weight",
    ),
    # zero-centred norms shifted not at all or twice
    "RMS+1": (
        "convert/test_hf_hybrid.py::test_norms_get_their_1_and_the_delta_nets_own_does_not",
        "convert/test_hf_hybrid.py::test_a_checkpoint_that_has_added_the_1_already_is_seen_by_its_convolution",
        "convert/test_hf_hybrid.py::test_what_looks_ahead_or_at_pictures_is_left_behind_and_changes_nothing",
    ),
    # two layouts of latent attention
    "MLA-2": (
        "convert/test_hf_architectures.py::test_expansion_is_split_and_its_keys_transposed",
        "models/test_architectures.py::test_logits_equal_transformers",
        "models/test_loader.py::test_bytes_of_latent_attention_in_both_layouts",
    ),
    # weights that F16 cannot hold
    "F16-OVER": (
        "convert/test_hf_weights.py::test_f16_keeps_what_it_cannot_hold",
        "convert/test_hf_weights.py::test_bf16_is_kept_bit_for_bit_and_is_the_default",
        "convert/test_quantizers.py::test_f16_overflow_is_refused",
    ),
}


@pytest.mark.parametrize("case", HELD_BY)
def test_the_tests_of_a_case_exist(case: str) -> None:
    for node in HELD_BY[case]:
        file, name = node.split("::")
        tree = ast.parse((TESTS / file).read_text("utf-8"))
        assert name in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}, node
