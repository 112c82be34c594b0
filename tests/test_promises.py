"""Every promise of docs/SEMANTICS.md has a test, and every test that is named for one exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEMANTICS = ROOT / "docs/SEMANTICS.md"
_DEFINED = re.compile(r"^- \[(S-[A-Z]+-\d+)\]", re.MULTILINE)
_MENTIONED = re.compile(r"S-[A-Z]+-\d+")

_TREE = "tests/mounted/test_tree.py::"
_READS = "tests/mounted/test_reads.py::"
_RO = "tests/mounted/test_readonly.py::"
_CONTROL = "tests/mounted/test_control.py::"
_LIFE = "tests/mounted/test_lifecycle.py::"
_SOURCE = "tests/mounted/test_source_faults.py::"
_USERS = "tests/mounted/test_users.py::"
_MOUNT8 = "tests/mounted/test_mount8.py::"
_CONTAINERS = "tests/mounted/test_containers.py::"
_MISSING = "tests/mounted/test_missing_pieces.py::"
_BAD = "tests/mounted/test_bad_input.py::"
_BUDGET = "tests/mounted/test_budget.py::"
_SEVERAL = "tests/mounted/test_ranks.py::"
_PROMISED = "tests/mounted/test_promised.py::"
_FAULTS = "tests/ranks/test_faults.py::"
_HOSTS = "tests/ranks/test_two_hosts.py::"
_BINDINGS = "tests/shuffled/test_bindings.py::"
_ONCE = "tests/shuffled/test_exactly_once.py::"
_LOSSES = "tests/shuffled/test_losses.py::"
_BINDER = "tests/order/test_binder.py::"
_QUEUES = "tests/order/test_queues.py::"
_PLAN = "tests/order/test_plan.py::"
_ENTROPY = "tests/order/test_entropy.py::"
_PAIRS = "tests/order/test_pairs.py::"
_SAMPLES = "tests/order/test_samples.py::"
_SIMULATED = "tests/order/test_shuffle_simulation.py::"
_LOST = "tests/order/test_loss_simulation.py::"
_MEMBERS = "tests/order/test_members.py::"
_ROLLCALL = "tests/unit/test_rollcall.py::"
_DOOR = "tests/unit/test_door.py::"
_SCAN = "tests/unit/test_scan.py::"
_READER = "tests/unit/test_reader.py::"
_STAGING = "tests/mounted/test_staging.py::"
_PREFETCH = "tests/unit/test_prefetch.py::"
_REQUESTS = "tests/unit/test_requests.py::"
_STAGER = "tests/unit/test_stager_hangs.py::"
_FETCHER = "tests/unit/test_fetcher.py::"
_PLACEMENT = "tests/unit/test_placement.py::"
_BATCH = "tests/order/test_batch.py::"
_ORDERS = "tests/unit/test_stream_orders.py::"
_STREAM_READING = "tests/unit/test_stream_reading.py::"
_STREAM_FORMATS = "tests/unit/test_stream_formats.py::"
_STREAMS = "tests/streams/test_tar.py::"
_FRAMEWORKS = "tests/streams/test_frameworks.py::"
_PACKS = "tests/sources/test_packs.py::"
_PACK_READERS = "tests/sources/test_pack_readers.py::"
_LMDB = "tests/sources/test_lmdb.py::"
_LMDB_READERS = "tests/sources/test_lmdb_readers.py::"
_LMDB_DAMAGE = "tests/sources/test_lmdb_damage.py::"
_HDF5 = "tests/sources/test_hdf5.py::"
_STORE = "tests/sources/test_remote.py::"
_LMDB_NAMES = "tests/contracts/test_lmdb_source.py::"
_TARS = "tests/unit/test_tar_source.py::"
_ZIPS = "tests/unit/test_zip_source.py::"
_REGISTRY = "tests/unit/test_source_registry.py::"

# The tests that show a promise, without their parameters. A test that is named for a promise fails if it is broken.
PROMISES: dict[str, str | tuple[str, ...]] = {
    "S-TREE-1": (_TREE + "test_names_and_attributes_are_those_of_the_source", _TREE + "test_check_finds_no_difference"),
    "S-TREE-2": (
        _TREE + "test_a_name_that_is_not_there_is_not_found",
        _PROMISED + "test_the_view_stays_as_it_was_when_the_source_changes",
    ),
    "S-TREE-3": (
        _TREE + "test_a_directory_of_many_files_is_complete_and_right",
        _TREE + "test_directory_entries_tell_the_type",
        _PROMISED + "test_a_listing_is_sorted_and_has_no_dots",
    ),
    "S-TREE-4": (
        _TREE + "test_inode_numbers_are_stable_and_tell_files_apart",
        _PROMISED + "test_the_root_is_inode_1_and_ranks_agree_on_all",
    ),
    "S-TREE-5": (
        _TREE + "test_inode_numbers_are_stable_and_tell_files_apart",
        _PROMISED + "test_links_are_what_they_lead_to",
        _PLACEMENT + "test_names_of_one_file_share_its_units",
    ),
    "S-TREE-6": (
        _TREE + "test_names_and_attributes_are_those_of_the_source",
        _PROMISED + "test_links_are_what_they_lead_to",
        _SCAN + "test_a_link_may_lead_out_of_the_dataset",
    ),
    "S-TREE-7": (
        _PROMISED + "test_links_are_what_they_lead_to",
        _SCAN + "test_a_link_to_a_file_of_the_dataset_shares_its_content",
    ),
    "S-TREE-8": (
        _TREE + "test_what_is_left_out_is_counted",
        _SCAN + "test_a_link_that_dangles_is_left_out_and_counted",
        _SCAN + "test_a_link_to_itself_is_left_out_and_counted",
        _SCAN + "test_a_link_to_a_directory_above_it_is_left_out_and_counted",
    ),
    "S-TREE-9": _SCAN + "test_all_links_are_left_out_if_asked",
    "S-TREE-10": (
        _TREE + "test_what_is_left_out_is_counted",
        _SCAN + "test_what_is_no_file_is_left_out_and_counted",
    ),
    "S-TREE-11": (
        _LIFE + "test_include_and_exclude_choose_what_is_in_the_view",
        _SCAN + "test_an_excluded_directory_is_not_even_listed",
        _SCAN + "test_include_keeps_these_files_only",
    ),
    "S-TREE-12": _TREE + "test_what_is_left_out_is_counted",
    "S-TREE-13": (
        _USERS + "test_what_the_user_may_not_read_is_said_in_one_line",
        _SCAN + "test_a_directory_that_cannot_be_read_is_an_error_on_every_rank",
        _SCAN + "test_a_directory_that_cannot_be_read_may_be_excluded",
    ),
    "S-TREE-14": _TREE + "test_a_name_longer_than_any_can_be_is_an_error_of_its_own",
    "S-ATTR-1": _TREE + "test_names_and_attributes_are_those_of_the_source",
    "S-ATTR-2": (
        _PROMISED + "test_times_and_blocks_follow_from_modification_time_and_size",
        _RO + "test_reading_leaves_the_access_time_of_the_view_alone",
    ),
    "S-ATTR-3": (
        _READS + "test_find_sees_what_the_source_has",
        _SCAN + "test_a_directory_counts_the_directories_of_the_view_and_not_of_the_source",
    ),
    "S-ATTR-4": (
        _LIFE + "test_owner_and_modes_can_be_given",
        _PROMISED + "test_a_given_owner_and_mask_are_those_of_directories_too",
    ),
    "S-ATTR-5": _PROMISED + "test_times_and_blocks_follow_from_modification_time_and_size",
    "S-ATTR-6": (
        _CONTROL + "test_statvfs_shows_a_full_file_system_of_the_dataset_s_size",
        _PROMISED + "test_statvfs_counts_names_and_blocks",
    ),
    "S-READ-1": (
        _READS + "test_pread_at_random_places",
        _TREE + "test_diff_finds_only_what_is_left_out",
        _READER + "test_a_read_is_short_only_at_the_end_of_the_file",
    ),
    "S-READ-2": (_READS + "test_mmap", _READS + "test_a_private_mapping_may_be_written_to_and_stays_private"),
    "S-READ-3": _READS + "test_sendfile",
    "S-READ-4": (_READS + "test_direct_reads", _PROMISED + "test_direct_reads_at_any_offset_and_length"),
    "S-READ-5": (_READS + "test_lseek", _READS + "test_a_sparse_file_is_all_data"),
    "S-READ-6": (
        _READS + "test_openat_and_the_descriptor_of_a_directory",
        _READS + "test_threads_read_one_descriptor_at_once",
        _PROMISED + "test_processes_share_a_descriptor",
    ),
    "S-READ-7": _RO + "test_a_reader_who_would_create_what_is_there_may_read",
    "S-READ-8": (
        _READER + "test_bytes_come_from_the_nearest_memory_that_has_them",
        _READER + "test_bytes_come_from_the_source_if_no_memory_has_them",
        _READER + "test_the_farthest_of_several_origins_is_told_wherever_it_lies",
        _SEVERAL + "test_two_ranks_hold_the_dataset_once_and_both_serve_all_of_it",
        _HOSTS + "test_each_byte_is_read_from_the_source_once_and_served_right_on_both_hosts",
    ),
    "S-READ-11": (
        _STAGING + "test_without_shuffling_the_tree_is_the_sources_and_each_byte_is_read_once",
        _READER + "test_a_file_of_one_request_is_read_without_the_engine",
        _READER + "test_a_file_of_several_requests_is_staged_whole_wherever_it_is_read_first",
        _READER + "test_a_big_file_that_is_read_here_and_there_is_read_exactly_as_asked",
        _READER + "test_of_a_file_that_is_read_in_order_the_next_two_extents_are_fetched_ahead",
        _READER + "test_a_big_file_that_no_memory_holds_is_read_once_from_the_source_and_by_the_engine",
    ),
    "S-READ-9": (
        _LIFE + "test_warm_demand_loads_what_is_read",
        _HOSTS + "test_loading_on_demand_reads_each_byte_once_whoever_asks_first",
    ),
    "S-READ-10": _PROMISED + "test_a_second_read_does_not_reach_the_mount",
    "S-RO-1": _RO + "test_nothing_can_be_changed",
    "S-RO-2": (
        _RO + "test_nothing_can_be_changed",
        _RO + "test_control_files_cannot_be_written",
        _RO + "test_nothing_can_be_made_beside_the_control_files",
        _ONCE + "test_writing_a_number_begins_that_pass",
    ),
    "S-XATTR-1": (
        _CONTROL + "test_extended_attributes",
        _PROMISED + "test_all_hard_links_name_the_first_as_their_sample",
    ),
    "S-XATTR-2": (
        _CONTROL + "test_extended_attributes",
        _READER + "test_where_bytes_would_come_from_is_known",
        _HOSTS + "test_a_replicated_file_is_in_the_memory_of_both_hosts_and_read_from_the_source_once",
    ),
    "S-XATTR-3": (
        _CONTROL + "test_extended_attributes",
        _CONTROL + "test_the_digest_of_a_file_that_is_partly_in_memory",
    ),
    "S-XATTR-4": (
        _CONTROL + "test_other_attributes_do_not_exist",
        _PROMISED + "test_control_files_have_no_attributes",
    ),
    "S-NAME-1": (
        _PROMISED + "test_listings_are_the_source_s_whatever_was_drawn",
        _BINDINGS + "test_a_scan_draws_nothing_and_loses_nothing",
    ),
    "S-NAME-2": (
        _SAMPLES + "test_samples_are_the_files_of_a_directory_with_one_stem",
        _SAMPLES + "test_a_name_up_to_its_first_dot_is_the_stem_and_a_leading_dot_belongs_to_it",
        _SAMPLES + "test_groups_are_samples_of_one_directory_and_one_signature",
        _SAMPLES + "test_members_of_samples_of_one_group_correspond",
        _SAMPLES + "test_dir_never_mixes_directories_and_all_does",
        _SAMPLES + "test_a_regular_expression_groups_by_what_it_captures_and_leaves_the_rest_alone",
        _SAMPLES + "test_an_expression_that_captures_nothing_groups_by_what_it_matches",
        _SAMPLES + "test_shuffle_only_leaves_the_others_their_names",
        _SAMPLES + "test_the_first_file_of_a_sample_decides_for_all_of_them",
        _SIMULATED + "test_classes_are_never_mixed",
        _ONCE + "test_torch_on_one_mount_sees_each_sample_once_per_epoch_in_three_orders",
    ),
    "S-NAME-3": (
        _BINDINGS + "test_two_halves_of_the_same_samples_refuse_to_mount",
        _BINDINGS + "test_the_attribute_names_the_sample_that_was_read",
    ),
    "S-NAME-4": (
        _BINDINGS + "test_two_halves_of_the_same_samples_refuse_to_mount",
        _PAIRS + "test_a_conventional_name_is_refused_though_suffixes_agree",
        _PAIRS + "test_other_suffixes_are_refused_whatever_the_names",
        _PAIRS + "test_a_few_names_in_common_are_no_pair",
        _PAIRS + "test_one_name_in_common_is_no_pair",
        _PAIRS + "test_classes_whose_files_are_numbered_alike_are_not_refused",
        _PAIRS + "test_shuffle_only_resolves",
        _PAIRS + "test_a_regular_expression_resolves",
    ),
    "S-NAME-5": (
        _BINDER + "test_s6_an_open_takes_what_the_lookup_reserved",
        _BINDER + "test_s6_a_lookup_by_another_thread_is_what_the_open_takes",
        _BINDINGS + "test_stat_then_open_verify_reopen_see_one_sample",
    ),
    "S-NAME-6": (
        _BINDER + "test_s6_a_scan_of_many_names_reserves_one_sample_at_a_time",
        _BINDER + "test_s6_each_thread_has_a_reservation_of_its_own",
        _SIMULATED + "test_a_scan_reserves_one_sample_and_draws_none",
        _BINDINGS + "test_a_scan_draws_nothing_and_loses_nothing",
    ),
    "S-NAME-7": (
        _PROMISED + "test_threads_that_look_a_name_up_share_its_sample",
        _PROMISED + "test_another_thread_s_lookup_decides_for_all",
        _BINDER + "test_s6_two_threads_that_look_share_a_reservation",
        _BINDER + "test_no_draw_is_lost_or_doubled_and_an_open_takes_what_the_kernel_believes",
    ),
    "S-NAME-8": (
        _BINDER + "test_s3_while_a_handle_is_open_another_thread_sees_the_same_sample",
        _BINDER + "test_s3_ends_with_the_last_handle",
        _BINDINGS + "test_a_mapping_keeps_its_bytes_while_others_open_the_name",
        _BINDINGS + "test_eight_threads_and_a_hundred_thousand_operations_see_whole_samples",
    ),
    "S-NAME-9": (
        _BINDER + "test_s4_open_verify_reopen_sees_one_sample_and_draws_once",
        _BINDER + "test_s4_ends_when_the_thread_uses_another_sample",
        _BINDINGS + "test_stat_then_open_verify_reopen_see_one_sample",
        _PROMISED + "test_another_thread_s_lookup_decides_for_all",
    ),
    "S-NAME-10": (
        _BINDER + "test_s5_a_member_that_was_not_opened_is_of_the_sample_for_any_thread",
        _BINDER + "test_s5_a_member_opened_again_by_another_thread_is_a_new_sample",
        _BINDINGS + "test_members_read_in_turn_are_of_one_sample",
        _BINDINGS + "test_members_opened_by_different_processes_are_of_one_sample",
    ),
    "S-NAME-11": (
        _BINDER + "test_s4_does_not_hold_for_unknown_threads",
        _BINDER + "test_s3_holds_for_a_handle_of_an_unknown_thread",
        _BINDER + "test_s5_holds_for_unknown_threads",
        _BINDER + "test_s6_unknown_threads_keep_a_limited_number_of_reservations",
        _SIMULATED + "test_threads_that_fuse_does_not_know_draw_each_sample_once",
    ),
    "S-NAME-12": (
        _BINDINGS + "test_sizes_and_bytes_agree_by_stat_fstat_read_pread_and_mmap",
        _PROMISED + "test_a_sample_taken_back_before_the_open_is_told_with_its_new_size",
    ),
    "S-NAME-13": _PROMISED + "test_a_shuffled_name_has_attributes_of_its_own_and_another_s_size",
    "S-NAME-14": (
        _BINDINGS + "test_sizes_and_bytes_agree_by_stat_fstat_read_pread_and_mmap",
        _BINDINGS + "test_eight_threads_and_a_hundred_thousand_operations_see_whole_samples",
        _PROMISED + "test_pages_are_kept_only_while_the_name_stands_for_the_same",
        _BINDER + "test_a_member_opened_before_under_the_binding_is_known",
    ),
    "S-NAME-15": _BINDINGS + "test_the_attribute_names_the_sample_that_was_read",
    "S-NAME-16": (
        _ONCE + "test_torch_on_one_mount_sees_each_sample_once_per_epoch_in_three_orders",
        _ONCE + "test_torch_on_several_ranks_sees_each_sample_once_per_pass",
        _ONCE + "test_drop_last_and_an_epoch_left_in_the_middle_lose_and_repeat_nothing",
        _ONCE + "test_all_opens_through_one_mount_take_the_other_ones_samples_too",
        _SIMULATED + "test_readers_that_start_again_in_the_middle_of_an_epoch_go_on_in_its_pass",
        _SIMULATED + "test_an_epoch_is_a_pass_however_it_is_dealt",
        _PLAN + "test_queues_of_all_ranks_hold_each_sample_of_the_group_once",
    ),
    "S-NAME-17": (
        _ONCE + "test_what_lies_with_a_mount_that_nobody_reads_is_drawn_by_the_others",
        _PROMISED + "test_what_was_looked_up_and_not_opened_is_drawn_by_others_after_a_while",
        _SIMULATED + "test_an_epoch_is_a_pass_however_long_messages_take",
        _SIMULATED + "test_who_needs_the_last_sample_waits_for_a_lookup_to_become_an_open",
        _SIMULATED + "test_an_epoch_after_a_scan_is_whole",
        _SIMULATED + "test_a_thread_that_looks_at_one_name_again_and_again_holds_nobody_up",
    ),
    "S-NAME-18": (
        _SIMULATED + "test_late_answers_and_lost_questions_lose_no_sample",
        _QUEUES + "test_a_late_sample_is_served_in_its_own_pass_before_this_ones",
    ),
    "S-NAME-19": (
        _ONCE + "test_writing_a_number_begins_that_pass",
        _PROMISED + "test_epoch_means_nothing_to_names_that_are_not_shuffled",
    ),
    "S-NAME-20": (
        _ONCE + "test_writing_a_number_begins_that_pass",
        _PROMISED + "test_a_pass_has_31_bits_and_may_be_begun_again",
        _PROMISED + "test_epoch_means_nothing_to_names_that_are_not_shuffled",
        _QUEUES + "test_a_pass_begun_again_is_whole_and_the_ones_after_it_too",
        _QUEUES + "test_one_who_is_behind_moves_on_to_a_pass_that_another_began_by_command",
        _SIMULATED + "test_an_epoch_begun_by_command_on_every_mount_is_whole",
    ),
    "S-NAME-21": (
        _PROMISED + "test_one_mount_draws_a_group_in_the_order_of_its_plan",
        _ONCE + "test_equal_seeds_give_equal_orders_and_others_others",
        _PLAN + "test_a_fresh_plan_says_the_same_whatever_was_asked_before",
        _PLAN + "test_passes_groups_and_seeds_differ",
        _SIMULATED + "test_equal_seeds_give_equal_orders_and_others_do_not",
        _SIMULATED + "test_each_pass_has_an_order_of_its_own",
        _SIMULATED + "test_a_draw_comes_before_its_turn_by_less_than_the_window_and_without_need_not_at_all",
    ),
    "S-NAME-22": (
        _PROMISED + "test_stats_tell_the_entropy_and_what_it_asks_for",
        "tests/shuffled/test_two_hosts.py::test_the_bound_says_what_crosses_the_network",
        _ENTROPY + "test_the_exchange_meets_the_bound_and_is_at_most_a_full_shuffles",
        _PLAN + "test_the_share_that_leaves_its_node_is_the_planned_exchange",
        _PLAN + "test_the_entropy_of_many_passes_is_the_planned_one",
        _PLAN + "test_figures_of_a_plan_are_the_worst_entropy_and_the_mean_exchange",
    ),
    "S-NAME-23": (
        _PROMISED + "test_an_order_log_is_csv_whatever_the_names",
        _BINDINGS + "test_members_read_in_turn_are_of_one_sample",
        _ONCE + "test_torch_on_several_ranks_sees_each_sample_once_per_pass",
    ),
    "S-NAME-24": (
        _PROMISED + "test_what_a_mount_that_left_has_not_drawn_is_missing_once_and_nothing_is_repeated",
        _LOSSES + "test_after_a_rank_was_killed_in_the_middle_of_a_pass_the_next_is_whole",
        _LOSSES + "test_after_a_mount_has_left_in_the_middle_of_a_pass_the_next_is_whole",
        _LOSSES + "test_on_two_hosts_passes_are_whole_after_a_rank_was_killed",
        _LOST + "test_whoever_is_killed_or_leaves_when_nothing_is_repeated_and_later_passes_are_whole",
        _MEMBERS + "test_queues_of_who_is_left_hold_each_sample_once",
        _MEMBERS + "test_an_even_deal_stays_even_in_each_group_and_over_all",
    ),
    "S-NAME-25": (
        _PROMISED + "test_without_its_engine_a_mount_draws_its_own_queues_pass_after_pass",
        _LOSSES + "test_a_mount_without_its_engine_keeps_its_share_also_when_another_is_killed",
        _LOST + "test_a_mount_without_an_engine_keeps_its_share_and_learns_of_losses",
        _LOST + "test_if_all_engines_are_lost_a_killed_mount_is_found_out_all_the_same",
    ),
    "S-NAME-26": (
        _LOST + "test_a_mount_that_is_stopped_for_long_is_not_out_and_goes_on_with_its_share",
        _ROLLCALL + "test_who_lives_is_not_out_whatever_its_engine_does",
        _ROLLCALL + "test_a_process_that_is_stopped_is_not_out",
        _ROLLCALL + "test_nothing_is_decided_while_one_that_lives_has_not_said_how_far_it_is",
        _ROLLCALL + "test_a_judgement_ends_in_time_though_all_are_stopped",
        _DOOR + "test_a_process_that_is_stuck_takes_the_call_and_is_known_to_live",
        _DOOR + "test_a_process_that_is_gone_refuses",
    ),
    "S-NAME-27": (
        _ROLLCALL + "test_all_that_are_left_agree_whoever_is_lost_when",
        _ROLLCALL + "test_a_process_that_is_gone_is_out_from_the_first_pass_that_nobody_has_begun",
        _ROLLCALL + "test_of_a_job_cut_in_two_the_larger_part_goes_on_alone_and_the_other_learns_it_later",
        _ROLLCALL + "test_of_two_halves_that_of_the_lowest_rank_goes_on",
        _ROLLCALL + "test_a_refusal_by_a_host_that_was_never_reached_proves_nothing",
    ),
    "S-NAME-28": (
        _LOSSES + "test_a_host_that_was_cut_off_serves_nothing_of_its_own_once_it_is_back",
        _LOST + "test_a_mount_that_was_cut_off_and_comes_back_repeats_nothing_from_then_on",
        _LOST + "test_who_asks_while_it_is_out_is_told",
        _LOST + "test_a_mount_that_is_out_and_that_nobody_answers_fails_to_open",
    ),
    "S-NAME-29": _LOSSES + "test_after_a_rank_was_killed_in_the_middle_of_a_pass_the_next_is_whole",
    "S-NAME-30": (
        _PREFETCH + "test_the_next_draws_are_fetched_ahead_in_their_order_and_one_more_after_each_draw",
        _PREFETCH + "test_what_is_in_the_node_is_not_fetched",
        _PREFETCH + "test_the_window_is_of_all_draws_and_follows_the_recent_ones",
        _PREFETCH + "test_before_the_first_draw_each_group_has_its_share_by_size",
        _QUEUES + "test_what_is_to_come_is_of_the_current_pass_only",
    ),
    "S-NAME-31": (
        _SIMULATED + "test_a_draw_comes_before_its_turn_by_less_than_the_window_and_without_need_not_at_all",
        _SIMULATED + "test_an_epoch_is_a_pass_though_samples_are_late",
        _QUEUES + "test_the_first_of_the_window_that_is_ready_is_taken_and_the_skipped_stay_in_order",
        _QUEUES + "test_one_that_is_late_by_the_window_is_drawn_before_any_other",
        _PREFETCH + "test_a_draw_takes_the_first_that_is_ready_and_those_it_skips_stay_in_order",
        _PREFETCH + "test_what_cannot_be_fetched_is_drawn_in_its_turn_and_not_waited_for",
        _PREFETCH + "test_a_sample_that_is_larger_than_staging_is_not_fetched_nor_waited_for",
        _PREFETCH + "test_a_wait_ends_when_the_engine_is_late_and_what_it_was_asked_for_is_drawn_all_the_same",
    ),
    "S-NAME-32": (
        _STAGING + "test_a_shuffled_pass_has_each_sample_once_and_reads_each_byte_of_the_source_once",
        _STAGING + "test_a_pass_begun_in_the_middle_of_another_is_whole",
        _PREFETCH + "test_half_of_staging_is_claimed_at_most_and_a_draw_makes_room_for_the_next",
        _PREFETCH + "test_a_claim_stays_in_staging_until_it_is_drawn",
        _PREFETCH + "test_what_a_reader_waits_for_is_claimed_room_or_not",
        _PREFETCH + "test_what_another_rank_takes_is_let_go_and_its_place_used",
        _PREFETCH + "test_another_pass_lets_all_go_and_fetches_anew",
        _PREFETCH + "test_a_group_that_is_not_drawn_at_all_leaves_its_places_to_one_that_is_drawn_often",
        _PREFETCH + "test_an_engine_without_room_is_given_the_claim_that_is_needed_last",
    ),
    "S-NAME-33": (
        _STAGING + "test_fetching_none_or_few_ahead_changes_no_byte",
        _PREFETCH + "test_with_a_count_of_nothing_nothing_is_fetched_and_nothing_waited_for",
    ),
    "S-CTL-1": (
        _CONTROL + "test_control_files_are_reachable_but_not_listed",
        _PROMISED + "test_a_control_directory_of_the_source_is_hidden_but_below_exact",
    ),
    "S-CTL-2": _PROMISED + "test_the_control_directory_lists_its_files_which_belong_to_who_mounted",
    "S-CTL-3": (
        _CONTROL + "test_a_control_file_can_be_read_piecemeal_and_has_its_size",
        _PROMISED + "test_a_control_file_keeps_its_text_for_a_handle",
    ),
    "S-CTL-4": (
        _CONTROL + "test_stats_have_every_field",
        _CONTROL + "test_metrics_are_prometheus_text_and_agree_with_stats",
    ),
    "S-CTL-5": (
        _CONTROL + "test_stats_count_what_was_read",
        _PROMISED + "test_reads_and_bytes_by_origin_add_up",
    ),
    "S-CTL-6": (
        _PROMISED + "test_on_demand_a_mount_is_warm_when_all_was_asked_for",
        _LIFE + "test_warm_full_reports_success_when_all_is_loaded",
        _SEVERAL + "test_two_ranks_hold_the_dataset_once_and_both_serve_all_of_it",
    ),
    "S-CTL-7": (
        _CONTROL + "test_config_shows_what_is_in_force",
        _CONTROL + "test_a_percentage_of_memory_is_shown_in_bytes",
        _PROMISED + "test_config_has_all_options_and_what_sizes_came_to",
    ),
    "S-CTL-8": (
        _SOURCE + "test_a_file_that_hangs_keeps_nothing_else_from_memory_and_is_told_of",
        _CONTROL + "test_version_and_health",
        _LIFE + "test_the_mount_goes_on_without_its_engine",
        _HOSTS + "test_a_flipped_byte_in_a_peers_memory_is_counted_and_never_delivered",
        _PROMISED + "test_health_tells_of_files_that_could_not_be_loaded",
        _PROMISED + "test_a_late_engine_costs_one_wait_and_is_told_of",
        _PROMISED + "test_a_silent_peer_is_not_waited_for",
        _LOSSES + "test_after_a_rank_was_killed_in_the_middle_of_a_pass_the_next_is_whole",
        "tests/unit/test_report.py::test_each_thing_that_is_degraded_has_a_line",
    ),
    "S-CTL-9": (
        _TREE + "test_the_exact_twin_is_the_same_tree",
        _CONTROL + "test_control_files_are_reachable_but_not_listed",
        _PROMISED + "test_a_shuffled_name_has_attributes_of_its_own_and_another_s_size",
        _BINDINGS + "test_the_attribute_names_the_sample_that_was_read",
    ),
    "S-CTL-10": (
        _PROMISED + "test_the_control_directory_lists_its_files_which_belong_to_who_mounted",
        _USERS + "test_other_users_read_the_control_files_and_do_not_write_them",
        _USERS + "test_control_files_are_closed_to_whom_the_root_is",
    ),
    "S-REC-1": (
        _PACKS + "test_records_by_name_and_in_streams",
        _PACKS + "test_without_memory_records_come_from_the_containers",
        _PACKS + "test_both_hosts_see_each_record",
        _LMDB + "test_all_views_have_the_bytes_of_the_library",
        _LMDB + "test_a_shuffled_pass_serves_each_record_once",
        _LMDB + "test_two_hosts_of_two_ranks_share_what_each_read_once",
        _HDF5 + "test_rows_by_name_and_in_streams",
        _HDF5 + "test_in_a_pass_each_row_is_served_once",
        _HDF5 + "test_both_hosts_see_each_row",
    ),
    "S-REC-2": _REGISTRY + "test_records_have_the_permissions_of_their_container",
    "S-REC-3": (
        _REGISTRY + "test_a_record_and_a_directory_cannot_share_a_name",
        _TARS + "test_one_path_in_two_tars_is_refused",
        _TARS + "test_of_a_name_that_comes_twice_the_last_one_counts",
        _ZIPS + "test_of_a_name_that_comes_twice_the_last_one_counts",
    ),
    "S-REC-4": (
        _PACKS + "test_what_cannot_be_indexed_is_one_line_and_exit_code_3",
        _PACKS + "test_a_record_with_a_wrong_crc_is_an_io_error_and_no_other",
        _LMDB_DAMAGE + "test_a_mount_of_a_damaged_file_ends_with_one_line",
        _HDF5 + "test_a_file_that_cannot_be_indexed_is_one_line_and_exit_code_3",
        _HDF5 + "test_of_a_damaged_chunk_only_the_rows_fail",
    ),
    "S-REC-5": (
        _PACKS + "test_an_index_file_holds_until_a_container_changes",
        _LMDB + "test_what_was_written_to_is_not_read",
    ),
    "S-REC-6": (
        _PACK_READERS + "test_tf_data_reads_the_files_of_a_mounted_directory_and_finds_what_the_source_does",
        _PACK_READERS + "test_webdataset_reads_the_tars_of_a_mounted_directory",
        _LMDB_READERS + "test_several_processes_map_it_at_once",
        _LMDB_READERS + "test_torchvision_reads_lsun_as_on_the_source",
        _HDF5 + "test_the_library_over_the_mount_of_the_directory",
    ),
    "S-REC-7": (
        _LMDB_NAMES + "test_encoded_datums_are_images_in_directories_of_their_labels",
        _LMDB_NAMES + "test_raw_datums_are_left_whole",
        _LMDB_NAMES + "test_wrong_and_mixed_encodings_are_refused",
        _LMDB_NAMES + "test_any_keys_have_names_of_their_own_that_lead_back",
    ),
    "S-REC-8": (
        _STORE + "test_an_object_that_is_replaced_is_an_error_and_no_other",
        _STORE + "test_what_fails_for_a_moment_is_tried_again",
        _STORE + "test_when_the_server_dies_what_is_loaded_goes_on",
    ),
    "S-PERM-1": (
        _LIFE + "test_mountinfo_shows_what_it_is",
        _USERS + "test_with_allow_other_the_modes_decide",
    ),
    "S-PERM-2": (
        _USERS + "test_another_user_and_root_do_not_get_in",
        _PROMISED + "test_with_allow_root_root_gets_in_and_others_do_not",
    ),
    "S-PERM-3": (
        _USERS + "test_with_allow_other_the_modes_decide",
        _USERS + "test_with_allow_other_a_secret_is_denied_by_its_own_mode",
    ),
    "S-PERM-4": _USERS + "test_letting_others_in_needs_the_machine_s_consent",
    "S-PERM-5": _LIFE + "test_mountinfo_shows_what_it_is",
    "S-PERM-6": (
        _USERS + "test_a_user_mounts_reads_and_unmounts",
        _USERS + "test_a_file_that_may_not_be_read_is_an_error_of_that_file_alone",
    ),
    "S-PERM-7": (
        _USERS + "test_no_shuffled_name_tells_a_secret",
        _USERS + "test_no_shuffled_name_tells_what_lies_in_a_closed_directory",
        _USERS + "test_what_the_same_users_may_read_is_shuffled_for_them",
    ),
    "S-FAIL-1": (
        _FETCHER + "test_a_flipped_byte_is_noticed_counted_and_got_again",
        _FETCHER + "test_a_unit_that_differs_twice_comes_from_the_source",
        _FAULTS + "test_a_flipped_byte_in_a_neighbours_memory_is_counted_and_never_delivered",
        _HOSTS + "test_a_flipped_byte_in_a_peers_memory_is_counted_and_never_delivered",
    ),
    "S-FAIL-2": (
        _FAULTS + "test_a_flipped_byte_in_a_neighbours_memory_is_counted_and_never_delivered",
        _READER + "test_a_unit_is_compared_once_for_each_handle",
        _READER + "test_verify_off_compares_nothing",
        _FETCHER + "test_while_the_job_is_loading_digests_are_compared_even_if_verify_is_off",
        _FETCHER + "test_once_the_job_is_warm_verify_off_compares_nothing",
    ),
    "S-FAIL-3": (
        _PROMISED + "test_a_silent_peer_is_not_waited_for",
        _FETCHER + "test_what_a_peer_does_not_give_in_time_comes_from_the_source_and_the_peer_is_suspect",
        _FETCHER + "test_what_waits_for_a_peer_that_is_found_late_waits_no_more",
        _FETCHER + "test_a_suspect_is_left_alone_and_then_probed",
        _FETCHER + "test_probes_that_fail_come_ever_less_often",
        _FETCHER + "test_a_note_of_a_suspect_clears_it",
    ),
    "S-FAIL-4": (
        _LIFE + "test_the_mount_goes_on_without_its_engine",
        _FAULTS + "test_a_killed_engine_leaves_all_mounts_serving_right_bytes_and_health_says_so",
    ),
    "S-FAIL-5": (
        _PROMISED + "test_a_late_engine_costs_one_wait_and_is_told_of",
        _REQUESTS + "test_an_engine_that_does_not_answer_is_left_alone_for_a_while",
        _READER + "test_a_late_engine_costs_one_wait_and_then_none",
    ),
    "S-FAIL-6": (
        _READER + "test_a_source_that_hangs_ends_in_time_with_an_error",
        _SOURCE + "test_a_file_that_hangs_keeps_nothing_else_from_memory_and_is_told_of",
        _READER + "test_a_late_engine_costs_one_wait_and_then_none",
    ),
    "S-FAIL-7": (
        _LIFE + "test_a_file_that_changed_is_an_error_and_not_a_mixture",
        _SOURCE + "test_a_file_that_changes_while_it_is_open_is_an_error_and_no_mixture",
        _SOURCE + "test_what_is_resident_is_served_whatever_becomes_of_the_source",
        _READER + "test_a_file_that_changed_is_an_error_and_not_other_bytes",
        _READER + "test_resident_bytes_are_served_whatever_became_of_the_source",
    ),
    "S-FAIL-8": (
        _USERS + "test_a_file_that_may_not_be_read_is_an_error_of_that_file_alone",
        _PROMISED + "test_health_tells_of_files_that_could_not_be_loaded",
        _READER + "test_an_error_of_the_source_keeps_its_number",
        _SOURCE + "test_an_error_that_passes_is_seen_by_nobody",
        _SOURCE + "test_an_error_that_lasts_is_that_of_the_source_for_that_file_alone",
        _SOURCE + "test_a_file_that_hangs_keeps_nothing_else_from_memory_and_is_told_of",
        _STAGER + "test_a_read_that_hangs_keeps_its_own_unit_and_is_told_of_until_it_ends",
    ),
    "S-FAIL-9": (
        _LIFE + "test_a_file_that_changed_is_an_error_and_not_a_mixture",
        _PROMISED + "test_health_tells_of_files_that_could_not_be_loaded",
    ),
    "S-FAIL-10": (
        _FAULTS + "test_a_killed_engine_leaves_all_mounts_serving_right_bytes_and_health_says_so",
        _PROMISED + "test_a_silent_peer_is_not_waited_for",
        _READER + "test_an_engine_that_dies_while_it_is_asked_costs_no_read",
        _FETCHER + "test_an_error_of_mpi_is_counted_and_suspect_and_the_source_read",
    ),
    "S-MEM-1": (
        _BUDGET + "test_memory_stays_within_what_was_given",
        "tests/unit/test_manifest.py::test_a_row_takes_at_most_100_bytes_beside_its_name",
    ),
    "S-MEM-2": (
        _BAD + "test_more_memory_than_there_is",
        "tests/unit/test_budget.py::test_what_does_not_fit_is_an_error_that_names_what_was_asked_and_what_there_is",
    ),
    "S-MEM-3": (
        _SEVERAL + "test_two_ranks_hold_the_dataset_once_and_both_serve_all_of_it",
        _READS + "test_what_exceeds_the_cache_comes_from_the_source",
        _STAGING + "test_without_shuffling_the_tree_is_the_sources_and_each_byte_is_read_once",
        _STAGING + "test_a_shuffled_pass_has_each_sample_once_and_reads_each_byte_of_the_source_once",
        _PLACEMENT + "test_every_unit_is_placed_once_or_nowhere",
        _PLACEMENT + "test_the_small_files_of_a_sample_are_resident_together_or_not_at_all",
        _PLACEMENT + "test_groups_of_different_sizes_keep_the_same_share_to_within_a_sample",
        _PLACEMENT + "test_the_extents_of_large_files_and_the_samples_beside_them_keep_the_same_share",
        _PLACEMENT + "test_no_rank_has_room_for_anything_in_a_job_without_cache",
        _PLACEMENT + "test_another_process_places_alike",
    ),
    "S-MEM-4": (
        _HOSTS + "test_a_replicated_file_is_in_the_memory_of_both_hosts_and_read_from_the_source_once",
        _PLACEMENT + "test_with_room_every_wanted_unit_is_on_the_node",
        _PLACEMENT + "test_replicas_lie_behind_the_own_units_and_do_not_overlap",
    ),
    # The fixtures `mount` and `mpi_mount` compare /dev/shm before and after; these kill processes in between.
    "S-MEM-5": (
        _LIFE + "test_umount_clears_a_dead_mount",
        _LIFE + "test_the_mount_goes_on_without_its_engine",
        _FAULTS + "test_a_killed_engine_leaves_all_mounts_serving_right_bytes_and_health_says_so",
    ),
    "S-MEM-6": _BUDGET + "test_memory_stays_within_what_was_given",
    "S-MOUNT-1": (
        _BAD + "test_of_several_ranks_one_says_what_is_wrong",
        _FAULTS + "test_a_mount_point_that_is_missing_for_one_rank_fails_all_with_one_line",
        _FAULTS + "test_a_source_that_is_missing_is_told_once",
        _PROMISED + "test_what_hinders_one_rank_is_told_with_its_number_and_host",
        _PROMISED + "test_wrong_options_are_told_by_each_rank",
    ),
    "S-MOUNT-2": (
        _LIFE + "test_a_background_mount_leaves_its_caller",
        _LIFE + "test_a_signal_unmounts_and_is_no_failure",
        _PROMISED + "test_one_rank_under_a_launcher_stays_in_the_foreground",
        _PROMISED + "test_under_a_launcher_mpi_off_loads_no_mpi_and_goes_to_the_background",
    ),
    "S-MOUNT-3": (
        _BAD + "test_a_mount_point_that_does_not_exist",
        _BAD + "test_a_mount_point_that_is_no_directory",
        _BAD + "test_a_mount_point_that_is_not_empty",
        _BAD + "test_a_mount_point_that_is_in_use",
        _FAULTS + "test_ranks_that_would_mount_at_one_place_all_fail_with_one_line",
        _LIFE + "test_mounting_over_a_dead_mount_works",
    ),
    "S-MOUNT-4": (
        _LIFE + "test_warm_full_reports_success_when_all_is_loaded",
        _LIFE + "test_warm_demand_loads_what_is_read",
        _LIFE + "test_a_signal_while_it_is_loading",
    ),
    "S-MOUNT-5": (
        _LIFE + "test_wait_times_out",
        _LIFE + "test_commands_do_not_hang_on_a_mount_that_does",
        _PROMISED + "test_waiting_for_a_mount_that_cannot_become_warm_ends_with_1",
        _PROMISED + "test_on_demand_a_mount_is_warm_when_all_was_asked_for",
    ),
    "S-MOUNT-6": (_LIFE + "test_umount_again_is_fine", _LIFE + "test_umount_leaves_other_file_systems_alone"),
    "S-MOUNT-7": (
        _LIFE + "test_umount_of_a_mount_in_use_says_so",
        _READS + "test_an_open_file_can_be_read_after_its_mount_is_gone_from_the_tree",
    ),
    "S-MOUNT-12": (
        _CONTAINERS + "test_a_descriptor_of_a_mount_is_served_without_any_privilege",
        _CONTAINERS + "test_modes_decide_though_the_descriptor_s_mount_did_not_ask_for_it",
        _MISSING + "test_a_descriptor_that_was_not_passed_is_named",
    ),
    "S-MOUNT-13": (
        _MOUNT8 + "test_mount_8_mounts_and_umount_8_unmounts",
        _MOUNT8 + "test_a_line_of_fstab_mounts_it",
        _MOUNT8 + "test_a_type_with_fuse_before_it_is_the_same",
        _MOUNT8 + "test_a_user_mounts_a_line_with_user_and_unmounts_it",
        _MOUNT8 + "test_it_needs_no_environment",
        _MOUNT8 + "test_remount_is_refused",
    ),
    "S-MOUNT-8": (
        _FAULTS + "test_after_one_mount_left_the_other_still_gets_its_half_from_the_lingering_engine",
        _FAULTS + "test_an_engine_whose_peer_never_leaves_ends_by_itself_within_linger",
        _LOSSES + "test_after_a_rank_was_killed_in_the_middle_of_a_pass_the_next_is_whole",
        "tests/unit/test_farewell.py::test_with_a_loss_a_rank_lingers_until_all_others_have_left",
    ),
    "S-MOUNT-9": (
        _LIFE + "test_umount_waits_for_the_processes",
        _PROMISED + "test_a_mount_leaves_the_source_as_it_was",
        _FAULTS + "test_an_engine_whose_peer_never_leaves_ends_by_itself_within_linger",
    ),
    "S-MOUNT-10": (
        _LIFE + "test_an_index_is_used_while_it_matches",
        _LIFE + "test_an_index_is_built_anew_when_the_source_has_changed",
        _LIFE + "test_a_damaged_index_is_built_anew",
        "tests/unit/test_indexing.py::test_an_index_of_another_selection_is_built_anew",
    ),
    "S-MOUNT-11": (
        _LIFE + "test_umount_clears_a_dead_mount",
        _LIFE + "test_umount_clears_a_mount_that_hangs_and_frees_who_waits_for_it",
        _USERS + "test_root_can_unmount_it",
    ),
    "S-BATCH-1": (
        _BATCH + "test_each_batch_holds_what_the_permutation_says_and_loads_are_equal",
        _BATCH + "test_batches_are_those_of_the_slow_version",
        _STREAMS + "test_opens_with_a_batch_are_drawn_in_the_order_of_the_streams",
    ),
    "S-STREAM-1": _STREAMS + "test_the_tree_of_streams",
    "S-STREAM-2": (
        _STREAMS + "test_parts_of_all_ranks_together_are_the_source",
        _STREAMS + "test_members_of_a_sample_are_adjacent_in_the_order_of_their_suffixes",
        _ORDERS + "test_parts_of_all_ranks_hold_each_file_once",
        _ORDERS + "test_only_what_is_selected_is_in_streams",
    ),
    "S-STREAM-3": (
        _STREAMS + "test_every_part_is_listed_and_extracted_without_complaint",
        _STREAMS + "test_tarfile_reads_a_part_as_a_pipe",
        _STREAM_FORMATS + "test_any_path_is_read_back_and_its_header_has_the_length_foretold",
        _STREAM_FORMATS + "test_numbers_of_any_size_are_read_back",
        _FRAMEWORKS + "test_webdataset_on_two_ranks_sees_every_sample_once_per_epoch",
    ),
    "S-STREAM-4": (
        _FRAMEWORKS + "test_tf_data_on_two_ranks_reads_each_record_once",
        _STREAM_READING + "test_any_range_is_that_of_the_whole",
    ),
    "S-STREAM-5": _STREAM_READING + "test_any_range_is_that_of_the_whole",
    "S-STREAM-6": (
        _STREAMS + "test_two_runs_are_alike_to_the_byte_and_passes_and_seeds_differ",
        _STREAMS + "test_streams_are_the_same_with_any_shuffle",
        _ORDERS + "test_passes_differ_and_equal_ones_agree_whatever_was_asked_before",
    ),
    "S-STREAM-7": (
        _ORDERS + "test_parts_are_the_queue_dealt_round",
        _BATCH + "test_readers_that_take_turns_see_the_batches_in_their_order",
        _BATCH + "test_each_batch_holds_what_the_permutation_says_and_loads_are_equal",
    ),
    "S-STREAM-8": (
        _STREAMS + "test_even_parts_have_as_many_samples_on_all_ranks",
        _BATCH + "test_even_parts_are_equal_and_drop_repeats_and_pad_loses_nothing",
    ),
    "S-STREAM-9": (
        _STREAMS + "test_a_read_from_the_middle_is_that_from_the_start",
        _STREAM_READING + "test_several_readers_in_any_order_see_the_same",
    ),
    "S-STREAM-10": (
        _STREAMS + "test_a_stream_may_be_read_by_those_only_who_may_read_all_of_it",
        _STREAMS + "test_the_tree_of_streams",
        _USERS + "test_no_stream_tells_a_secret",
        _USERS + "test_a_stream_does_not_tell_the_names_in_a_directory_that_may_not_be_listed",
    ),
    "S-STREAM-11": (
        _STREAM_READING + "test_what_comes_next_is_fetched_before_it_is_read",
        _STREAM_READING + "test_with_prefetch_off_nothing_is_fetched_that_is_not_read",
    ),
    "S-STREAM-12": (
        _STREAM_READING + "test_a_member_that_the_source_does_not_give_is_an_error_of_its_own_range",
        _STREAM_READING + "test_a_read_over_many_members_is_answered_in_time_though_nobody_answers",
    ),
    "S-STREAM-13": _STREAMS + "test_stats_show_the_open_streams",
    "S-PROC-1": (
        _LIFE + "test_a_signal_unmounts_and_is_no_failure",
        _LIFE + "test_a_signal_unmounts_though_a_file_is_open",
        _PROMISED + "test_sigusr1_and_signals_to_the_engine_are_ignored",
    ),
    "S-PROC-2": (
        _PROMISED + "test_sigusr1_and_signals_to_the_engine_are_ignored",
        _LIFE + "test_the_mount_goes_on_without_its_engine",
    ),
    "S-PROC-3": (_LIFE + "test_umount_clears_a_dead_mount", _LIFE + "test_mounting_over_a_dead_mount_works"),
    "S-PROC-4": (
        "tests/unit/test_errors.py::test_every_error_ends_a_command_with_a_code_of_the_table",
        _BAD + "test_a_missing_source",
        _BAD + "test_a_wrong_command_line",
        _BAD + "test_a_machine_without_fuse",
        _BAD + "test_more_memory_than_there_is",
        _LIFE + "test_a_rank_without_an_mpi_library_says_what_to_install",
        _LIFE + "test_wait_times_out",
    ),
    "S-PROC-5": (
        _BAD + "test_an_unknown_option_names_the_nearest",
        _PROMISED + "test_a_traceback_is_shown_at_debug_only",
    ),
    "S-PROC-6": (
        _LIFE + "test_no_mpi_library_is_needed_for_one_mount",
        _PROMISED + "test_under_a_launcher_mpi_off_loads_no_mpi_and_goes_to_the_background",
    ),
    "S-PROC-7": (
        _TREE + "test_check_finds_no_difference",
        _TREE + "test_check_finds_what_differs",
        _PROMISED + "test_check_finds_other_times_and_modes",
    ),
}


def _tests_of(promise: str) -> tuple[str, ...]:
    named = PROMISES[promise]
    return (named,) if isinstance(named, str) else named


@functools.cache
def _tests_in(path: str) -> frozenset[str]:
    """The tests that a file defines, with their class if they have one."""
    tree = ast.parse((ROOT / path).read_text())
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (sub for sub in node.body if isinstance(sub, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def test_every_promise_is_in_the_table_and_nothing_else() -> None:
    defined = _DEFINED.findall(SEMANTICS.read_text())
    assert sorted(defined) == sorted(set(defined)), "an id is given twice"
    assert set(defined) == PROMISES.keys()


def test_every_promise_that_is_mentioned_is_defined() -> None:
    text = SEMANTICS.read_text()
    assert set(_MENTIONED.findall(text)) <= set(_DEFINED.findall(text))


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_promise_exist(promise: str) -> None:
    for test in _tests_of(promise):
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert name in _tests_in(path), test
    assert len(set(_tests_of(promise))) == len(_tests_of(promise)) > 0
