// Host side of kernels/attention/attention_cache.metal: stores keys and values in a KV cache, and
// gathers them from one.
#include <ATen/ops/empty.h>
#include <csrc/ops/attention/attention_cache.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/attention/attention_arguments.h>
#include <csrc/plans/attention/attention_cache.h>
#include <metalops/autograd.h>
#include <metalops/library.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using metalops::MaybeTensor;
using metalops::plan_device;
using metalops::PlanRun;

}  // namespace

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
  metalops::Operands of("reshape_and_cache");
  // Both are checked before the first one is stored.
  metalops::check_arguments(metalops::plans::check_reshape_and_cache,
                            {of(key, "key"), of(value, "value"), of(key_cache, "key_cache"),
                             of(value_cache, "value_cache"), of(slot_mapping, "slot_mapping"),
                             of(k_scale, "k_scale"), of(v_scale, "v_scale")});
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

// Appends tokens, (B, L, Hkv, E), to sequences of which the cache has seq_lens tokens. cache:
// (pages, page size, Hkv, E), or (samples, tokens, Hkv, E) without a block table.
void append_to_cache(Tensor& cache, const Tensor& tokens, const Tensor& seq_lens,
                     const MaybeTensor& block_table, const MaybeTensor& rotary_cos,
                     const MaybeTensor& rotary_sin, bool interleaved) {
  metalops::Operands of("append_to_cache");
  metalops::check_arguments(
      metalops::plans::check_append_to_cache,
      {of(cache, "cache"), of(tokens, "tokens"), of(seq_lens, "seq_lens"),
       of(block_table, "block_table"), of(rotary_cos, "rotary_cos"), of(rotary_sin, "rotary_sin")});
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
  metalops::Operands of("rotate_tokens");
  metalops::check_arguments(metalops::plans::check_rotate_tokens,
                            {of(tokens, "tokens"), of(seq_lens, "seq_lens"),
                             of(rotary_cos, "rotary_cos"), of(rotary_sin, "rotary_sin")});
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
