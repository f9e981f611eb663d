"""The rows of the log of public bug reports, sections 1 and 2: which test would fail if we had that bug.

Section 3, the hazards, has its own map in `test_hazards.py`. A row that cannot apply here says why instead.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent

WHERE: dict[str, tuple[str, ...]] = {
    # ---- section 1
    "B01": (  # padding changes what rows beside each other say
        "engine/test_batch_families.py::test_rows_in_a_batch_say_what_they_say_alone",
        "engine/test_batch_parity.py::test_windows_wrap_while_rows_come_and_go",
        "engine/test_batch_parity.py::test_prompts_of_any_length_in_one_forward",
    ),
    "B02": (  # a history longer than the window joins
        "engine/test_prompt_cache.py::test_a_finished_row_becomes_an_entry_of_all_that_it_was_fed",
        "engine/test_packs.py::test_rows_in_a_pack_through_growth_and_windows",
    ),
    "B03": (  # recurrent states and padding; log-probabilities are compared, not only tokens
        "engine/test_batch_families.py::test_rows_in_a_batch_say_what_they_say_alone",
        "engine/test_batch_failures.py::test_rows_removed_at_any_time_free_what_they_held",
    ),
    "B04": ("engine/test_batch_families.py::test_a_model_that_ignores_lengths_reads_its_prompts_alone",),
    "B05": ("engine/test_batch_families.py::test_entries_of_nested_caches_are_exact_and_stay_as_they_are",),
    "B06": ("engine/test_backend_neighbours.py::test_processors_stay_with_their_row_when_others_come_and_go",),
    "B06b": ("engine/test_backend_rows.py::test_no_processor_is_called_past_the_end_however_the_row_ends",),
    "B07": (  # one row's error is nobody else's
        "engine/test_batch_failures.py::test_a_rows_own_failure_is_its_own",
        "gateway/test_bug_log.py::test_b07_one_rows_error_takes_down_nobody_else",
    ),
    "B09": (  # ids outside the vocabulary
        "engine/test_backend_rows.py::test_ids_outside_the_vocabulary_never_reach_the_device",
        "gateway/test_hazards.py::test_6_an_id_outside_the_vocabulary_is_refused_and_the_batch_goes_on",
    ),
    "B10": ("gateway/test_bug_log.py::test_b10_a_bound_on_the_cache_is_refused_by_name_and_not_ignored",),
    "B11": ("gateway/test_hazards.py::test_16_drafts_are_refused_by_name",),
    "B12": ("engine/test_prompt_cache.py::test_only_states_that_hold_their_past_can_be_cut_back",),
    "B13": (  # reuse of a state that is not what its key says
        "engine/test_prompt_cache.py::test_only_states_that_hold_their_past_can_be_cut_back",
        "engine/test_prompt_cache.py::test_going_on_from_a_boundary_is_bitwise_as_from_scratch",
    ),
    "B14": (  # a prompt that is kept whole already
        "core/test_prefix.py::test_an_exact_hit_leaves_one_token_to_compute",
        "gateway/test_hazards.py::test_14_an_exact_hit_is_answered_and_a_top_k_beyond_the_vocabulary_refused_by_name",
    ),
    "B16": (  # quantised keys and values beside a sliding window
        "engine/test_kv_affine.py::test_layers_convert_once_they_hold_start_tokens_and_only_those_that_keep_keys",
        "engine/test_batch_quantised.py::test_rows_before_and_after_their_conversion_sit_in_one_batch",
    ),
    "B17": (  # quantised keys and values in a batch
        "engine/test_kv_affine.py::test_attention_is_that_over_the_dequantised_columns",
        "engine/test_batch_quantised.py::test_a_quantised_row_says_in_a_batch_what_it_says_alone",
        "engine/test_backend_memory.py::test_held_bytes_are_the_caches_and_go_with_the_rows",
    ),
    "B19": ("engine/test_backend_threads.py::test_two_backends_on_two_threads_at_once",),
    "B20": (  # lazy arrays that cross threads
        "models/test_evaluate.py::test_a_model_with_private_lazy_arrays_crosses_threads",
        "gateway/test_hazards.py::test_20_a_processor_with_a_lazy_array_of_another_thread_fails_alone",
    ),
    "B21": (  # seeds
        "engine/test_batch_options.py::test_draws_depend_on_seed_and_number_and_on_no_neighbour",
        "gateway/test_hazards.py::test_5_a_seed_holds_whoever_draws_numbers_meanwhile",
    ),
    "B23": ("engine/test_filters.py::test_the_xtc_coin_is_the_rows_own",),
    "B24": ("engine/test_detokenize.py::test_a_character_in_pieces_is_shown_once_and_whole",),
    "B25": (  # streamed text is the decoded text
        "engine/test_detokenize.py::test_any_ids",
        "engine/test_detokenize.py::test_texts_that_others_got_wrong",
    ),
    "B26": (  # stop text however it was cut into tokens
        "engine/test_stop.py::test_text_ends_before_the_earliest_stop_however_it_was_cut",
        "gateway/test_hazards.py::test_15_stop_text_ends_the_row_and_nothing_comes_after_it",
    ),
    "B27": (  # requests that are wrong by themselves
        "gateway/test_bug_log.py::test_b27_a_bad_prompt_is_refused_by_itself_and_its_siblings_go_on",
        "gateway/test_bug_log.py::test_b27_no_tokens_at_all_is_refused_by_name",
    ),
    "B28": ("engine/test_batch_parity.py::test_rows_taken_away_leave_the_others_as_they_were",),
    "B30": (  # others write while a long prompt is read
        "core/test_chunks.py::test_the_size_settles_at_the_largest_that_keeps_to_the_target",
        "gateway/test_hazards.py::test_7_while_a_long_prompt_is_read_others_write_at_every_chunk",
    ),
    "B31": ("gateway/test_hazards.py::test_8_a_short_prompt_does_not_wait_for_long_ones",),
    "B33": (  # memory near what the tokens need
        "engine/test_packs.py::test_a_pack_holds_little_more_than_its_rows_need",
        "engine/test_backend_memory.py::test_many_rows_one_after_another_hold_no_more_than_one",
        "gateway/test_hazards.py::test_9_joining_does_not_copy_the_batch",
    ),
    "B35": (  # work that nobody asked for
        "engine/test_batch_options.py::test_greedy_rows_without_log_probabilities_get_no_softmax",
        "engine/test_backend_rows.py::test_no_forward_is_wasted_at_a_length_and_one_at_most_elsewhere",
    ),
    "B36": ("engine/test_parity_small.py::test_user_processors_see_prompt_and_output_and_change_the_same",),
    "B39": ("core/test_options.py::test_later_names_are_refused_by_name",),  # adapters are not there yet
    "B40": (  # GGUF files
        "models/test_gguf_models.py::test_the_cached_folder_is_plain_mlx_lm",
        "models/test_gguf_refusals.py::test_an_unknown_architecture",
    ),
    "B41": ("gateway/test_bug_log.py::test_b41_submitting_and_cancelling_from_many_threads_while_rows_run",),
    "B42": (  # the process's end
        "engine/test_backend_exit.py::test_exit_after_close",
        "lifecycle/test_ends.py::test_exit",
    ),
    "B44": ("gateway/test_bug_log.py::test_b44_an_edited_last_message_and_a_next_turn_reuse_what_went_before",),
    # ---- section 2
    "C01": (
        "gateway/test_bug_log.py::test_c01_a_reader_can_leave_and_others_can_ask_while_a_native_call_does_not_return",
    ),
    "C02": (  # the same from the user's side: a prompt that takes for ever can be left and cancelled
        "gateway/test_bug_log.py::test_c01_a_reader_can_leave_and_others_can_ask_while_a_native_call_does_not_return",
        "gateway/test_abort.py::test_close_settles_every_handle_at_once_though_a_native_call_goes_on",
    ),
    "C03": ("gateway/test_bug_log.py::test_c03_a_failure_in_a_rows_state_ends_that_row_and_not_the_thread",),
    "C04": ("gateway/test_soak.py::test_a_thousand_short_requests_leave_nothing_behind",),
    "C05": ("engine/test_backend_memory.py::test_freed_buffers_are_given_back_while_rows_are_read_and_written",),
    "C06": (  # recurrent states count against the budgets
        "engine/test_prompt_cache.py::test_bytes_of_entries_are_held_and_given_back",
        "core/test_prefix.py::test_bytes_are_those_of_the_entries_and_stay_under_the_ceiling",
    ),
    "C07": ("gateway/test_bug_log.py::test_c07_a_client_that_leaves_stops_the_work_at_the_next_chunk_or_step",),
    "C08": ("core/test_chunks.py::test_the_size_settles_at_the_largest_that_keeps_to_the_target",),
    "C09": ("models/test_evaluate.py::test_groups_are_bounded_and_an_interrupt_comes_between_them",),
    "C10": (  # the right decoder
        "models/test_load.py::test_a_missing_decoder_is_chosen_from_the_vocabulary",
        "engine/test_detokenize.py::test_any_ids",
    ),
    "C14": (  # options that are ignored without a word
        "core/test_options.py::test_common_other_spellings_name_ours",
        "core/test_options.py::test_later_names_are_refused_by_name",
    ),
    "C16": ("engine/test_batch_parity.py::test_a_row_joins_at_every_step",),
    "C17": ("gateway/test_bug_log.py::test_c17_two_models_in_turn_keep_their_prompts_apart",),
    "C18": ("engine/test_backend_rows.py::test_xtc_takes_any_list_of_special_tokens",),
    "C19": (
        "engine/test_backend_threads.py::test_two_backends_on_two_threads_at_once",
        "gateway/test_run_exclusive.py::test_it_runs_on_the_engine_thread_and_its_value_comes_back",
    ),
    "C20": ("gateway/test_bug_rows.py::test_c20_nothing_private_of_mlx_lms_is_imported_and_its_version_is_bounded",),
    "C22": (
        "engine/test_prompt_cache.py::test_only_states_that_hold_their_past_can_be_cut_back",
        "engine/test_batch_parity.py::test_windows_wrap_while_rows_come_and_go",
    ),
    "C23": ("gateway/test_bug_log.py::test_b44_an_edited_last_message_and_a_next_turn_reuse_what_went_before",),
}

CANNOT_APPLY: dict[str, str] = {
    "C24": "no prompt cache is ever written to a file; checkpoints are planned, and refused by name until then",
}

SECTION_1, SECTION_2 = 35, 19
"""How many rows the log has in each."""


@pytest.mark.parametrize("row", WHERE)
def test_every_row_has_tests_that_exist(row: str) -> None:
    for named in WHERE[row]:
        path, name = named.split("::")
        assert f"\ndef {name}(" in (TESTS / path).read_text(encoding="utf-8"), named


def test_no_row_is_left_out() -> None:
    rows = [*WHERE, *CANNOT_APPLY]
    assert len(rows) == len(set(rows))
    sections = [[row for row in rows if row.startswith(letter)] for letter in "BC"]
    assert [len(section) for section in sections] == [SECTION_1, SECTION_2]


def test_c20_nothing_private_of_mlx_lms_is_imported_and_its_version_is_bounded() -> None:
    """Elsewhere: private parts of its batching were renamed. The range is the one that these tests ran against."""
    import mlx_notebook

    package = Path(mlx_notebook.__file__).parent
    for source in package.rglob("*.py"):
        for module, names in re.findall(
            r"^ *from (mlx_lm[\w.]*) import (\([^)]*\)|.*)$", source.read_text(encoding="utf-8"), re.MULTILINE
        ):
            inside = re.findall(r"(?<!\w)_\w+|\w*GenerationBatch|BatchGenerator", f"{module.replace('.', ' ')} {names}")
            assert not inside, source
    assert re.search(r'"mlx-lm>=[\d.]+,<[\d.]+', (package.parent / "pyproject.toml").read_text(encoding="utf-8"))
