#include <csrc/plans/quantized/gguf.h>
#include <csrc/plans/quantized/skinny_gemm.h>

#include <limits>
#include <string>

namespace metalops::plans {

namespace {

bool has_blocks_of_256(GgufType type) {
  return (type >= GgufType::kQ2_K && type <= GgufType::kQ6_K) || type == GgufType::kIQ4_XS;
}

// Returns the kernels' name of a type that is known at compile time, else an empty name.
const char* gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return "Q4_0_";
    case GgufType::kQ8_0:
      return "Q8_0_";
    case GgufType::kQ4_K:
      return "Q4_K_";
    case GgufType::kQ5_K:
      return "Q5_K_";
    case GgufType::kQ6_K:
      return "Q6_K_";
    case GgufType::kIQ4_NL:
      return "IQ4_NL_";
    case GgufType::kIQ4_XS:
      return "IQ4_XS_";
    default:
      return "";
  }
}

bool has_table(GgufType type) { return type == GgufType::kIQ4_NL || type == GgufType::kIQ4_XS; }

// Returns the tile of a product, and sets the product's splits.
ProductTile tile_of(GgufProduct& p, Type element, const Device& device) {
  const char* const type = gguf_type_name(p.right.type);
  if (type[0] != '\0' && element != Type::kFloat && p.rows <= most_rows_of_matrices(device) &&
      (p.rows > 1 || (has_table(p.right.type) && device.multiprocessors > 0))) {
    return tile_of_matrices("gguf_skinny_", type, p.rows);
  }
  if (p.rows > kMostSkinnyRows) {
    return p.rows <= 32 ? ProductTile{"gguf_tiles_small_", 16, 64, 128, true}
                        : ProductTile{"gguf_tiles_large_", 64, 64, 128, true};
  }
  const bool is_one = p.rows == 1;
  ProductTile tile{is_one ? "gguf_skinny_1_" : "gguf_skinny_", is_one ? 1 : 4, 8};
  if (type[0] == '\0' || has_table(p.right.type)) {
    return tile;
  }
  tile.kernel = tile.kernel + type;
  tile.columns = !is_one ? 2 : p.right.type == GgufType::kQ4_K ? 8 : 4;
  p.splits = splits_of(tile.groups(1, p.rows, p.columns), p.inner);
  tile.columns *= 4 / p.splits;
  return tile;
}

}  // namespace

int64_t gguf_block_bytes(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
    case GgufType::kIQ4_NL:
      return 18;
    case GgufType::kQ4_1:
      return 20;
    case GgufType::kQ5_0:
      return 22;
    case GgufType::kQ5_1:
      return 24;
    case GgufType::kQ8_0:
      return 34;
    case GgufType::kQ2_K:
      return 84;
    case GgufType::kQ3_K:
      return 110;
    case GgufType::kQ4_K:
      return 144;
    case GgufType::kQ5_K:
      return 176;
    case GgufType::kQ6_K:
      return 210;
    case GgufType::kIQ4_XS:
      return 136;
    case GgufType::kMXFP4:
      return 17;
  }
  return 0;
}

GgufLayout gguf_layout(int64_t lines, int64_t line_bytes, GgufType type) {
  const auto bytes = gguf_block_bytes(type);
  const int shift = has_blocks_of_256(type) ? 8 : 5;
  return {.line_bytes = line_bytes,
          .lines = lines,
          .inner = static_cast<int32_t>(line_bytes / bytes << shift),
          .block_shift = shift,
          .block_bytes = static_cast<int32_t>(bytes),
          .type = type};
}

void gguf_dequantize(Plan& plan, const GgufDequantize& call, const Device&) {
  const auto rows = call.result.size(0);
  if (rows > std::numeric_limits<uint32_t>::max()) {
    throw TooLarge("gguf_dequantize: " + std::to_string(rows) + " rows are too many for MPS");
  }
  const auto layout =
      gguf_layout(call.data.size(0), call.data.size(1), static_cast<GgufType>(call.qtype));
  plan.launch("gguf", Name("gguf_dequantize_") + call.result.type,
              grid_of_elements(layout.inner / 8, rows, 1), call.result, plan.contiguous(call.data),
              plan.contiguous(call.indices), layout, static_cast<bool>(call.indices), kErrors);
}

void gguf_linear(Plan& plan, const GgufLinear& call, const Device& device) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() - 64;  // rounded up to a tile
  const auto size = [](int64_t x) { return checked_int32(x, kLargest, "gguf_linear: a size"); };
  const auto layout =
      gguf_layout(call.data.size(0), call.data.size(1), static_cast<GgufType>(call.qtype));
  GgufProduct p{.right = layout,
                .rows = size(call.x.size(0)),
                .columns = size(call.data.size(0)),
                .inner = layout.inner,
                .splits = 1,
                .has_bias = static_cast<bool>(call.bias)};
  const auto x = aligned(plan, call.x, 16);
  const auto data = aligned(plan, call.data, 16);  // rows are loaded as whole words
  const auto bias = plan.contiguous(call.bias);
  const auto type = call.x.type;
  const char* const name = gguf_type_name(layout.type);
  if (p.rows == 1 && name[0] != '\0' && !has_table(layout.type) &&
      suits_gemv(p.columns, p.inner, device)) {
    const auto gemv = gemv_of(p.columns, p.inner);
    plan.launch("gguf", Name("gguf_gemv_") + name + type, gemv.grid, call.result, x, data, bias, p,
                gemv.lines);
    return;
  }
  const auto tile = tile_of(p, type, device);
  plan.launch({"gguf", /*has_products=*/tile.is_of_tile_gemm}, tile.kernel + type,
              grid_of_threadgroups(tile.groups(1, p.rows, p.columns), tile.threads), call.result, x,
              data, bias, p);
}

}  // namespace metalops::plans
