#include <csrc/plans/attention/attention.h>
#include <csrc/plans/attention/attention_decode.h>
#include <kernels/attention/attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace metalops::plans {

namespace {

const Library kAttention("attention", /*has_products=*/true);
constexpr int64_t kAttentionThreads = 128;

constexpr auto kTileQueries = static_cast<int64_t>(AttentionTile::kRows);
constexpr auto kTensorTileQueries = static_cast<int64_t>(AttentionTile::kRowsOfTensors);
constexpr auto kTileKeys = static_cast<int64_t>(AttentionTile::kColumns);
constexpr auto kMostTileFeatures = static_cast<int64_t>(AttentionTile::kMostFeatures);

// The largest size in 32 bits that leaves room for what kernels add to sizes.
constexpr int64_t kLargestAttention = int64_t{1} << 30;

int32_t attention_size(int64_t size, const char* what) {
  return checked_int32(size, kLargestAttention, what);
}

int32_t attention_window(int64_t window) {
  return window < 0 ? -1 : static_cast<int32_t>(std::min(window, kLargestAttention / 2));
}

// ---- sizes --------------------------------------------------------------------------------------

struct AttentionSizes {
  int64_t batch, heads, key_heads, queries, keys, all_queries, all_keys, head_size, value_size;
  bool is_packed;
};

AttentionSizes attention_sizes(const AttentionInputs& in) {
  const bool is_packed = static_cast<bool>(in.cu_seqlens_q);
  const auto all_queries = in.query.size(is_packed ? 0 : 2);
  const auto all_keys = in.key.size(is_packed ? 0 : 2);
  // No sequence is longer than all of them together, whatever max_seqlen says.
  return {.batch = is_packed ? in.cu_seqlens_q.size(0) - 1 : in.query.size(0),
          .heads = in.query.size(1),
          .key_heads = in.key.size(1),
          .queries = is_packed ? std::clamp<int64_t>(in.max_seqlen_q, 0, all_queries) : all_queries,
          .keys = is_packed ? std::clamp<int64_t>(in.max_seqlen_k, 0, all_keys) : all_keys,
          .all_queries = all_queries,
          .all_keys = all_keys,
          .head_size = in.query.size(-1),
          .value_size = in.value.size(-1),
          .is_packed = is_packed};
}

// Returns the number of threadgroups for all tiles of so many tokens of each head.
int64_t attention_groups(const AttentionSizes& sizes, int64_t length, int64_t tile, int64_t heads,
                         const char* tokens) {
  constexpr int64_t kMost = (int64_t{1} << 32) - 1;
  const auto groups = ceil_div(length, tile) * heads * sizes.batch;
  if (groups > kMost) {
    throw TooLarge("attention: " + std::to_string(sizes.batch) + " times " + std::to_string(heads) +
                   " heads of " + std::to_string(length) + " " + tokens + " are too many for MPS");
  }
  return groups;
}

// The kernels that are compiled for at most so many features.
struct AttentionFeatures {
  int64_t most;
  const char* name;
};

AttentionFeatures attention_compiled_for(int64_t features) {
  constexpr std::array<AttentionFeatures, 5> kCompiled{
      {{32, "32_"}, {64, "64_"}, {96, "96_"}, {128, "128_"}, {256, "256_"}}};
  return *std::find_if(kCompiled.begin(), kCompiled.end(), [&](const AttentionFeatures& compiled) {
    return features <= compiled.most;
  });
}

AttentionFeatures attention_backward_compiled_for(int64_t features) {
  const auto compiled = attention_compiled_for(features);
  return compiled.most == 96 ? AttentionFeatures{128, "128_"} : compiled;
}

// ---- what kernels take --------------------------------------------------------------------------

int32_t attention_rows(const View& view) { return view.dims == 4 ? 2 : 0; }

// Returns the view, or a copy of it that kernels can read: features are contiguous and rows are at
// most 2^31 - 1 elements apart.
View attention_readable(Plan& plan, const View& view) {
  const auto rows = attention_rows(view);
  const bool is_readable =
      (view.size(-1) <= 1 || view.stride(-1) == 1) &&
      (view.size(rows) <= 1 || (view.stride(rows) >= view.size(-1) &&
                                view.stride(rows) <= std::numeric_limits<int32_t>::max()));
  return is_readable ? view : plan.contiguous(view);
}

AttentionStrides attention_strides(const View& view) {
  const auto rows = attention_rows(view);
  return {view.dims == 4 ? view.stride(0) : 0, view.stride(1),
          view.size(rows) <= 1 ? std::max<int64_t>(view.size(-1), 1) : view.stride(rows)};
}

void set_mask(AttentionParameters& p, const View& mask) {
  for (int32_t dim = 0; dim < 4; ++dim) {
    p.mask[dim] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
    p.mask_sizes[dim] = static_cast<int32_t>(mask.size(dim));
  }
  p.mask_kind = mask.type == Type::kBool    ? AttentionMask::kBool
                : mask.type == Type::kFloat ? AttentionMask::kFloat
                                            : AttentionMask::kSame;
}

void set_dropout(AttentionParameters& p, double dropout) {
  p.drops = dropout > 0;
  p.drops_all = dropout >= 1;
  p.keep_scale = p.drops_all ? 1.0f : static_cast<float>(1 / (1 - dropout));
  p.dropout_threshold = static_cast<uint32_t>(
      std::min(std::round(dropout * 0x1p32), static_cast<double>(0xffffffffu)));
}

// The kernels' arguments, without results.
struct AttentionArguments {
  View query, key, value, mask, sinks, slopes, cu_queries, cu_keys, lengths, random;
  AttentionParameters parameters{};
};

AttentionArguments attention_arguments(Plan& plan, const AttentionInputs& in,
                                       const AttentionSizes& sizes) {
  AttentionArguments given{
      .query = attention_readable(plan, in.query),
      .key = attention_readable(plan, in.key),
      .value = attention_readable(plan, in.value),
      .mask = in.attn_mask,
      .sinks = plan.contiguous(in.sinks, Type::kFloat),
      .slopes = plan.contiguous(in.alibi_slopes, Type::kFloat),
      .cu_queries = plan.contiguous(in.cu_seqlens_q, Type::kInt),
      .cu_keys = plan.contiguous(in.cu_seqlens_k, Type::kInt),
      .lengths = plan.contiguous(in.seqused_k, Type::kInt),
      .random = in.dropout_p > 0 ? plan.contiguous(in.rng, Type::kLong) : View{},
      .parameters = {}};
  if (sizes.head_size == 0) {
    // As in torch, queries without features attend to no key.
    given.lengths = plan.allocate(Type::kInt, {sizes.batch});
    plan.fill(given.lengths, 0);
  }
  auto& p = given.parameters;
  p.query = attention_strides(given.query);
  p.key = attention_strides(given.key);
  p.value = attention_strides(given.value);
  p.batch = attention_size(sizes.batch, "attention: a batch");
  p.heads = attention_size(sizes.heads, "attention: heads");
  p.heads_of_a_key = static_cast<int32_t>(sizes.heads / std::max<int64_t>(sizes.key_heads, 1));
  p.queries = attention_size(sizes.queries, "attention: queries");
  p.keys = attention_size(sizes.keys, "attention: keys");
  p.all_queries = attention_size(sizes.all_queries, "attention: queries");
  p.all_keys = attention_size(sizes.all_keys, "attention: keys");
  p.head_size = static_cast<int32_t>(sizes.head_size);
  p.value_size = static_cast<int32_t>(sizes.value_size);
  p.lse_batch = sizes.is_packed ? 0 : sizes.heads * sizes.queries;
  p.lse_head = sizes.all_queries;
  p.slopes_batch = in.alibi_slopes && in.alibi_slopes.dims == 2 ? sizes.heads : 0;
  p.window_left = attention_window(in.window_left);
  p.window_right = attention_window(in.window_right);
  if (given.mask) {
    set_mask(p, given.mask);
  }
  p.scale = static_cast<float>(in.scale);
  p.softcap = softcap_for_kernel(in.softcap);
  set_dropout(p, in.dropout_p);
  p.bottom_right = in.bottom_right;
  p.is_packed = sizes.is_packed;
  p.has_lengths = static_cast<bool>(given.lengths);
  p.has_sinks = static_cast<bool>(given.sinks);
  p.has_slopes = static_cast<bool>(given.slopes);
  p.is_aligned = is_in_packs(given.key, 16) && is_in_packs(given.value, 16);
  return given;
}

// ---- forward ------------------------------------------------------------------------------------

void attend_few_queries(Plan& plan, const AttentionForward& call, const Device& device) {
  const auto& in = call.inputs;
  attention_decode(plan,
                   {.out = call.out,
                    .lse = call.lse,
                    .query = in.query,
                    .key = in.key,
                    .value = in.value,
                    .mask = in.attn_mask,
                    .sinks = in.sinks,
                    .slopes = in.alibi_slopes,
                    .lengths = in.seqused_k,
                    .key_scale = call.k_scale,
                    .scale = in.scale,
                    .softcap = in.softcap,
                    .window_left = in.window_left,
                    .window_right = in.window_right,
                    .bottom_right = in.bottom_right},
                   device);
}

// ---- backward -----------------------------------------------------------------------------------

// One call: its members add the launches of one gradient each.
class AttentionGradients {
 public:
  AttentionGradients(Plan& plan, const AttentionBackward& call, const Device& device)
      : plan_(plan),
        call_(call),
        device_(device),
        sizes_(attention_sizes(call.inputs)),
        given_(attention_arguments(plan, call.inputs, sizes_)),
        type_(call.inputs.query.type),
        grad_(attention_readable(plan, with_dtype(call.grad_out, call.inputs.query.type))),
        lse_(plan.contiguous(call.lse)) {
    // Tokens that no kernel visits have gradients of zero.
    has_others_ = sizes_.is_packed || p().has_lengths || sizes_.heads == 0;
    by_simdgroups_ = are_by_simdgroups();
    p().grad_out = attention_strides(grad_);
    p().has_grad_lse = static_cast<bool>(call.grad_lse);
  }

  // Adds what all gradients need of each row.
  void statistics() {
    const auto out = attention_readable(plan_, call_.out);
    p().out = attention_strides(out);
    statistics_ = plan_.allocate(Type::kFloat, {lse_.numel(), 2});
    plan_.launch(kAttention, Name("attention_statistics_") + type_,
                 grid_of_simdgroups(lse_.numel()), statistics_, out, grad_,
                 plan_.contiguous(call_.grad_lse, Type::kFloat), given_.query, given_.key, lse_,
                 given_.mask, given_.sinks, given_.slopes, given_.cu_queries, given_.cu_keys,
                 given_.lengths, p());
  }

  // Adds the gradients of the queries and of the slopes.
  void grad_query() {
    const auto grad_query = gradient_of(call_.inputs.query, call_.grad_query);
    p().grad_query = attention_strides(grad_query);
    if (by_simdgroups_) {
      const auto tile = tile_by_simdgroups(sizes_.queries, sizes_.heads);
      plan_.launch(kAttention, name_by_simdgroups("attention_grad_query_", tile),
                   grid_of_tiles(sizes_.queries, tile, sizes_.heads), grad_query, given_.query,
                   given_.key, given_.value, grad_, lse_, statistics_, given_.cu_queries,
                   given_.cu_keys, given_.lengths, p());
      return;
    }
    const auto groups =
        attention_groups(sizes_, sizes_.queries, kTileQueries, sizes_.heads, "tokens");
    const auto sums = given_.slopes ? plan_.allocate(Type::kFloat, {groups}) : View{};
    plan_.launch(kAttention,
                 Name("attention_grad_query_") +
                     attention_backward_compiled_for(sizes_.head_size).name + type_,
                 grid_of_threadgroups(groups, kAttentionThreads), grad_query, sums, given_.query,
                 given_.key, given_.value, grad_, lse_, statistics_, given_.mask, given_.slopes,
                 given_.cu_queries, given_.cu_keys, given_.lengths, given_.random, p());
    if (call_.grad_slopes) {
      const auto tiles = static_cast<int32_t>(ceil_div(sizes_.queries, kTileQueries));
      in_float(call_.grad_slopes, [&](const View& grad_slopes) {
        plan_.launch(kAttention, "attention_grad_slopes",
                     grid_of_threadgroups(grad_slopes.numel(), kAttentionThreads), grad_slopes,
                     sums, p(), tiles);
      });
    }
  }

  void grad_key_value() {
    const auto grad_key = gradient_of(call_.inputs.key, call_.grad_key);
    const auto grad_value = gradient_of(call_.inputs.value, call_.grad_value);
    p().grad_key = attention_strides(grad_key);
    p().grad_value = attention_strides(grad_value);
    const auto heads = sizes_.heads == 0 ? 0 : sizes_.key_heads;
    if (by_simdgroups_) {
      const auto tile = tile_by_simdgroups(sizes_.keys, heads);
      plan_.launch(kAttention, name_by_simdgroups("attention_grad_key_value_", tile),
                   grid_of_tiles(sizes_.keys, tile, heads), grad_key, grad_value, given_.query,
                   given_.key, given_.value, grad_, lse_, statistics_, given_.cu_queries,
                   given_.cu_keys, given_.lengths, p());
      return;
    }
    const auto tile =
        device_.has_tensors ? static_cast<int64_t>(AttentionTile::kColumnsOfTensors) : kTileKeys;
    plan_.launch(kAttention,
                 Name("attention_grad_key_value_") +
                     attention_backward_compiled_for(most_features()).name + type_,
                 grid_of_threadgroups(attention_groups(sizes_, sizes_.keys, tile, heads, "tokens"),
                                      kAttentionThreads),
                 grad_key, grad_value, given_.query, given_.key, given_.value, grad_, lse_,
                 statistics_, given_.mask, given_.slopes, given_.cu_queries, given_.cu_keys,
                 given_.lengths, given_.random, p());
  }

  void grad_mask() {
    const auto& mask = given_.mask;
    const auto& grad_mask = call_.grad_mask;
    for (int32_t dim = 0; dim < 4; ++dim) {
      p().grad_mask[dim] = grad_mask.stride(dim);
    }
    const auto down = mask.size(2) == 1 ? 1 : ceil_div(sizes_.queries, kTileQueries);
    const auto across = mask.size(3) == 1 ? 1 : ceil_div(sizes_.keys, kTileKeys);
    const auto groups = grad_mask.numel() == 0 ? 0 : mask.size(0) * mask.size(1) * down * across;
    plan_.launch(kAttention, Name("attention_grad_mask_") + type_,
                 grid_of_threadgroups(groups, kAttentionThreads), grad_mask, given_.query,
                 given_.key, given_.value, grad_, lse_, statistics_, given_.mask, given_.slopes,
                 given_.lengths, given_.random, grad_mask, p());
  }

  void grad_sinks() {
    in_float(call_.grad_sinks, [&](const View& grad_sinks) {
      plan_.launch(kAttention, "attention_grad_sinks",
                   grid_of_threadgroups(grad_sinks.numel(), kAttentionThreads), grad_sinks,
                   given_.sinks, lse_, statistics_, p());
    });
  }

 private:
  AttentionParameters& p() { return given_.parameters; }

  int64_t most_features() const { return std::max(sizes_.head_size, sizes_.value_size); }

  // Returns true if kernels keep scores in cooperative tensors: where simdgroups multiply together,
  // and if weights depend on positions by the window alone.
  bool are_by_simdgroups() {
    return device_.has_tensors && device_.has_warpgroups && most_features() <= kMostTileFeatures &&
           call_.inputs.query.type != Type::kFloat && !given_.mask && !p().has_slopes &&
           p().softcap == 0 && !p().drops && p().scale >= 1e-20f && p().scale <= 1e20f;
  }

  // Returns the number of tokens of a tile. Where tiles of one warpgroup are no more than
  // multiprocessors, larger ones leave some idle.
  int64_t tile_by_simdgroups(int64_t length, int64_t heads) const {
    constexpr auto kLarge = static_cast<int64_t>(AttentionTile::kRowsOfWarpgroups);
    const bool are_few =
        ceil_div(length, kTensorTileQueries) * heads * sizes_.batch <= device_.multiprocessors;
    return are_few || most_features() <= 64 ? kTensorTileQueries : kLarge;
  }
  Name name_by_simdgroups(const char* kernel, int64_t tile) const {
    return Name(kernel) + (tile == kTensorTileQueries ? "by_warpgroup_" : "by_simdgroups_") +
           (most_features() <= 64 ? "64_" : "128_") + type_;
  }
  // A simdgroup has 16 tokens of a tile.
  LaunchGrid grid_of_tiles(int64_t length, int64_t tile, int64_t heads) const {
    return grid_of_threadgroups(attention_groups(sizes_, length, tile, heads, "tokens"), tile * 2);
  }

  View with_dtype(const View& view, Type type) {
    return view.type == type ? view : plan_.copied(view, type);
  }

  // Returns memory for the gradient of tokens, that of the caller if it is wanted.
  View gradient_of(const View& tokens, const View& wanted) {
    const auto gradient =
        wanted ? wanted
        : tokens.dims == 4
            ? plan_.allocate(tokens.type,
                             {tokens.size(0), tokens.size(1), tokens.size(2), tokens.size(3)})
            : plan_.allocate(tokens.type, {tokens.size(0), tokens.size(1), tokens.size(2)});
    if (has_others_) {
      plan_.fill(gradient, 0);
    }
    return gradient;
  }

  // Adds launches that write a contiguous gradient in float32.
  template <class Launches>
  void in_float(const View& gradient, const Launches& launches) {
    if (gradient.type == Type::kFloat) {
      launches(gradient);
      return;
    }
    const auto sums = gradient.dims == 2
                          ? plan_.allocate(Type::kFloat, {gradient.size(0), gradient.size(1)})
                          : plan_.allocate(Type::kFloat, {gradient.size(0)});
    launches(sums);
    plan_.copy(gradient, sums);
  }

  Plan& plan_;
  const AttentionBackward& call_;
  const Device& device_;
  AttentionSizes sizes_;
  AttentionArguments given_;
  Name type_;
  View grad_;
  View lse_;
  View statistics_;
  bool has_others_ = false;
  bool by_simdgroups_ = false;
};

}  // namespace

bool is_for_few_queries(const AttentionInputs& inputs) {
  constexpr int64_t kFew = 8;
  const auto sizes = attention_sizes(inputs);
  return !sizes.is_packed && inputs.dropout_p == 0 && sizes.queries <= kFew &&
         sizes.key_heads > 0 && sizes.queries * sizes.heads <= kMostDecodeRows * sizes.key_heads;
}

void attention_forward(Plan& plan, const AttentionForward& call, const Device& device) {
  if (is_for_few_queries(call.inputs)) {
    attend_few_queries(plan, call, device);
    return;
  }
  const auto sizes = attention_sizes(call.inputs);
  auto given = attention_arguments(plan, call.inputs, sizes);
  if (sizes.is_packed) {
    // Tokens that belong to no sequence keep these values.
    plan.fill(call.out, 0);
    plan.fill(call.lse, -std::numeric_limits<double>::infinity());
  }
  given.parameters.out = attention_strides(call.out);
  given.parameters.has_key_scale = static_cast<bool>(call.k_scale);
  const auto most = std::max(sizes.head_size, sizes.value_size);
  const auto type = call.inputs.query.type;
  const bool by_simdgroups = device.has_tensors && most <= kMostTileFeatures &&
                             type != Type::kFloat && !device.a_thread_for_each_element;
  const bool by_warpgroups = by_simdgroups && device.has_warpgroups;
  // Where tiles of one warpgroup are no more than multiprocessors, larger ones leave some idle.
  const bool by_warpgroup =
      by_warpgroups && ceil_div(sizes.queries, kTensorTileQueries) * sizes.heads * sizes.batch <=
                           device.multiprocessors;
  const bool is_large = by_warpgroups && !by_warpgroup;
  const auto tile = is_large ? static_cast<int64_t>(AttentionTile::kRowsOfWarpgroups)
                    : device.has_tensors && sizes.value_size <= kMostTileFeatures
                        ? kTensorTileQueries
                        : kTileQueries;
  const auto threads = is_large ? 2 * kAttentionThreads : kAttentionThreads;
  const auto groups = attention_groups(sizes, sizes.queries, tile, sizes.heads, "queries");
  plan.launch(kAttention,
              Name(by_warpgroup    ? "attention_forward_by_warpgroup_"
                   : by_simdgroups ? "attention_forward_by_simdgroups_"
                                   : "attention_forward_") +
                  attention_compiled_for(by_simdgroups ? most : sizes.value_size).name + type,
              grid_of_threadgroups(groups, threads), call.out, call.lse, given.query, given.key,
              given.value, given.mask, given.sinks, given.slopes, given.cu_queries, given.cu_keys,
              given.lengths, given.random, call.k_scale, given.parameters);
}

void attention_backward(Plan& plan, const AttentionBackward& call, const Device& device) {
  AttentionGradients backward(plan, call, device);
  backward.statistics();
  if (call.grad_query || call.grad_slopes) {
    backward.grad_query();
  }
  if (call.grad_key || call.grad_value) {
    backward.grad_key_value();
  }
  if (call.grad_mask) {
    backward.grad_mask();
  }
  if (call.grad_sinks) {
    backward.grad_sinks();
  }
}

}  // namespace metalops::plans
