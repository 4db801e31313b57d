#include <csrc/plans/attention/attention_decode.h>
#include <kernels/attention/attention_decode.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace metalops::plans {

namespace {

constexpr const char* kFamily = "attention_decode";
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

int32_t decode_size(int64_t size, const char* what) {
  constexpr int64_t kLargest = kInt32Max - 4096;
  return checked_int32(size, kLargest, what);
}

// Returns the window, -1 if it is so large that it stands for "all keys".
int32_t decode_window(int64_t size) {
  return size > kInt32Max / 2 ? -1 : static_cast<int32_t>(size);
}

// Returns the strides of a tensor (B, H, L, E), or of pages (pages, H, page size, E).
AttentionDecodeStrides decode_strides(const View& view) {
  return {view.stride(0), view.stride(2), view.stride(1)};
}

// The rows (queries times query heads that share a key head) of a threadgroup.
struct Rows {
  const char* name;
  int64_t count;
  int64_t resident;  // threadgroups that a multiprocessor holds: more rows take more registers
};
Rows decode_rows(int64_t rows, bool are_codes) {
  if (are_codes || (rows > 1 && rows <= 4)) {
    return {"_4", 4, 2};
  }
  return rows <= 1 ? Rows{"_1", 1, 4} : Rows{"_8", 8, 2};
}

// Returns the number of KV splits: enough to keep a device busy, and none too short.
int64_t decode_splits(int64_t keys, int64_t tasks, int64_t resident, const Device& device) {
  constexpr int64_t kMostTasks = 4096;
  const int64_t enough = device.a_thread_for_each_element ? 64
                         : device.multiprocessors > 0
                             ? std::min(resident * device.multiprocessors, kMostTasks)
                             : 1024;
  const int64_t shortest = device.a_thread_for_each_element ? 512 : 256;
  const auto wanted = device.multiprocessors > 0 ? enough / tasks : ceil_div(enough, tasks);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, keys / shortest));
}

// The kernel's tensors besides out and lse, as it reads them.
struct Inputs {
  View query, key, value, table, starts, lengths, mask, sinks, slopes, key_scale, value_scale;
};

Inputs inputs_of(Plan& plan, const AttentionDecode& call) {
  const auto& table = call.table;
  return {
      .query = with_features_together(plan, call.query),
      .key = with_features_together(plan, call.key),
      .value = with_features_together(plan, call.value),
      .table = table && table.stride(1) != 1 && table.size(1) > 1 ? plan.contiguous(table) : table,
      .starts = plan.contiguous(call.starts, Type::kInt),
      .lengths = plan.contiguous(call.lengths, Type::kInt),
      .mask = call.mask,
      .sinks = plan.contiguous(call.sinks, Type::kFloat),
      .slopes = plan.contiguous(call.slopes, Type::kFloat),
      .key_scale = call.key_scale,
      .value_scale = call.value_scale};
}

void set_mask(AttentionDecodeParameters& parameters, const View& mask) {
  parameters.mask_kind = mask.type == Type::kBool    ? AttentionDecodeMask::kBool
                         : mask.type == Type::kFloat ? AttentionDecodeMask::kFloat
                                                     : AttentionDecodeMask::kSame;
  for (int32_t dim = 0; dim < 4; ++dim) {
    parameters.mask[dim] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
  }
}

// Returns the parameters without splits and row_blocks.
AttentionDecodeParameters parameters_of(const AttentionDecode& call, const Inputs& given,
                                        const Device& device) {
  const auto& key = given.key;
  const bool paged = static_cast<bool>(given.table);
  const auto page_size = paged ? key.size(2) : 0;
  // As in torch, queries without features attend to no key.
  const auto keys = call.query.size(3) == 0 ? 0
                    : paged                 ? given.table.size(1) * page_size
                                            : key.size(2);
  AttentionDecodeParameters parameters{
      .query = decode_strides(given.query),
      .key = decode_strides(key),
      .value = decode_strides(given.value),
      .out = decode_strides(call.out),
      .lse = {call.lse.stride(0), call.lse.stride(2), call.lse.stride(1)},
      .mask = {0, 0, 0, 0},
      .table_stride = paged ? given.table.stride(0) : 0,
      .slopes_batch = given.slopes && given.slopes.dims == 2 ? given.slopes.size(1) : 0,
      .batch = decode_size(call.query.size(0), "attention: a batch"),
      .heads = decode_size(key.size(1), "attention: heads"),
      .group = decode_size(call.query.size(1) / key.size(1), "attention: heads"),
      .queries = decode_size(call.query.size(2), "attention: queries"),
      .keys = decode_size(keys, "attention: keys"),
      .head_size = decode_size(call.query.size(3), "attention: a head"),
      .value_size = decode_size(given.value.size(3), "attention: a head"),
      .splits = 1,
      .row_blocks = 1,
      .page_size = decode_size(page_size, "attention: pages"),
      .page_shift = std::has_single_bit(static_cast<uint64_t>(page_size))
                        ? std::countr_zero(static_cast<uint64_t>(page_size))
                        : -1,
      .pages = paged ? decode_size(key.size(0), "attention: pages") : 0,
      .window_left = decode_window(call.window_left),
      .window_right = decode_window(call.window_right),
      .mask_kind = AttentionDecodeMask::kNone,
      .scale = static_cast<float>(call.scale),
      .value_scale = static_cast<float>(call.value_factor),
      .softcap = softcap_for_kernel(call.softcap),
      .bottom_right = call.bottom_right,
      .has_lengths = static_cast<bool>(given.lengths),
      .has_starts = static_cast<bool>(given.starts),
      .has_sinks = static_cast<bool>(given.sinks),
      .has_slopes = static_cast<bool>(given.slopes),
      .has_key_scale = static_cast<bool>(given.key_scale),
      .has_value_scale = static_cast<bool>(given.value_scale),
      .is_aligned = false};
  const auto bytes = size_of(key.type);
  const auto pack = device.a_thread_for_each_element ? 16 * bytes : bytes == 1 ? 8 : 16;
  parameters.is_aligned = is_in_packs(key, pack) && is_in_packs(given.value, pack);
  if (given.mask) {
    set_mask(parameters, given.mask);
  }
  return parameters;
}

}  // namespace

bool is_in_packs(const View& view, int64_t bytes) {
  const auto pack = bytes / size_of(view.type);
  if (!view.begins_at_multiple_of(bytes) || view.size(-1) % pack != 0) {
    return false;
  }
  for (int32_t dim = 0; dim + 1 < view.dims; ++dim) {
    if (view.size(dim) > 1 && view.stride(dim) % pack != 0) {
      return false;
    }
  }
  return true;
}

View with_features_together(Plan& plan, const View& view) {
  return view.size(-1) <= 1 || view.stride(-1) == 1 ? view : plan.contiguous(view);
}

void attention_decode(Plan& plan, const AttentionDecode& call, const Device& device) {
  if (call.lse.numel() == 0) {
    return;
  }
  const auto given = inputs_of(plan, call);
  auto parameters = parameters_of(call, given, device);
  const int64_t rows_of_head = int64_t{parameters.queries} * parameters.group;
  const auto rows = decode_rows(rows_of_head, given.key.type != given.query.type);
  const auto row_blocks = ceil_div(rows_of_head, rows.count);
  const auto features = given.value.size(3);
  const auto tasks = int64_t{parameters.batch} * parameters.heads * row_blocks;
  // Without features of the values there is only the lse, which no kernel would combine over
  // splits.
  const auto splits =
      features == 0 ? 1 : decode_splits(parameters.keys, tasks, rows.resident, device);
  parameters.splits = decode_size(splits, "attention: splits");
  parameters.row_blocks = decode_size(row_blocks, "attention: queries");
  const auto all_rows = call.lse.numel();
  View part_outs, part_sums;
  if (splits > 1) {
    part_outs = plan.allocate(Type::kFloat, {all_rows, splits, features});
    part_sums = plan.allocate(Type::kFloat, {all_rows, splits, 2});
  }
  const auto launch = [&](const Name& kernel, const LaunchGrid& grid) {
    plan.launch(kFamily, kernel, grid, call.out, call.lse, part_outs, part_sums, given.query,
                given.key, given.value, given.table, given.starts, given.lengths, given.mask,
                given.sinks, given.slopes, given.key_scale, given.value_scale, parameters, kErrors);
  };
  const auto type = Name(given.query.type);
  const auto types = type + "_" + given.key.type + rows.name;
  if (device.a_thread_for_each_element) {
    launch(Name("attention_decode_alone_") + types, grid_of_threads(tasks * splits));
  } else {
    constexpr uint64_t kThreads = 128;
    const auto size = std::max(given.query.size(3), features);
    launch(Name("attention_decode_") + types +
               (size <= 64    ? "_64"
                : size <= 128 ? "_128"
                              : "_256"),
           grid_of_threadgroups(tasks * splits, kThreads));
  }
  if (splits == 1) {
    return;
  }
  const auto combine = [&](const Name& kernel, const LaunchGrid& grid) {
    plan.launch(kFamily, kernel + type, grid, call.out, call.lse, part_outs, part_sums, given.sinks,
                given.value_scale, parameters);
  };
  if (device.a_thread_for_each_element) {
    combine("attention_decode_combine_", grid_of_elements(features, all_rows, 1));
  } else {
    combine("attention_decode_combine_simdgroup_",
            grid_of_simdgroups(all_rows * ceil_div(features, 32)));
  }
}

void attention_decode_merge(Plan& plan, const AttentionDecodeMerge& call, const Device&) {
  plan.launch(kFamily, Name("attention_decode_merge_pair_") + call.out.type,
              grid_of_elements(call.out.size(-1), call.lse.numel(), 1), call.out, call.lse,
              call.out_a, call.lse_a, call.out_b, call.lse_b);
}

void attention_decode_merge_backward(Plan& plan, const AttentionDecodeMergeBackward& call,
                                     const Device&) {
  plan.launch(kFamily, Name("attention_decode_merge_pair_backward_") + call.out_a.type,
              grid_of_simdgroups(call.lse_a.numel()), call.grad_out_a, call.grad_lse_a,
              call.grad_out_b, call.grad_lse_b, call.grad_out, call.grad_lse, call.out_a,
              call.lse_a, call.out_b, call.lse_b, call.lse_a.numel(),
              static_cast<int32_t>(call.out_a.size(-1)));
}

}  // namespace metalops::plans
