// Host side of kernels/quantized/narrow_float.metal: operators that move elements, for tensors of
// 8-bit floats. Stock MPS refuses these. Here our kernels cast them, and stock's kernels move their
// bytes.
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/quantized/narrow_float.h>
#include <metalops/kernel_name.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/torch_internals.h>

#include <memory>
#include <optional>
#include <string>

namespace {

using at::ScalarType;
using at::Tensor;
using metalops::is_narrow_float;

constexpr const char* kReason = "refuses 8-bit floats";

metalops::Library& cast_kernels() { return metalops::library("narrow_float"); }

bool is_narrow(const Tensor& tensor) {
  return tensor.defined() && is_narrow_float(tensor.scalar_type());
}

Tensor bytes_of(const Tensor& tensor) { return tensor.view(at::kByte); }

// ---- copies -------------------------------------------------------------------------------------

struct StockCopies {
  metalops::StockKernel copy{"aten::copy_", ""};
  metalops::StockKernel fill{"aten::fill_", "Scalar"};
  metalops::StockKernel fill_tensor{"aten::fill_", "Tensor"};
  metalops::StockKernel zero{"aten::zero_", ""};
};

const StockCopies& stock_copies() {
  static const StockCopies kernels;
  return kernels;
}

void run_cast(const Tensor& to, const Tensor& from, const std::string& name) {
  auto iter = at::TensorIteratorConfig()
                  .add_output(to)
                  .add_const_input(from)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .build();
  if (iter.numel() > 0) {
    cast_kernels().exec_unary_kernel(iter, name);
  }
}

bool is_cast_directly(ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

void encode(const Tensor& self, const Tensor& source) {
  run_cast(bytes_of(self), source,
           std::string("encode_") + metalops::narrow_type(self.scalar_type()));
}

void decode(const Tensor& self, const Tensor& source) {
  run_cast(self, bytes_of(source),
           std::string("decode_") + metalops::narrow_type(source.scalar_type()) + "_to_" +
               metalops::metal_type(self.scalar_type()));
}

// Casts between two dtypes on the device, via float as on the CPU.
void cast(const Tensor& self, const Tensor& source) {
  auto from = source;
  if (is_narrow(source)) {
    const bool is_last = is_cast_directly(self.scalar_type());
    if (is_last) {
      return decode(self, source);
    }
    from = at::empty(source.sizes(), source.options().dtype(at::kFloat));
    decode(from, source);
  }
  if (!is_narrow(self)) {
    Tensor to = self;
    to.copy_(from);
  } else {
    encode(self, is_cast_directly(from.scalar_type()) ? from : from.to(at::kFloat));
  }
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!is_narrow(self) && !is_narrow(source)) {
    stock_copies().copy(self, source, non_blocking);
  } else if (self.is_same(source)) {
    // Nothing to copy.
  } else if (self.scalar_type() == source.scalar_type()) {
    stock_copies().copy(bytes_of(self), bytes_of(source), non_blocking);
  } else if (!source.is_mps()) {
    self.copy_(source.to(self.scalar_type()), non_blocking);
  } else if (!self.is_mps()) {
    self.copy_(source.to(self.device(), source.scalar_type(), non_blocking));
  } else {
    cast(self, source);
  }
  return self;
}

// ---- fills and numbers --------------------------------------------------------------------------

// Returns the code that the CPU gives a number, with the CPU's errors.
at::Scalar code_of(const at::Scalar& number, ScalarType type) {
  return bytes_of(at::empty({}, at::device(at::kCPU).dtype(type)).fill_(number)).item();
}

Tensor& fill_(Tensor& self, const at::Scalar& value) {
  if (is_narrow(self)) {
    stock_copies().fill(bytes_of(self), code_of(value, self.scalar_type()));
  } else {
    stock_copies().fill(self, value);
  }
  return self;
}

Tensor& fill_with_tensor_(Tensor& self, const Tensor& value) {
  if (!is_narrow(self) && !is_narrow(value)) {
    stock_copies().fill_tensor(self, value);
    return self;
  }
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return self.copy_(value);
}

Tensor& zero_(Tensor& self) {
  stock_copies().zero(is_narrow(self) ? bytes_of(self) : self);
  return self;
}

// ---- what printing and comparing need -----------------------------------------------------------

enum Comparison { kEqual, kNotEqual };

struct StockComparisons {
  metalops::StockKernel scalar;
  metalops::StockKernel scalar_out;
  metalops::StockKernel tensor;
  metalops::StockKernel tensor_out;

  explicit StockComparisons(const char* name)
      : scalar(name, "Scalar"),
        scalar_out(name, "Scalar_out"),
        tensor(name, "Tensor"),
        tensor_out(name, "Tensor_out") {}
};

template <Comparison kind>
const StockComparisons& stock_comparisons() {
  static const StockComparisons kernels(kind == kEqual ? "aten::eq" : "aten::ne");
  return kernels;
}

Tensor widened(const Tensor& tensor) { return is_narrow(tensor) ? tensor.to(at::kFloat) : tensor; }

// Returns the tensor in the dtype in which it is compared with the other; raises torch's error for
// dtypes that do not mix.
Tensor comparable(const Tensor& self, const Tensor& other) {
  return is_narrow(self) || is_narrow(other) ? widened(self.to(at::result_type(self, other)))
                                             : self;
}

// Returns the number, rounded to the tensor's dtype.
at::Scalar comparable(const at::Scalar& number, const Tensor& self) {
  return is_narrow(self)
             ? at::empty({}, at::device(at::kCPU).dtype(self.dtype())).fill_(number).item()
             : number;
}

template <Comparison kind>
Tensor compare_with_scalar(const Tensor& self, const at::Scalar& other) {
  return stock_comparisons<kind>().scalar(widened(self), comparable(other, self));
}

template <Comparison kind>
Tensor& compare_with_scalar_out(const Tensor& self, const at::Scalar& other, Tensor& out) {
  stock_comparisons<kind>().scalar_out(widened(self), comparable(other, self), out);
  return out;
}

template <Comparison kind>
Tensor compare(const Tensor& self, const Tensor& other) {
  const auto left = comparable(self, other);
  return stock_comparisons<kind>().tensor(left, comparable(other, self));
}

template <Comparison kind>
Tensor& compare_out(const Tensor& self, const Tensor& other, Tensor& out) {
  const auto left = comparable(self, other);
  stock_comparisons<kind>().tensor_out(left, comparable(other, self), out);
  return out;
}

const metalops::StockKernel& stock_abs() {
  static const metalops::StockKernel kernel("aten::abs", "out");
  return kernel;
}

Tensor& abs_out(const Tensor& self, Tensor& out) {
  if (!is_narrow(self)) {
    stock_abs()(self, out);
    return out;
  }
  metalops::resize_and_copy(self.to(at::kFloat).abs(), out);
  return out;
}

const metalops::StockKernel& stock_isnan() {
  static const metalops::StockKernel kernel("aten::isnan", "");
  return kernel;
}

Tensor isnan(const Tensor& self) { return is_narrow(self) ? self.ne(self) : stock_isnan()(self); }

template <Comparison kind>
void replace_comparison(metalops::AtenKernels& m, const std::string& name) {
  stock_comparisons<kind>();
  m.replace((name + ".Scalar").c_str(), compare_with_scalar<kind>, kReason);
  m.replace((name + ".Scalar_out").c_str(), compare_with_scalar_out<kind>, kReason);
  m.replace((name + ".Tensor").c_str(), compare<kind>, kReason);
  m.replace((name + ".Tensor_out").c_str(), compare_out<kind>, kReason);
}

// ---- operators that move elements ---------------------------------------------------------------

// A stock operator that moves elements, called with the bytes of 8-bit floats. All floating-point
// arguments then have one dtype, except numbers; other calls go to stock.
class OnBytes final : public c10::OperatorKernel {
 public:
  explicit OnBytes(const c10::OperatorHandle& handle)
      : stock_(handle.getComputedKernelForDispatchKey(c10::DispatchKey::MPS)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto count = handle.schema().arguments().size();
    const auto first = stack->size() - count;
    const auto type = common_type(c10::ArrayRef<c10::IValue>(stack->data() + first, count));
    if (!type) {
      stock_.callBoxed(handle, keys, stack);
      return;
    }
    std::optional<Tensor> out;  // what is written, and its bytes
    std::optional<Tensor> written;
    for (size_t i = 0; i < count; ++i) {
      auto& value = (*stack)[first + i];
      const auto* alias = handle.schema().arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        out = value.toTensor();
        to_bytes(value, *type);
        written = value.toTensor();
      } else {
        to_bytes(value, *type);
      }
    }
    stock_.callBoxed(handle, keys, stack);
    auto& result = stack->back();
    if (!out) {
      result = result.toTensor().view(*type);
      return;
    }
    if (out->sizes() != written->sizes()) {  // both have one storage
      out->resize_(written->sizes());
    }
    result = *out;
  }

 private:
  // Returns the common dtype of the 8-bit floats among the arguments; nothing if there are none, or
  // data of other dtypes.
  static std::optional<ScalarType> common_type(c10::ArrayRef<c10::IValue> arguments) {
    std::optional<ScalarType> type;
    bool is_mixed = false;
    const auto see = [&](const Tensor& tensor) {
      if (is_narrow(tensor)) {
        is_mixed |= type.has_value() && *type != tensor.scalar_type();
        type = tensor.scalar_type();
      }
    };
    const auto see_other = [&](const Tensor& tensor) {
      is_mixed |= tensor.defined() && !is_narrow(tensor) && !is_number(tensor) &&
                  (tensor.is_floating_point() || tensor.is_complex());
    };
    const auto all = [&](const auto& f) {
      for (const auto& value : arguments) {
        if (value.isTensor()) {
          f(value.toTensor());
        } else if (value.isTensorList()) {
          for (const Tensor& tensor : value.toTensorList()) {
            f(tensor);
          }
        }
      }
    };
    all(see);
    if (type) {
      all(see_other);
    }
    return is_mixed ? std::nullopt : type;
  }

  static bool is_number(const Tensor& tensor) {
    return metalops::internals::is_wrapped_number(tensor);
  }

  static Tensor to_bytes(const Tensor& tensor, ScalarType type) {
    if (tensor.defined() && is_number(tensor)) {
      return bytes_of(tensor.to(type));
    }
    return is_narrow(tensor) ? bytes_of(tensor) : tensor;
  }

  static void to_bytes(c10::IValue& value, ScalarType type) {
    if (value.isTensor()) {
      value = to_bytes(value.toTensor(), type);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorList()) {
        list.push_back(to_bytes(tensor, type));
      }
      value = std::move(list);
    }
  }

  c10::SafeKernelFunction stock_;
};

void replace_mover(metalops::AtenKernels& m, const std::string& name) {
  const auto dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + name.substr(0, dot)).c_str(),
      dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  m.replace(name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OnBytes>(handle)), kReason);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  stock_copies();
  m.replace("copy_", copy_, kReason);
  m.replace("fill_.Scalar", fill_, kReason);
  m.replace("fill_.Tensor", fill_with_tensor_, kReason);
  m.replace("zero_", zero_, kReason);
  replace_comparison<kEqual>(m, "eq");
  replace_comparison<kNotEqual>(m, "ne");
  stock_abs();
  m.replace("abs.out", abs_out, kReason);
  stock_isnan();
  m.replace("isnan", isnan, kReason);
  for (const char* name : {"cat", "cat.out", "flip", "index.Tensor", "index.Tensor_out",
                           "index_select", "index_select.out", "_index_put_impl_", "masked_select",
                           "masked_select.out", "roll", "where.self", "where.self_out"}) {
    replace_mover(m, name);
  }
}

}  // namespace
