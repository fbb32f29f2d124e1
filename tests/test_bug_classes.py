"""Bugs that other engines have had with speculative decoding, each with tests that look for it."""

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUG_CLASSES = {
    "the KV cache is not cut after a rejection": [
        "cross/test_acts.py::test_rejected_drafts_leave_no_trace"
    ],
    "a recurrent state is advanced by rejected tokens": [
        "memory/test_recurrent.py::Machine",
        "cross/test_recurrent.py::test_a_rejected_draft_leaves_no_trace",
    ],
    "a prefix cache and drafts together corrupt the text of a hybrid": [
        "cross/test_tool_calls.py::test_texts_and_states_are_those_of_cold_contexts"
    ],
    "V heads are read in another order than the file has them": [
        "plugins/test_qwen_checkpoint.py::test_every_tensor",
        "plugins/test_qwen_shapes.py::test_trunk",
    ],
    "a sliding window is rolled back across its edge": [
        "memory/test_windowed.py::test_rewind_across_the_window_edge"
    ],
    "a second rollback before a commit, or one beyond what is kept": [
        "cross/test_acts.py::test_two_rejections_in_a_row_and_rewinds_that_go_too_far"
    ],
    "a plan is reused for another sequence or shape": [
        "cross/test_acts.py::test_equal_shapes_of_alternating_sequences"
    ],
    "only sequence 0 works": ["cross/test_acts.py::test_sequences_other_than_0"],
    "interleaved sequences with uneven acceptance are mixed up": [
        "cross/test_acts.py::test_interleaved_sequences_with_uneven_acceptance"
    ],
    "hidden rows of many small batches are mixed up": [
        "runtime/test_rows.py::test_rows_of_many_small_batches_are_each_sequences_own"
    ],
    "a fork is changed with its parent, or lacks its pending token": [
        "cross/test_acts.py::test_a_fork_mid_draft_outlives_its_parent"
    ],
    "an exception in the midst of a verification leaves half of it": [
        "cross/test_trees.py::test_whatever_raises_leaves_the_state_as_it_was",
        "decoding/test_ends.py::test_a_round_that_raises_can_be_stepped_again",
        "decoding/test_ends.py::test_a_delivery_that_raises",
    ],
    "the noise is advanced by rejected tokens": [
        "decoding/test_speculation.py::test_texts_are_those_of_plain_decoding",
        "plugins/test_glm_generator.py::test_texts_are_those_of_plain_decoding",
    ],
    "sampled tokens have another distribution with drafts": [
        "decoding/test_sampled_text.py::test_over_positions_of_one_seed",
        "decoding/test_sampled_text.py::test_over_seeds",
    ],
    "equal logits are resolved differently in verification and decoding": [
        "cross/test_acts.py::test_ties_go_to_the_lowest_id_in_verify_and_decode"
    ],
    "an end token or stop string inside a draft is passed over": [
        "decoding/test_ends.py::test_an_end_token_at_each_index_of_a_run",
        "decoding/test_ends.py::test_a_stop_text_at_each_index_of_a_run",
    ],
    "budget and stop string in one draft: the wrong one wins": [
        "decoding/test_ends.py::test_the_earliest_end_wins"
    ],
    "hidden rows are lost where a batch is split": [
        "runtime/test_rows.py::test_taps_do_not_depend_on_the_split"
    ],
    "hidden rows are paired with the wrong token": [
        "links/test_links.py::test_each_entry_is_paired_with_the_row_before_its_token"
    ],
    "hidden rows are overwritten by the next batch": [
        "runtime/test_rows.py::test_a_view_that_somebody_holds_is_never_overwritten"
    ],
    "a head reads another tap than it was trained with": [
        "links/test_links.py::test_a_tap_is_what_was_declared",
        "links/test_links.py::test_a_tap_that_the_target_does_not_supply",
    ],
    "hidden rows with NaN or infinity reach the drafter": [
        "links/test_links.py::test_rows_that_are_not_finite_pause_the_drafter"
    ],
    "a file without a head, or with half of one": [
        "discovery/test_loading.py::test_model_without_head",
        "discovery/test_loading.py::test_flag_without_tensors",
        "discovery/test_loading.py::test_tensors_without_flag",
    ],
    "a tied weight comes from the wrong place, or in the wrong shape": [
        "runtime/test_model.py::test_tied_weights_come_from_where_the_file_has_them",
        "runtime/test_model.py::test_a_weight_of_another_width_is_refused",
    ],
    "drafts go beyond the end of the context": [
        "decoding/test_ends.py::test_drafts_end_where_the_context_does",
        "decoding/test_ends.py::test_a_prompt_beyond_the_context_is_refused",
    ],
    "a cancelled request leaves something in its sequence": [
        "decoding/test_ends.py::test_cancelled_requests_free_their_sequence",
        "decoding/test_ends.py::test_a_sequence_removed_after_any_act",
        "decoding/test_ends.py::test_a_reader_that_stops_reading",
    ],
    "drafted ids that are no tokens": [
        "decoding/test_speculation.py::test_invalid_drafts_are_cut_counted_and_warned_of_once"
    ],
    "drafts that are empty or too long": [
        "decoding/test_speculation.py::test_empty_and_too_long_drafts"
    ],
    "the KV caches of several heads are not refilled after a rejection": [
        "plugins/test_mimo.py::test_every_head_holds_the_accepted_text_alone"
    ],
    "closing in any order crashes, or memory leaks": [
        "runtime/test_rows.py::test_whatever_goes_first",
        "runtime/test_rows.py::test_a_thousand_links_leave_nothing",
        "runtime/test_holdings.py::test_memory_of_contexts_goes_with_them",
    ],
    "a head that is always right is not always accepted": [
        "decoding/test_speculation.py::test_a_head_that_is_always_right_is_accepted"
    ],
    "acceptance depends on how tokens are batched": [
        "decoding/test_speculation.py::test_acceptance_does_not_depend_on_how_rows_are_batched"
    ],
    "drafting switched on and off in a sequence": [
        "decoding/test_speculation.py::test_drafting_switched_mid_sequence"
    ],
}
"""By what goes wrong, in words: tests as ``file::name``."""


@cache
def names(path):
    """Return the functions and classes that a test file defines."""
    nodes = ast.walk(ast.parse((HERE / path).read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def missing(tests):
    """Return those of some tests that are not there."""
    parts = [test.split("::") for test in tests]
    return [f"{p}::{name}" for p, name in parts if not (HERE / p).exists() or name not in names(p)]


@pytest.mark.parametrize("bug", BUG_CLASSES)
def test_a_test_looks_for_it(bug):
    assert BUG_CLASSES[bug]
    assert missing(BUG_CLASSES[bug]) == []


def test_a_test_that_is_gone_is_seen():
    gone = ["cross/test_acts.py::test_that_nobody_wrote", "cross/test_nothing.py::test_it"]
    assert missing(gone) == gone
