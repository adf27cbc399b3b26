"""What a training recipe must show, claim by claim, and the test that holds each.

Numbers 1 to 36: properties and exact values of multi-turn PPO with a critic. T01 to T13: failures that users of other trainers reported.
A claim names tests as FILE.TEST (tests/policy/test_FILE.py, or a folder before it), or says why this design does not admit it.
"""

import ast
import functools
import pathlib

import pytest

HOLDS: list[tuple[str, str, str]] = [
    # masks; tokens in, tokens out
    ("1", "each of 150 requests extends the one before; no drift where text does not survive decode and encode", "onpolicy.test_every_request_of_150_turns_extends_the_one_before episode.test_ids_of_every_request_extend_those_before_exactly"),
    ("2", "only action positions feed the head; what is no action leaves loss and gradients bit for bit", "batch.test_loss_reaches_the_head_from_action_positions_only exact.test_what_is_no_action_leaves_loss_and_gradients_bit_for_bit"),
    ("3", "src = pos - 1 equals single rows with full logits; shifted by one does not", "batch.test_packed_chunked_logprobs_equal_single_sequences_with_full_logits batch.test_row_holds_every_token_and_points_at_the_state_before_each_action"),
    ("4", "inserted ends of turn are no actions, sampled ones are; observations are the template's suffix; a template that rewrites is refused", "episode.test_end_of_turn_is_an_action_when_sampled_and_an_observation_when_inserted prompt.test_observation_continues_the_sampled_ids_as_the_template_would prompt.test_template_that_rewrites_earlier_turns_is_refused model.test_a_template_that_drops_earlier_thoughts_is_refused"),
    ("5", "missing, non-finite or ill-sized log-probabilities raise; the stop reason, not the width, says what was cut", "batch.test_only_rewarded_and_fully_sampled_episodes_reach_reinforcement exact.test_logprobs_of_another_length_are_refused exact.test_stop_flags_are_those_of_the_episode_not_of_its_length"),
    # log-probabilities
    ("6", "chunked = full logits, value 1e-6, gradients 1e-5; chunks 1, 7, N; T .7 and 1; tied, untied, bias; no action token", "batch.test_packed_chunked_logprobs_equal_single_sequences_with_full_logits exact.test_chunked_logprobs_and_gradients_equal_full_logits_in_fp64 batch.test_micro_batch_without_action_tokens_gives_zero_gradients"),
    ("7", "no tensor of tokens times vocabulary; the largest does not grow with it", "batch.test_no_tensor_of_action_tokens_times_vocabulary_is_made exact.test_the_largest_tensor_of_a_loss_grows_with_tokens_times_width_not_times_vocabulary"),
    ("8", "bf16 weights: softmax and loss in fp32 (CPU); 1e-4 of fp64 (GPU, where the product is mixed)", "batch.test_bf16_weights_still_give_fp32_logits policy_cuda.test_bf16_training_computes_fp32_logprobs_and_learns"),
    ("9", "packed = single rows for log-probs, values and gradients; a mask or a cache that slips in changes nothing", "model.test_packed_row_equals_single_sequences_and_the_stock_attention batch.test_packed_chunked_logprobs_equal_single_sequences_with_full_logits exact.test_packed_values_and_their_gradients_equal_single_rows exact.test_a_mask_or_a_cache_that_slips_in_does_not_undo_packing"),
    # ratio and loss
    ("10", "first update: every ratio 1, clip fraction 0, KL 0, gradient of REINFORCE; bf16 within 1e-3", "train.test_first_update_has_ratio_one_and_later_ones_do_not train.test_first_gradient_is_that_of_reinforce train.test_bf16_engines_train_with_an_fp32_head_and_loss"),
    ("11", "golden values of the clipped surrogate; log-ratios of 100 stay finite", "loss.test_golden_values_of_the_clipped_surrogate loss.test_huge_log_ratios_stay_finite"),
    ("12", "lr 0 changes nothing; the sign of A is the direction of its token's probability", "train.test_learning_rate_zero_changes_nothing train.test_advantage_moves_its_tokens_probability_the_right_way"),
    ("13", "micro-batches, two ranks, ZeRO 0 to 3: the same weights to 1e-6; a batch twice: the same mean gradient; rejection changes the numerator only", "exact.test_splitting_a_step_and_sharding_it_moves_the_weights_alike ranks.test_two_ranks_give_the_weights_and_metrics_of_one exact.test_the_same_episodes_twice_give_the_same_mean_gradient train.test_rejected_tokens_leave_the_others_share_alone exact.test_the_reported_loss_is_over_all_action_tokens_of_the_step"),
    ("14", "a micro-batch of weight 0 changes nothing", "exact.test_a_micro_batch_that_only_keeps_ranks_in_step_has_zero_gradients ranks.test_two_ranks_give_the_weights_and_metrics_of_one"),
    # credit and critic
    ("15", "A = .4248 .5524 .3710 .2853 .1950 .1000 over two turns; returns A + V", "advantage.test_golden_vector_of_six_action_tokens_in_two_turns"),
    ("16", "an observation of any length, whatever stands there, leaves A and R", "exact.test_an_observation_of_any_length_leaves_advantages_and_returns_as_they_were exact.test_values_come_from_the_states_before_actions_whatever_stands_elsewhere"),
    ("17", "limits of lambda; V = return gives 0; the last token; bootstrap; reward kept by a trailing observation", "advantage.test_limits_of_lambda_and_exact_values exact.test_an_episode_that_ends_with_an_observation_keeps_its_reward"),
    ("18", "fast scan = loop to 1e-12 up to 131,072 tokens; no bleed between episodes", "advantage.test_scan_equals_the_plain_loop exact.test_one_episodes_credit_does_not_depend_on_its_neighbours"),
    ("19", "turn unit = token unit for turns of one token; lambda once a turn; length-adaptive lambda", "advantage.test_turn_unit_is_token_unit_when_turns_have_one_token advantage.test_turn_unit_applies_lambda_once_a_turn_however_long_it_is advantage.test_length_adaptive_lambda"),
    ("20", "whitening over all ranks' action tokens; one token or a constant gives zeros", "exact.test_whitened_advantages_have_mean_zero_and_variance_one_over_all_action_tokens ranks.test_two_ranks_give_the_weights_and_metrics_of_one advantage.test_whitening_has_mean_zero_and_variance_one_or_gives_zeros guards.test_one_action_token_in_all_is_finite"),
    ("21", "V = 0 at the start and loss .5 mean R^2; no dropout; golden value clip", "model.test_critic_starts_at_zero_without_dropout_and_round_trips loss.test_value_loss_with_and_without_clip"),
    ("22", "explained variance 1, 0, -3, guarded; value pretraining explains .95 of a known return", "advantage.test_explained_variance train.test_value_pretraining_explains_a_known_return"),
    ("23", "actor and critic leave each other's bits; each its own rate", "train.test_actor_and_critic_have_their_own_rates_and_do_not_touch_each_other"),
    # leave-one-out, correction, KL
    ("24", "returns 1 0 0 -> 1 -.5 -.5; group of one; order; GRPO's share; turns not learned stay out", "advantage.test_leave_one_out_baseline exact.test_turns_that_are_not_learned_stay_out_of_the_leave_one_out_baseline"),
    ("25", "TIS capped at 2, no gradient; MRS band and veto; all rejected: loss 0, N unchanged, metric 1", "loss.test_truncated_importance_weight_is_capped_and_carries_no_gradient loss.test_sequences_outside_the_band_or_with_a_vetoed_token_are_rejected guards.test_all_sequences_rejected_leave_the_policy_and_are_counted"),
    ("26", "k1, k2, k3 at ln 2; E k3 = KL on five symbols; gradient of the KL", "loss.test_kl_estimates loss.test_k3_and_the_loss_gradient_are_the_exact_kl_on_five_symbols train.test_kl_to_the_reference_holds_the_policy_back"),
    ("27", "entropy of a uniform and of a tempered distribution", "loss.test_entropy_of_a_uniform_and_of_a_tempered_distribution"),
    # rollouts and engine
    ("28", "sampler = trainer to 1e-5, T .7 and 1, prefix reuse, after an update with the same prompt; a kept cache shows", "onpolicy.test_the_trainer_finds_the_samplers_logprobs_before_and_after_an_update onpolicy.test_keys_and_values_of_older_weights_show_in_the_trainers_measure sampler.test_logprobs_equal_a_plain_forward_on_two_turns_with_prefix_reuse sampler.test_reload_forgets_cached_keys_and_values"),
    ("29", "same seed, same tokens; frequencies follow the softmax (chi-square)", "sampler.test_a_request_draws_the_same_tokens_whatever_shares_its_batch sampler.test_sampled_frequencies_follow_the_tempered_softmax sampler.test_each_token_is_where_its_own_draw_falls_in_the_cumulative_distribution"),
    ("30", "updates run in training mode, scoring without gradients in evaluation mode", "onpolicy.test_updates_run_in_training_mode_and_scoring_without_gradients"),
    ("32", "resume is bit for bit, in fresh processes of two ranks after SIGKILL too; a torn save leaves the one before", "train.test_resume_is_exact_after_a_kill_and_after_a_stop ranks.test_a_fit_of_two_ranks_killed_by_sigkill_goes_on_bit_for_bit guards.test_a_kill_while_a_step_is_being_saved_leaves_the_one_before train.test_short_steps_are_saved_together_and_a_kill_still_changes_nothing"),
    ("33", "ZeRO 3 exports the weights it loaded, tied and untied; saved = loaded logits", "exact.test_sharded_weights_are_exported_as_they_were_loaded model.test_saved_checkpoint_loads_to_the_same_logits"),
    ("34", "the clip is the configured one; Adam's first step is the rate", "train.test_clipping_is_the_configured_one_and_adams_first_step_is_the_rate"),
    ("35", "a two-turn toy from chance to .9; not with the reward or the mask misplaced", "learns.test_the_toy_is_learned learns.test_the_toy_is_not_learned_with_the_reward_on_the_first_action learns.test_the_toy_is_not_learned_with_observations_taken_for_actions"),
    ("36", "every turn carries its policy's version; weights do not change under a request; episodes of another policy", "onpolicy.test_the_trainer_finds_the_samplers_logprobs_before_and_after_an_update onpolicy.test_weights_do_not_change_under_a_request onpolicy.test_episodes_of_another_policy_are_counted"),
    # reported failures
    ("30", "gradient checkpointing gives the same weights with fewer activations", "arms.test_checkpointing_gives_the_same_weights_and_keeps_fewer_activations"),
    ("T01", "observation tokens inside GAE: .7997 .7365 .6700 .6000, and with gamma .99", "exact.test_observation_tokens_are_no_steps_of_the_estimate"),
    ("T02", "reward on a masked last token: .9 1, and 0 1 with gamma 0", "exact.test_an_episode_that_ends_with_an_observation_keeps_its_reward"),
    ("T03", "return reset at an observation: .5 1, and 1 1 1 1", "exact.test_an_observation_is_no_end_of_the_episode"),
    ("T04", "wrong mask: what is masked leaves all bits, 2A doubles, -A negates, the mean is over action tokens", "exact.test_what_is_no_action_leaves_loss_and_gradients_bit_for_bit exact.test_doubling_advantages_doubles_the_loss_and_negating_negates_it train.test_a_steps_gradient_is_that_of_the_mean_over_its_action_tokens"),
    ("T05", "tokens trained are not those sampled: [a, b] stays two, the template's newline is no action, ratios 1", "onpolicy.test_split_and_merged_spellings_of_one_text_stay_as_sampled onpolicy.test_the_trainer_finds_the_samplers_logprobs_before_and_after_an_update"),
    ("T06", "history rewritten: refused; one row an episode, no token learned twice", "model.test_a_template_that_drops_earlier_thoughts_is_refused onpolicy.test_an_episode_is_one_row_and_no_token_is_learned_twice"),
    ("T07", "all rewards equal: advantages 0, weights unchanged, told by advantage_std; 1e-7 is not blown up", "guards.test_equal_rewards_leave_the_policy_bit_for_bit guards.test_equal_rewards_that_the_critic_foresees_give_advantages_of_exactly_zero guards.test_a_difference_of_rounding_between_rewards_is_not_blown_up guards.test_rounding_in_the_critics_float32_values_is_not_blown_up"),
    ("T09", "one token, an empty response, nothing left, a rank without tokens, a group of one", "guards.test_one_action_token_in_all_is_finite guards.test_an_episode_without_a_response_contributes_nothing guards.test_nothing_to_learn_from_is_one_clear_error ranks.test_two_ranks_give_the_weights_and_metrics_of_one"),
    ("T11", "values of 1e4 are clipped; what is not finite moves no weight, stops at once, leaves no checkpoint; a normal step goes on", "guards.test_a_critic_that_is_far_off_is_moved_by_clipped_steps guards.test_a_reward_that_is_not_finite_stops_the_fit_and_nothing_is_written guards.test_a_gradient_that_is_not_finite_raises_moves_nothing_and_a_normal_step_goes_on guards.test_a_fit_broken_at_its_third_step_goes_on_from_the_second train.test_broken_numbers_stop_the_fit_and_nothing_is_written ranks.test_a_rank_with_broken_numbers_ends_both"),
    ("T12", "resume: the same losses, rates and KL; torn save; changed settings or rewards refused", "guards.test_resumed_steps_log_what_the_uninterrupted_ones_did guards.test_a_kill_while_a_step_is_being_saved_leaves_the_one_before guards.test_a_resume_with_other_settings_or_rewards_is_refused"),
    ("T13", "time-out = failure; ours is retried once, then left out and counted; NaN enters no mean", "reward.test_every_failure_of_the_candidate_is_minus_one_but_stress_alone episode.test_sandbox_error_in_a_tool_or_at_the_end_is_never_a_reward sandbox/judge.test_a_lost_slot_is_our_failure_retried_once_and_then_told guards.test_our_failures_and_invalid_tasks_enter_neither_loss_nor_normalisation guards.test_a_reward_that_is_not_finite_stops_the_fit_and_nothing_is_written"),
]  # fmt: skip

NOT_ADMITTED: list[tuple[str, str, str]] = [
    ("6", "gradcheck in fp64", "the log-probability computes its logits in fp32 whatever comes in; gradients are compared with fp64 full logits instead"),
    ("8", "1e-5 of fp64 on the CPU", "the CPU has no product of bf16 with an fp32 result: the logit itself is rounded; held on a GPU at 1e-4"),
    ("9", "left and right padding", "rows are packed, nothing is padded"),
    ("13", "sequence parallel 1 against 2", "no sequence parallelism: a row stands whole on its rank"),
    ("30", "attention and cache flags restored after sampling", "sampler and trainer hold separate copies of the model"),
    ("31", "external engine: ids in = ids out, weights pushed, prefix cache reset", "reinforcement samples with the embedded player only"),
    ("33", "from_pretrained under ZeRO 3", "weights are loaded whole and sharded by the engine afterwards"),
    ("36", "drop what is older than a bound", "rounds are synchronous: an update reads the rollout of the checkpoint it starts from"),
    ("T06", "several rows of a rewritten history", "a template that rewrites is refused, so an episode is always one row"),
    ("T09", "the same batch under two paddings", "nothing is padded"),
    ("T09", "at most N rounds of resampling when all groups are filtered", "a fit never samples; a batch without episodes is an error at once"),
    ("T11", "go on after a non-finite step, stop after N in a row", "the first one stops the fit; the last saved step stays good"),
]  # fmt: skip

WANTED = [str(i) for i in range(1, 37)] + [f"T{i:02}" for i in (1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13)]


@functools.cache
def defined(name):
    """Names of the module-level tests of tests/policy/test_NAME.py, or tests/FOLDER/test_NAME.py for FOLDER/NAME."""
    folder, _, file = name.rpartition("/")
    path = pathlib.Path(__file__).parents[1] / (folder or "policy") / f"test_{file}.py"
    found = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [name for name in found if name.startswith("test_")]


def test_every_number_has_a_claim_that_is_held_or_a_reason():
    assert {number for number, _, _ in HOLDS + NOT_ADMITTED} == set(WANTED)
    assert [w for w in WANTED if w not in {number for number, _, _ in HOLDS}] == ["31"]
    assert all(claim and said for _, claim, said in HOLDS + NOT_ADMITTED)


@pytest.mark.parametrize(("number", "claim", "tests"), HOLDS, ids=[number for number, _, _ in HOLDS])
def test_every_test_that_the_table_names_exists(number, claim, tests):
    for name in tests.split():
        file, _, test = name.rpartition(".")
        assert test in defined(file), f"{number}, {claim}: no {test} in {file}"


def test_no_file_has_two_defined_one_name():
    for file in {name.rpartition(".")[0] for _, _, tests in HOLDS for name in tests.split()}:
        names = defined(file)
        assert len(names) == len(set(names)), file  # the second would hide the first
