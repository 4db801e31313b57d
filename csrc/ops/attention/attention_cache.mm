// Host side of kernels/attention/attention_cache.metal: stores keys and values in a KV cache, and
// gathers them from one.
#include <ATen/ops/empty.h>
#include <csrc/ops/attention/attention_cache.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/attention/attention_cache.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

namespace {

using at::Tensor;
using metalops::MaybeTensor;
using metalops::plan_device;
using metalops::PlanRun;

void check_codes(const char* name, const char* argument, const Tensor& cache,
                 const Tensor& tokens) {
  metalops::check_metal_float(name, tokens.scalar_type());
  const auto type = cache.scalar_type();
  TORCH_CHECK(type == tokens.scalar_type() || metalops::is_cache_code(type), name, ": ", argument,
              " must have the dtype of the tokens, ", tokens.scalar_type(),
              ", or int8, float8_e4m3fn or float8_e5m2, but has ", type);
}

}  // namespace

void metalops::check_cache_scale(const char* name, const char* argument, const Tensor& cache,
                                 const MaybeTensor& scale) {
  if (!scale) {
    return;
  }
  metalops::check_same_device(name, {{cache, "a cache"}, {*scale, argument}});
  TORCH_CHECK(scale->numel() == 1 && scale->scalar_type() == at::kFloat, name, ": ", argument,
              " must be one float32, but is ", scale->scalar_type(), " of sizes ", scale->sizes());
}

Tensor metalops::gather_cache(const Tensor& cache, const MaybeTensor& block_table,
                              const Tensor& seq_lens, const MaybeTensor& scale, double number,
                              at::ScalarType type) {
  const auto length = (block_table ? block_table->size(1) : 1) * cache.size(1);
  const auto tokens = at::empty({seq_lens.size(0), length, cache.size(2), cache.size(3)},
                                cache.options().dtype(type));
  PlanRun run;
  plans::attention_cache_gather(run.plan(),
                                {.tokens = run.view(tokens),
                                 .cache = run.view(cache),
                                 .lengths = run.view(seq_lens),
                                 .table = run.view(block_table),
                                 .scale = run.view(scale),
                                 .number = number},
                                plan_device());
  run.run();
  return tokens;
}

namespace {

// ---- the operators ------------------------------------------------------------------------------

// key, value: (T, Hkv, E). Caches: (pages, page size, Hkv, E).
void reshape_and_cache(const Tensor& key, const Tensor& value, Tensor& key_cache,
                       Tensor& value_cache, const Tensor& slot_mapping, const MaybeTensor& k_scale,
                       const MaybeTensor& v_scale, double key_number, double value_number) {
  constexpr const char* kName = "reshape_and_cache";
  metalops::check_same_device(kName, {{key, "key"},
                                      {value, "value"},
                                      {key_cache, "key_cache"},
                                      {value_cache, "value_cache"},
                                      {slot_mapping, "slot_mapping"}});
  TORCH_CHECK(slot_mapping.dim() == 1 && (slot_mapping.scalar_type() == at::kLong ||
                                          slot_mapping.scalar_type() == at::kInt),
              kName, ": slot_mapping must be integers of one dimension, but is ",
              slot_mapping.scalar_type(), " of sizes ", slot_mapping.sizes());
  const auto check_one = [&](const char* name, const char* cache_name, const Tensor& tokens,
                             const Tensor& cache, const char* scale_name,
                             const MaybeTensor& scale) {
    check_codes(kName, cache_name, cache, tokens);
    TORCH_CHECK(tokens.dim() == 3 && tokens.size(0) == slot_mapping.size(0), kName, ": ", name,
                " must have sizes (", slot_mapping.size(0), ", heads, features), but has ",
                tokens.sizes());
    TORCH_CHECK(
        cache.dim() == 4 && cache.size(2) == tokens.size(1) && cache.size(3) == tokens.size(2),
        kName, ": ", cache_name, " must have sizes (pages, page size, ", tokens.size(1), ", ",
        tokens.size(2), "), but has ", cache.sizes());
    metalops::check_cache_scale(kName, scale_name, cache, scale);
  };
  // Both are checked before the first one is stored.
  check_one("key", "key_cache", key, key_cache, "k_scale", k_scale);
  check_one("value", "value_cache", value, value_cache, "v_scale", v_scale);
  const auto store = [&](const Tensor& tokens, const Tensor& cache, const MaybeTensor& scale,
                         double number) {
    PlanRun run;
    metalops::plans::attention_cache_store_at_slots(run.plan(),
                                                    {.cache = run.view(cache),
                                                     .tokens = run.view(tokens),
                                                     .slots = run.view(slot_mapping),
                                                     .scale = run.view(scale),
                                                     .number = number},
                                                    plan_device());
    run.run();
  };
  store(key, key_cache, k_scale, key_number);
  store(value, value_cache, v_scale, value_number);
}

void check_rotation(const char* name, const Tensor& tokens, const MaybeTensor& cosines,
                    const MaybeTensor& sines) {
  if (!cosines || !sines) {
    return;
  }
  TORCH_CHECK(cosines->dim() == 2 && cosines->sizes() == sines->sizes() &&
                  2 * cosines->size(1) <= tokens.size(3),
              name, ": rotary_cos and rotary_sin must have sizes (places, at most ",
              tokens.size(3) / 2, "), but have ", cosines->sizes(), " and ", sines->sizes());
  TORCH_CHECK(cosines->scalar_type() == tokens.scalar_type() &&
                  sines->scalar_type() == tokens.scalar_type(),
              name, ": rotary_cos and rotary_sin must have dtype ", tokens.scalar_type(),
              ", but have ", cosines->scalar_type(), " and ", sines->scalar_type());
}

// Appends tokens, (B, L, Hkv, E), to sequences of which the cache has seq_lens tokens. cache:
// (pages, page size, Hkv, E), or (samples, tokens, Hkv, E) without a block table.
void append_to_cache(Tensor& cache, const Tensor& tokens, const Tensor& seq_lens,
                     const MaybeTensor& block_table, const MaybeTensor& rotary_cos,
                     const MaybeTensor& rotary_sin, bool interleaved) {
  constexpr const char* kName = "append_to_cache";
  metalops::check_same_device(kName,
                              {{cache, "cache"}, {tokens, "tokens"}, {seq_lens, "seq_lens"}});
  check_codes(kName, "cache", cache, tokens);
  TORCH_CHECK(tokens.dim() == 4 && cache.dim() == 4 && cache.size(2) == tokens.size(2) &&
                  cache.size(3) == tokens.size(3),
              kName,
              ": tokens (B, L, heads, features) and cache must have the same heads and "
              "features, but have sizes ",
              tokens.sizes(), " and ", cache.sizes());
  TORCH_CHECK(seq_lens.dim() == 1 && seq_lens.size(0) == tokens.size(0), kName,
              ": seq_lens must have sizes [", tokens.size(0), "], but has ", seq_lens.sizes());
  TORCH_CHECK(block_table ? block_table->dim() == 2 && block_table->size(0) == tokens.size(0) &&
                                block_table->scalar_type() == at::kInt
                          : cache.size(0) == tokens.size(0),
              kName, ": block_table must be int32 of sizes [", tokens.size(0),
              ", pages], or cache have as many samples");
  check_rotation(kName, tokens, rotary_cos, rotary_sin);
  PlanRun run;
  metalops::plans::attention_cache_store_behind(run.plan(),
                                                {.cache = run.view(cache),
                                                 .tokens = run.view(tokens),
                                                 .lengths = run.view(seq_lens),
                                                 .table = run.view(block_table),
                                                 .cosines = run.view(rotary_cos),
                                                 .sines = run.view(rotary_sin),
                                                 .interleaved = interleaved},
                                                plan_device());
  run.run();
}

// Applies rotary embeddings to tokens, (B, L, H, E), which are at the positions from seq_lens on
// or, unless `advances`, all at position seq_lens.
Tensor rotate_tokens(const Tensor& tokens, const Tensor& seq_lens, const Tensor& rotary_cos,
                     const Tensor& rotary_sin, bool interleaved, bool advances) {
  constexpr const char* kName = "rotate_tokens";
  metalops::check_same_device(kName, {{tokens, "tokens"},
                                      {seq_lens, "seq_lens"},
                                      {rotary_cos, "rotary_cos"},
                                      {rotary_sin, "rotary_sin"}});
  metalops::check_metal_float(kName, tokens.scalar_type());
  TORCH_CHECK(tokens.dim() == 4 && seq_lens.dim() == 1 && seq_lens.size(0) == tokens.size(0), kName,
              ": tokens must have 4 dimensions and seq_lens as many elements as samples, but they "
              "have sizes ",
              tokens.sizes(), " and ", seq_lens.sizes());
  check_rotation(kName, tokens, rotary_cos, rotary_sin);
  const auto result = at::empty(tokens.sizes(), tokens.options());
  PlanRun run;
  metalops::plans::attention_cache_rotate(run.plan(),
                                          {.result = run.view(result),
                                           .tokens = run.view(tokens),
                                           .lengths = run.view(seq_lens),
                                           .cosines = run.view(rotary_cos),
                                           .sines = run.view(rotary_sin),
                                           .interleaved = interleaved,
                                           .advances = advances},
                                          plan_device());
  run.run();
  return result;
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  using c10::DispatchKey;
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("metalops::reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
        "Tensor(b!) value_cache, Tensor slot_mapping, Tensor? k_scale, Tensor? v_scale, "
        "float key_number, float value_number) -> ()",
        tags);
  m.def("metalops::append_to_cache(Tensor(a!) cache, Tensor tokens, Tensor seq_lens, "
        "Tensor? block_table, Tensor? rotary_cos, Tensor? rotary_sin, bool interleaved) -> ()",
        tags);
  m.def("metalops::rotate_tokens(Tensor tokens, Tensor seq_lens, Tensor rotary_cos, "
        "Tensor rotary_sin, bool interleaved, bool advances) -> Tensor",
        tags);
  m.impl("reshape_and_cache", torch::dispatch(DispatchKey::MPS, TORCH_FN(reshape_and_cache)));
  m.impl("append_to_cache", torch::dispatch(DispatchKey::MPS, TORCH_FN(append_to_cache)));
  m.impl("rotate_tokens", torch::dispatch(DispatchKey::MPS, TORCH_FN(rotate_tokens)));
  metalops::autograd::implement_in_place_or_view(m, "metalops::reshape_and_cache");
  metalops::autograd::implement_in_place_or_view(m, "metalops::append_to_cache");
  metalops::autograd::implement_not_differentiable(
      m, "metalops::rotate_tokens",
      "derivative for metalops::rotate_tokens is not implemented: caches are for inference",
      /*inplace=*/false);
}

}  // namespace
