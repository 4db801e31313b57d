// Checks of the arguments of operators on quantised weights and on weights of GGUF files. Fields
// have the names of the schemas in csrc/ops/quantized; what no check needs is left out.
#pragma once
#include <csrc/plans/arguments.h>
#include <csrc/plans/quantized/quantized.h>

#include <cstdint>
#include <string_view>

namespace metalops::plans {

// Returns the mode of that name; raises ValueError if there is none. name: the operator's.
QuantizedMode quantized_mode(const char* name, std::string_view mode);

struct QuantizeArguments {
  Operand weight, global_scale;
  int64_t bits = 0;
  int64_t group_size = 0;
  Text mode;
};
void check_quantize(const QuantizeArguments& arguments);

// Quantised weights: packed (..., rows, bytes).
struct QuantizedWeightArguments {
  Operand packed, scales, biases, global_scale;
  int64_t bits = 0;
  int64_t group_size = 0;
  Text mode;
};

struct DequantizeArguments {
  QuantizedWeightArguments weights;
  Operand indices;
  Type dtype = Type::kNone;
};
void check_dequantize(const DequantizeArguments& arguments);

struct QuantizedMatmulArguments {
  Operand x;
  QuantizedWeightArguments weights;
  Operand bias, left_index, right_index;
  bool transpose = true;
};
void check_quantized_matmul(const QuantizedMatmulArguments& arguments);

struct QuantizedScalesGradientArguments {
  Operand grad, packed, scales;
  int64_t bits = 0;
  int64_t group_size = 0;
  Text mode;
};
void check_quantized_scales_gradient(const QuantizedScalesGradientArguments& arguments);

struct GgufDequantizeArguments {
  Operand data, indices;
  int64_t qtype = 0;
  Type dtype = Type::kNone;
};
void check_gguf_dequantize(const GgufDequantizeArguments& arguments);

struct GgufLinearArguments {
  Operand x, data, bias;
  int64_t qtype = 0;
};
void check_gguf_linear(const GgufLinearArguments& arguments);

}  // namespace metalops::plans
