// Products by csrc/ops/matmul/gemm.h in the place of stock MPS's, while the fix "matmul" is on.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/matmul/gemm.h>
#include <metalops/checks.h>

#include <array>
#include <optional>
#include <tuple>

namespace {

using at::Scalar;
using at::Tensor;
using Sizes = at::DimVector;

// ---- checks -------------------------------------------------------------------------------------

void check_operands(const char* name, const Tensor& left, const Tensor& right) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(), name,
              ": expected operands of the same dtype, but got ", left.scalar_type(), " and ",
              right.scalar_type());
  metalops::check_dtype(metalops::has_gemm(left.scalar_type()), name, left.scalar_type());
}

Sizes sizes_of_mm(const char* name, const Tensor& left, const Tensor& right) {
  TORCH_CHECK(left.dim() == 2, "self must be a matrix");
  TORCH_CHECK(right.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(left.size(1) == right.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              left.size(0), "x", left.size(1), " and ", right.size(0), "x", right.size(1), ")");
  check_operands(name, left, right);
  return {left.size(0), right.size(1)};
}

Sizes sizes_of_bmm(const char* name, const Tensor& left, const Tensor& right) {
  TORCH_CHECK(left.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(right.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(right.size(0) == left.size(0) && right.size(1) == left.size(2),
              "Expected size for first two dimensions of batch2 tensor to be: [", left.size(0),
              ", ", left.size(2), "] but got: [", right.size(0), ", ", right.size(1), "].");
  check_operands(name, left, right);
  return {left.size(0), left.size(1), right.size(2)};
}

void prepare_out(Tensor& out, const Tensor& operand, at::IntArrayRef sizes) {
  TORCH_CHECK(out.scalar_type() == operand.scalar_type(), "Expected out tensor to have dtype ",
              operand.dtype(), ", but got ", out.dtype(), " instead");
  at::native::resize_output(out, sizes);
}

// ---- operators ----------------------------------------------------------------------------------

// Each has a name, the sizes of its result, which it checks the operands for, and run(), which
// writes the result.

using Added = std::optional<metalops::GemmAdded>;

struct Mm {
  static constexpr const char* name = "mm";
  static constexpr auto sizes = sizes_of_mm;
  static constexpr auto run = metalops::gemm;
};

struct Bmm {
  static constexpr const char* name = "bmm";
  static constexpr auto sizes = sizes_of_bmm;
  static constexpr auto run = metalops::gemm;
};

struct Addmm : Mm {
  static constexpr const char* name = "addmm";
};

struct Baddbmm : Bmm {
  static constexpr const char* name = "baddbmm";
};

struct Addmv {
  static constexpr const char* name = "addmv";

  static Sizes sizes(const char* name, const Tensor& matrix, const Tensor& vector) {
    TORCH_CHECK(matrix.dim() == 2 && vector.dim() == 1,
                "vector + matrix @ vector expected, got matrix and vector of ", matrix.dim(),
                " and ", vector.dim(), " dimensions");
    TORCH_CHECK(matrix.size(1) == vector.size(0), "size mismatch, got mat (", matrix.size(0), "x",
                matrix.size(1), "), vec (", vector.size(0), ")");
    check_operands(name, matrix, vector);
    return {matrix.size(0)};
  }

  static void run(const char* name, const Tensor& out, const Tensor& matrix, const Tensor& vector,
                  const Added& added) {
    const auto column = added->tensor.unsqueeze(1);
    metalops::gemm(name, out.unsqueeze(1), matrix, vector.unsqueeze(1),
                   metalops::GemmAdded{column, added->beta, added->alpha});
  }
};

// The sum of the products of a batch is one product, along the dimensions K of all.
struct Addbmm {
  static constexpr const char* name = "addbmm";

  static Sizes sizes(const char* name, const Tensor& left, const Tensor& right) {
    const auto sizes = sizes_of_bmm(name, left, right);
    return {sizes[1], sizes[2]};
  }

  static void run(const char* name, const Tensor& out, const Tensor& left, const Tensor& right,
                  const Added& added) {
    const auto depth = left.size(0) * left.size(2);
    metalops::gemm(name, out, left.transpose(0, 1).reshape({left.size(1), depth}),
                   right.reshape({depth, right.size(2)}), added);
  }
};

template <class Operator>
Tensor& product_out(const Tensor& left, const Tensor& right, Tensor& out) {
  metalops::check_same_device(Operator::name, {{out, "out"}, {left, "self"}, {right, "mat2"}});
  prepare_out(out, left, Operator::sizes(Operator::name, left, right));
  Operator::run(Operator::name, out, left, right, std::nullopt);
  return out;
}

template <class Operator>
Tensor product(const Tensor& left, const Tensor& right) {
  metalops::check_same_device(Operator::name, {{left, "self"}, {right, "mat2"}});
  auto out = at::empty(Operator::sizes(Operator::name, left, right), left.options());
  Operator::run(Operator::name, out, left, right, std::nullopt);
  return out;
}

// Returns the sizes of the result.
template <class Operator>
Sizes check_sum(const Tensor& self, const Tensor& left, const Tensor& right) {
  metalops::check_same_device(Operator::name, {{self, "self"}, {left, "mat1"}, {right, "mat2"}});
  TORCH_CHECK(self.scalar_type() == left.scalar_type(), Operator::name,
              ": self and the operands must have the same dtype, but got ", self.scalar_type(),
              " and ", left.scalar_type());
  return Operator::sizes(Operator::name, left, right);
}

template <class Operator>
Tensor& sum_out(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                const Scalar& alpha, Tensor& out) {
  const auto sizes = check_sum<Operator>(self, left, right);
  metalops::check_same_device(Operator::name, {{out, "out"}, {self, "self"}});
  const auto added = *at::expand_size(self, sizes, Operator::name);
  prepare_out(out, left, sizes);
  Operator::run(Operator::name, out, left, right, metalops::GemmAdded{added, beta, alpha});
  return out;
}

template <class Operator>
Tensor sum(const Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
           const Scalar& alpha) {
  const auto sizes = check_sum<Operator>(self, left, right);
  auto out = at::empty(sizes, left.options());
  const auto added = *at::expand_size(self, sizes, Operator::name);
  Operator::run(Operator::name, out, left, right, metalops::GemmAdded{added, beta, alpha});
  return out;
}

template <class Operator>
Tensor& sum_in_place(Tensor& self, const Tensor& left, const Tensor& right, const Scalar& beta,
                     const Scalar& alpha) {
  const auto sizes = check_sum<Operator>(self, left, right);
  TORCH_CHECK(self.sizes() == sizes, Operator::name, "_: output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(sizes));
  Operator::run(Operator::name, self, left, right, metalops::GemmAdded{self, beta, alpha});
  return self;
}

// ---- linear -------------------------------------------------------------------------------------

// Returns the tensor as rows of its last dimension.
Tensor rows_of(const Tensor& tensor) {
  int64_t rows = 1;
  for (const auto size : tensor.sizes().slice(0, tensor.dim() - 1)) {
    rows *= size;
  }
  return tensor.reshape({rows, tensor.size(-1)});
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr auto kName = "linear";
  const bool has_bias = bias.has_value() && bias->defined();
  metalops::check_same_device(kName, {{input, "input"}, {weight, "weight"}});
  TORCH_CHECK(input.dim() > 0 && (weight.dim() == 1 || weight.dim() == 2),
              "linear: expected an input of at least one dimension and a weight of one or two, but "
              "got ",
              input.dim(), " and ", weight.dim());
  const auto matrix = weight.dim() == 1 ? weight.unsqueeze(0) : weight;
  const auto rows = rows_of(input);
  const auto sizes = sizes_of_mm(kName, rows, matrix.t());
  Sizes result_sizes(input.sizes().begin(), input.sizes().end() - 1);
  result_sizes.push_back(matrix.size(0));
  auto result = at::empty(sizes, input.options());
  if (has_bias) {
    metalops::check_same_device(kName, {{input, "input"}, {*bias, "bias"}});
    TORCH_CHECK(bias->scalar_type() == input.scalar_type(), "linear: bias has dtype ",
                bias->scalar_type(), ", but the input ", input.scalar_type());
    // A bias of one row is that of all rows, whatever the sizes of the input.
    const auto added = bias->numel() == bias->size(-1) ? bias->reshape({1, -1}).expand(sizes)
                                                       : rows_of(bias->expand(result_sizes));
    metalops::gemm(kName, result, rows, matrix.t(), metalops::GemmAdded{added, 1, 1});
  } else {
    metalops::gemm(kName, result, rows, matrix.t(), std::nullopt);
  }
  if (weight.dim() == 1) {
    result_sizes.pop_back();
  }
  return result.view(result_sizes);
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& input, const Tensor& grad,
                                                   const Tensor& weight, std::array<bool, 3> mask) {
  metalops::check_same_device("linear_backward",
                              {{input, "self"}, {grad, "grad_output"}, {weight, "weight"}});
  const auto matrix = weight.dim() == 1 ? weight.unsqueeze(0) : weight;
  const auto rows = weight.dim() == 1 ? grad.reshape({-1, 1}) : rows_of(grad);
  Tensor of_input;
  Tensor of_weight;
  Tensor of_bias;
  if (mask[0]) {
    of_input = product<Mm>(rows, matrix).view(input.sizes());
  }
  if (mask[1]) {
    of_weight = product<Mm>(rows.t(), rows_of(input)).view(weight.sizes());
  }
  if (mask[2]) {
    of_bias = at::sum(rows, 0);
  }
  return {of_input, of_weight, of_bias};
}

// ---- registration -------------------------------------------------------------------------------

const metalops::Fix kMatmul("matmul", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("mm", product<Mm>, reason);
  m.replace("mm.out", product_out<Mm>, reason);
  m.replace("bmm", product<Bmm>, reason);
  m.replace("bmm.out", product_out<Bmm>, reason);
  m.replace("addmm", sum<Addmm>, reason);
  m.replace("addmm.out", sum_out<Addmm>, reason);
  m.replace("addmm_", sum_in_place<Addmm>, reason);
  m.replace("baddbmm", sum<Baddbmm>, reason);
  m.replace("baddbmm.out", sum_out<Baddbmm>, reason);
  m.replace("baddbmm_", sum_in_place<Baddbmm>, reason);
  m.replace("addbmm", sum<Addbmm>, reason);
  m.replace("addbmm.out", sum_out<Addbmm>, reason);
  m.replace("addbmm_", sum_in_place<Addbmm>, reason);
  m.replace("addmv", sum<Addmv>, reason);
  m.replace("addmv.out", sum_out<Addmv>, reason);
  m.replace("addmv_", sum_in_place<Addmv>, reason);
  m.replace("linear", linear, reason);
  m.replace("linear_backward", linear_backward, reason);
});

}  // namespace
