// Host side of kernels/attention/attention_cache.metal: stores keys and values in a KV cache, and
// gathers them from one.
#include <ATen/ops/empty.h>
#include <csrc/ops/attention/attention_cache.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <kernels/attention/attention_cache.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

namespace {

using at::Tensor;
using metalops::CacheParameters;
using metalops::CachePlaces;
using metalops::KernelName;
using metalops::MaybeTensor;

metalops::Library& cache_kernels() { return metalops::library("attention_cache"); }

metalops::CacheStrides cache_strides(const Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

int32_t cache_size(int64_t size) {
  return metalops::checked_int32(size, metalops::kInt32Max, "a cache of size");
}

KernelName cache_types(at::ScalarType tokens, at::ScalarType cache) {
  return KernelName(metalops::metal_type(tokens)) + "_" + metalops::cache_type(cache);
}

void check_codes(const char* name, const char* argument, const Tensor& cache,
                 const Tensor& tokens) {
  metalops::check_metal_float(name, tokens.scalar_type());
  const auto type = cache.scalar_type();
  TORCH_CHECK(type == tokens.scalar_type() || metalops::is_cache_code(type), name, ": ", argument,
              " must have the dtype of the tokens, ", tokens.scalar_type(),
              ", or int8, float8_e4m3fn or float8_e5m2, but has ", type);
}

CacheParameters cache_parameters(const Tensor& tokens, const Tensor& cache) {
  return {.tokens = cache_strides(tokens),
          .cache = cache_strides(cache),
          .table_stride = 0,
          .slots = cache.size(0) * cache.size(1),
          .batch = cache_size(tokens.size(0)),
          .length = cache_size(tokens.size(1)),
          .heads = cache_size(tokens.size(2)),
          .features = cache_size(tokens.size(3)),
          .page_size = cache_size(cache.size(1)),
          .pages = cache_size(cache.size(0)),
          .places = CachePlaces::kOwn,
          .rotated = 0,
          .angles = 0,
          .scale = 1,
          .has_scale = false,
          .has_wide_slots = false,
          .has_table = false,
          .interleaved = false,
          .advances = true};
}

std::array<uint64_t, 3> cache_grid(const Tensor& tokens) {
  return {static_cast<uint64_t>(tokens.size(3)), static_cast<uint64_t>(tokens.size(2)),
          static_cast<uint64_t>(tokens.size(0) * tokens.size(1))};
}

// Launches the kernel that stores tokens, (B, L, H, E), in the cache.
void store_in_cache(const Tensor& cache, const Tensor& tokens, const MaybeTensor& slots,
                    const MaybeTensor& lengths, const MaybeTensor& table,
                    const MaybeTensor& cosines, const MaybeTensor& sines, const MaybeTensor& scale,
                    const CacheParameters& parameters) {
  if (tokens.numel() == 0) {
    return;
  }
  metalops::launch_grid(
      cache_kernels(),
      KernelName("attention_cache_store_") + cache_types(tokens.scalar_type(), cache.scalar_type()),
      cache_grid(tokens), cache, tokens, slots.value_or(tokens), lengths.value_or(tokens),
      table.value_or(tokens), cosines.value_or(tokens), sines.value_or(tokens),
      scale.value_or(tokens), parameters, metalops::kErrorBuffer);
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

const char* metalops::cache_type(at::ScalarType type) {
  return type == at::kChar            ? "char"
         : type == at::kFloat8_e4m3fn ? "e4m3"
         : type == at::kFloat8_e5m2   ? "e5m2"
                                      : metalops::metal_type(type);
}

Tensor metalops::gather_cache(const Tensor& cache, const MaybeTensor& block_table,
                              const Tensor& seq_lens, const MaybeTensor& scale, double number,
                              at::ScalarType type) {
  const auto length = (block_table ? block_table->size(1) : 1) * cache.size(1);
  const auto tokens = at::empty({seq_lens.size(0), length, cache.size(2), cache.size(3)},
                                cache.options().dtype(type));
  if (tokens.numel() == 0) {
    return tokens;
  }
  const auto table = block_table ? block_table->contiguous() : tokens;
  const auto lengths = seq_lens.to(at::kInt).contiguous();
  auto parameters = cache_parameters(tokens, cache);
  parameters.scale = static_cast<float>(number);
  parameters.has_scale = scale.has_value();
  parameters.has_table = block_table.has_value();
  parameters.table_stride = block_table ? table.stride(0) : 0;
  launch_grid(cache_kernels(),
              KernelName("attention_cache_gather_") + cache_types(type, cache.scalar_type()),
              cache_grid(tokens), tokens, cache, lengths, table, scale.value_or(tokens), parameters,
              kErrorBuffer);
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
  const auto slots = slot_mapping.contiguous();
  const auto check_one = [&](const char* name, const char* cache_name, const Tensor& tokens,
                             const Tensor& cache, const char* scale_name,
                             const MaybeTensor& scale) {
    check_codes(kName, cache_name, cache, tokens);
    TORCH_CHECK(tokens.dim() == 3 && tokens.size(0) == slots.size(0), kName, ": ", name,
                " must have sizes (", slots.size(0), ", heads, features), but has ",
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
    const auto from = tokens.unsqueeze(1);
    auto parameters = cache_parameters(from, cache);
    parameters.places = CachePlaces::kSlots;
    parameters.has_wide_slots = slots.scalar_type() == at::kLong;
    parameters.scale = static_cast<float>(number);
    parameters.has_scale = scale.has_value();
    store_in_cache(cache, from, slots, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
                   scale, parameters);
  };
  store(key, key_cache, k_scale, key_number);
  store(value, value_cache, v_scale, value_number);
}

struct CacheRotation {
  MaybeTensor cosines;
  MaybeTensor sines;
};

CacheRotation cache_rotation(const char* name, const Tensor& tokens, const MaybeTensor& cosines,
                             const MaybeTensor& sines, bool interleaved,
                             CacheParameters& parameters) {
  if (!cosines || !sines) {
    return {};
  }
  TORCH_CHECK(cosines->dim() == 2 && cosines->sizes() == sines->sizes() &&
                  2 * cosines->size(1) <= tokens.size(3),
              name, ": rotary_cos and rotary_sin must have sizes (places, at most ",
              tokens.size(3) / 2, "), but have ", cosines->sizes(), " and ", sines->sizes());
  TORCH_CHECK(cosines->scalar_type() == tokens.scalar_type() &&
                  sines->scalar_type() == tokens.scalar_type(),
              name, ": rotary_cos and rotary_sin must have dtype ", tokens.scalar_type(),
              ", but have ", cosines->scalar_type(), " and ", sines->scalar_type());
  parameters.rotated = static_cast<int32_t>(2 * cosines->size(1));
  parameters.angles = cache_size(cosines->size(0));
  parameters.interleaved = interleaved;
  return {cosines->contiguous(), sines->contiguous()};
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
  auto parameters = cache_parameters(tokens, cache);
  parameters.places = CachePlaces::kBehind;
  const auto rotation =
      cache_rotation(kName, tokens, rotary_cos, rotary_sin, interleaved, parameters);
  MaybeTensor table;
  parameters.slots = cache.size(1);
  if (block_table) {
    table = block_table->contiguous();
    parameters.has_table = true;
    parameters.table_stride = table->stride(0);
    parameters.slots *= table->size(1);
  }
  store_in_cache(cache, tokens, std::nullopt, seq_lens.to(at::kInt).contiguous(), table,
                 rotation.cosines, rotation.sines, std::nullopt, parameters);
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
  const auto result = at::empty(tokens.sizes(), tokens.options());
  auto parameters = cache_parameters(tokens, result);
  parameters.advances = advances;
  const auto rotation =
      cache_rotation(kName, tokens, rotary_cos, rotary_sin, interleaved, parameters);
  store_in_cache(result, tokens, std::nullopt, seq_lens.to(at::kInt).contiguous(), std::nullopt,
                 rotation.cosines, rotation.sines, std::nullopt, parameters);
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
