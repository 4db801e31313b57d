// Gives Python the C++ interface of torch's Metal classes, so that the tests can reach every
// flavour of the elementwise calls and every member of MetalKernelFunction. Objective-C++ on macOS,
// C++ elsewhere.
#include <ATen/TensorIterator.h>
#include <ATen/native/mps/OperationUtils.h>
#include <ATen/ops/empty.h>
#include <metalops/library.h>
#include <torch/library.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "metal_tests.h"

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;

at::TensorIterator iterate(const Tensor& out, std::initializer_list<Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .allow_cpu_scalars(true)
      .promote_inputs_to_common_dtype(true)
      .resize_outputs(false)
      .add_output(out);
  for (const Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  return config.build();
}

std::optional<uint32_t> threshold(std::optional<int64_t> value) {
  return value ? std::optional<uint32_t>(*value) : std::nullopt;
}

void unary(const Tensor& out, const Tensor& input, std::string library, std::string name,
           const std::optional<Scalar>& alpha, std::optional<ScalarType> alpha_type,
           std::optional<int64_t> ilp) {
  auto iter = iterate(out, {input});
  metalops::library(library).exec_unary_kernel(iter, name, alpha, alpha_type, threshold(ilp));
}

void binary(const Tensor& out, const Tensor& a, const Tensor& b, std::string library,
            std::string name, const std::optional<Scalar>& alpha,
            std::optional<ScalarType> alpha_type, std::optional<ScalarType> natural,
            std::optional<int64_t> ilp) {
  auto iter = iterate(out, {a, b});
  metalops::library(library).exec_binary_kernel(iter, name, alpha, alpha_type, natural,
                                                threshold(ilp));
}

void ternary(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& c,
             std::string library, std::string name, const std::optional<Scalar>& alpha) {
  auto iter = iterate(out, {a, b, c});
  metalops::library(library).exec_ternary_kernel(iter, name, alpha);
}

// ilp: torch 2.14 and later take one more argument.
void unary_affine(const Tensor& out, const Tensor& input, double scale, double shift,
                  std::optional<int64_t> ilp) {
  auto iter = iterate(out, {input});
  const AffineParams params{static_cast<float>(scale), static_cast<float>(shift)};
  const auto call = [&](auto& library) {
    if constexpr (requires {
                    library.exec_unary_kernel_with_params(iter, "affine", params, "AffineParams",
                                                          threshold(ilp));
                  }) {
      library.exec_unary_kernel_with_params(iter, "affine", params, "AffineParams", threshold(ilp));
    } else {
      library.exec_unary_kernel_with_params(iter, "affine", params, "AffineParams");
    }
  };
  call(metalops::library("metal_tests"));
}

void binary_affine(const Tensor& out, const Tensor& a, const Tensor& b, double scale,
                   double shift) {
  auto iter = iterate(out, {a, b});
  const AffineParams params{static_cast<float>(scale), static_cast<float>(shift)};
  metalops::library("metal_tests")
      .exec_binary_kernel_with_params(iter, "affine_sum", params, "AffineParams");
}

void unary_raw(const Tensor& out, const Tensor& input, std::string name,
               std::optional<int64_t> ilp) {
  using at::native::mps::getMTLBufferStorage;
  metalops::library("metal_tests")
      .exec_unary_kernel_raw(name, getMTLBufferStorage(input),
                             input.storage_offset() * input.element_size(), input.scalar_type(),
                             getMTLBufferStorage(out), out.storage_offset() * out.element_size(),
                             out.scalar_type(), out.numel(), threshold(ilp));
}

// For each of the outputs, on torch's CPU threads as its own operators use them.
void unary_on_cpu_threads(at::TensorList outs, const Tensor& input, std::string library,
                          std::string name) {
  const Tensor each = at::empty({static_cast<int64_t>(outs.size())}, at::kByte);
  const char* const begin = static_cast<const char*>(each.const_data_ptr());
  at::TensorIterator::borrowing_nullary_op(each).for_each(
      [&](char** data, const int64_t*, int64_t size) {
        for (int64_t i = 0; i < size; ++i) {
          auto iter = iterate(outs[data[0] - begin + i], {input});
          metalops::library(library).exec_unary_kernel(iter, name);
        }
      },
      /*grain_size=*/1);
}

// Microseconds for one call of exec_unary_kernel, the iterator's construction not counted.
double time_unary(const Tensor& out, const Tensor& input, std::string name, int64_t calls) {
  auto iter = iterate(out, {input});
  auto& library = metalops::library("metal_tests");
  library.exec_unary_kernel(iter, name);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    library.exec_unary_kernel(iter, name);
  }
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / calls;
}

// Runs fill(out, value, increments) step by step; `mistake` leaves a step out or puts it where it
// must not be.
void fill(const Tensor& out, double value, std::vector<int64_t> increments, std::string mistake) {
  MetalKernelFunction* kernel = metalops::library("metal_tests").getCachedKernelFunctionPtr("fill");
  if (mistake == "start outside") {
    kernel->startEncoding();
  }
  kernel->runCommandBlock([&] {
    if (mistake == "nested") {
      kernel->runCommandBlock([] {});
    }
    if (mistake != "no start") {
      kernel->startEncoding();
    }
    kernel->setArg(0, out);
    kernel->setArg(1, static_cast<float>(value));
    if (mistake != "unbound") {
      kernel->setArg(2, increments);
    }
    kernel->dispatch(out.numel());
  });
  if (mistake == "set outside") {
    kernel->setArg(1, 1.0f);
  }
}

// One command block with two launches that share their bindings.
void fill_twice(const Tensor& out, double first, double second) {
  auto kernel = metalops::library("metal_tests").getKernelFunction("fill");
  const std::vector<int64_t> none{0};
  kernel->runCommandBlock([&] {
    kernel->startEncoding();
    kernel->setArg(0, out);
    kernel->setArg(1, static_cast<float>(first));
    kernel->setArg(2, none);
    kernel->dispatch(static_cast<uint64_t>(out.numel()));
    kernel->setArg(1, static_cast<float>(second));
    kernel->dispatch(static_cast<uint64_t>(out.numel() / 2), 7);
  });
}

bool gpu_address_counts_the_offset(const Tensor& tensor) {
  const auto* address = static_cast<char*>(at::native::mps::get_tensor_gpu_address(tensor));
  const auto* whole =
      static_cast<char*>(at::native::mps::get_tensor_gpu_address(tensor.as_strided({1}, {1}, 0)));
  return address - whole == tensor.storage_offset() * tensor.element_size();
}

// A kernel that stays usable after its library is gone, and a library with parameters in its
// source.
void from_source(const Tensor& out, std::string source) {
  std::shared_ptr<MetalKernelFunction> kernel;
  {
    DynamicMetalShaderLibrary library(source);
    kernel = library.getKernelFunction("run");
  }
  kernel->runCommandBlock([&] {
    kernel->startEncoding();
    kernel->setArg(0, out);
    const uint64_t length = out.numel();
    kernel->dispatch(at::ArrayRef<uint64_t>(length));
  });
}

bool parametrised_source(std::string source, std::string parameter) {
  MetalShaderLibrary library(source, 1);
  return library.getPipelineStateForFunc("run", {parameter}) ==
             library.getPipelineStateForFunc("run", {parameter}) &&
         library.hasFunction("run") && !library.hasFunction("walk");
}

bool wrong_source_throws_c10_syntax_error(std::string source) {
  try {
    DynamicMetalShaderLibrary library(source);
  } catch (const c10::SyntaxError& error) {
    return std::string(error.what_without_backtrace()).find("program_source:") != std::string::npos;
  }
  return false;
}

int64_t number_of_functions(std::string source) {
  return DynamicMetalShaderLibrary(source).getFunctionNames().size();
}

std::string type_name(ScalarType type) { return at::native::mps::scalarToMetalTypeString(type); }

}  // namespace

TORCH_LIBRARY(metal_tests, m) {
  m.def("unary(Tensor(a!) out, Tensor input, str library, str name, Scalar? alpha=None, "
        "ScalarType? alpha_type=None, "
        "int? ilp_threshold=None) -> ()",
        unary);
  m.def("binary(Tensor(a!) out, Tensor a, Tensor b, str library, str name, Scalar? alpha=None, "
        "ScalarType? alpha_type=None, ScalarType? natural=None, int? ilp_threshold=None) -> ()",
        binary);
  m.def("ternary(Tensor(a!) out, Tensor a, Tensor b, Tensor c, str library, str name, "
        "Scalar? alpha=None) -> ()",
        ternary);
  m.def("unary_affine(Tensor(a!) out, Tensor input, float scale, float shift, int? ilp=None) -> ()",
        unary_affine);
  m.def("binary_affine(Tensor(a!) out, Tensor a, Tensor b, float scale, float shift) -> ()",
        binary_affine);
  m.def("unary_raw(Tensor(a!) out, Tensor input, str name, int? ilp_threshold=None) -> ()",
        unary_raw);
  m.def("unary_on_cpu_threads(Tensor(a!)[] outs, Tensor input, str library, str name) -> ()",
        unary_on_cpu_threads);
  m.def("time_unary(Tensor(a!) out, Tensor input, str name, int calls) -> float", time_unary);
  m.def("fill(Tensor(a!) out, float value, int[] increments, str mistake='') -> ()", fill);
  m.def("fill_twice(Tensor(a!) out, float first, float second) -> ()", fill_twice);
  m.def("gpu_address_counts_the_offset(Tensor tensor) -> bool", gpu_address_counts_the_offset);
  m.def("from_source(Tensor(a!) out, str source) -> ()", from_source);
  m.def("parametrised_source(str source, str parameter) -> bool", parametrised_source);
  m.def("wrong_source_throws_c10_syntax_error(str source) -> bool",
        wrong_source_throws_c10_syntax_error);
  m.def("number_of_functions(str source) -> int", number_of_functions);
  m.def("type_name(ScalarType type) -> str", type_name);
}
