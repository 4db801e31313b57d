#include <ATen/ops/as_strided.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <csrc/ops/common/run_plan.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>

#include <algorithm>
#include <cstdint>

namespace {

using at::Tensor;
using metalops::plans::Argument;
using metalops::plans::ArgumentKind;
using metalops::plans::Step;
using metalops::plans::StepKind;
using metalops::plans::Type;
using metalops::plans::View;

static_assert(static_cast<int>(Type::kBfloat16) == static_cast<int>(at::kBFloat16) &&
              static_cast<int>(Type::kFloat8E4m3) == static_cast<int>(at::kFloat8_e4m3fn) &&
              static_cast<int>(Type::kFloat8E5m2) == static_cast<int>(at::kFloat8_e5m2) &&
              static_cast<int>(Type::kComplexFloat) == static_cast<int>(at::kComplexFloat));

// Returns the largest power of two of which a tensor's start is a multiple, in bytes.
int32_t alignment_of(const Tensor& tensor) {
  const auto bytes = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  const auto lowest = bytes & -bytes;
  return static_cast<int32_t>(lowest == 0 ? View::kMemory
                                          : std::min<int64_t>(lowest, View::kMemory));
}

bool is_whole(const View& view, const Tensor& tensor) {
  const auto dims = static_cast<size_t>(view.dims);
  return view.offset == 0 && view.is_conj == tensor.is_conj() &&
         view.type == static_cast<Type>(tensor.scalar_type()) &&
         tensor.sizes() == at::IntArrayRef(view.sizes, dims) &&
         tensor.strides() == at::IntArrayRef(view.strides, dims);
}

void multiply(const Step& step, Tensor result, const Tensor& a, const Tensor& b) {
  if (step.beta == 0 && step.alpha == 1) {
    if (result.is_contiguous()) {
      at::bmm_out(result, a, b);
    } else {
      result.copy_(at::bmm(a, b));
    }
  } else if (step.beta == 1 && step.alpha == -1) {
    result.sub_(at::bmm(a, b));
  } else {
    result.copy_(at::baddbmm(result, a, b, step.beta, step.alpha));
  }
}

}  // namespace

metalops::plans::Device metalops::plan_device(bool has_tensors) {
  return {.multiprocessors = 0,
          .a_thread_for_each_element = metalops::a_thread_for_each_element(),
          .has_tensors = has_tensors};
}

metalops::plans::Device metalops::plan_device_of(std::string_view family) {
  return plan_device(/*has_tensors=*/&matmul_library(family) != &library(family));
}

View metalops::PlanRun::add(const Tensor& tensor, int64_t dims) {
  TORCH_CHECK_VALUE(dims <= View::kMostDims, "a plan takes tensors of at most ", View::kMostDims,
                    " dimensions, not ", dims);
  TORCH_INTERNAL_ASSERT(!tensor.is_neg());
  tensors_.push_back(tensor);
  return {.buffer = plan_.add_given(),
          .type = static_cast<Type>(tensor.scalar_type()),
          .dims = static_cast<int32_t>(dims),
          .alignment = alignment_of(tensor),
          .is_conj = tensor.is_conj()};
}

View metalops::PlanRun::view(const Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  auto view = add(tensor, tensor.dim());
  std::copy_n(tensor.sizes().begin(), view.dims, view.sizes);
  std::copy_n(tensor.strides().begin(), view.dims, view.strides);
  return view;
}

View metalops::PlanRun::batch_view(const Tensor& tensor, int32_t ends) {
  if (!tensor.defined()) {
    return {};
  }
  TORCH_INTERNAL_ASSERT(ends <= tensor.dim());
  auto view = add(tensor, ends + 1);
  const auto first_end = tensor.dim() - ends;
  auto& count = view.sizes[0];
  count = 1;
  for (auto dim = first_end; dim-- > 0;) {
    const auto size = tensor.size(dim);
    if (size != 1) {
      TORCH_INTERNAL_ASSERT(count == 1 || tensor.stride(dim) == count * view.strides[0]);
      view.strides[0] = count == 1 ? tensor.stride(dim) : view.strides[0];
      count *= size;
    }
  }
  std::copy_n(tensor.sizes().begin() + first_end, ends, view.sizes + 1);
  std::copy_n(tensor.strides().begin() + first_end, ends, view.strides + 1);
  return view;
}

View metalops::PlanRun::view(const MaybeTensor& tensor) { return tensor ? view(*tensor) : View{}; }

Tensor metalops::PlanRun::tensor(const View& view) const {
  const auto& whole = tensors_[view.buffer];
  if (is_whole(view, whole)) {
    return whole;
  }
  auto resolved = whole.is_conj() ? whole.conj() : whole;  // memory as it is
  if (view.type == Type::kFloat && whole.is_complex()) {
    resolved = at::view_as_real(resolved);
  }
  const auto part = resolved.as_strided({view.sizes, static_cast<size_t>(view.dims)},
                                        {view.strides, static_cast<size_t>(view.dims)},
                                        resolved.storage_offset() + view.offset);
  return view.is_conj ? part.conj() : part;
}

std::vector<Tensor> metalops::PlanRun::results() const {
  std::vector<Tensor> tensors;
  for (const auto& view : plan_.results()) {
    tensors.push_back(tensor(view));
  }
  return tensors;
}

const Tensor& metalops::PlanRun::beginning(const View& view) {
  if (view.offset == 0) {
    return tensors_[view.buffer];
  }
  if (parts_.size() < tensors_.size()) {
    parts_.resize(tensors_.size());
  }
  auto& [known, part] = parts_[view.buffer];
  if (known.offset != view.offset || known.type != view.type) {
    known = view;
    part = tensor(view);
  }
  return part;
}

void metalops::PlanRun::launch(const Step& step) {
  auto& library = step.library.has_products ? metalops::matmul_library(step.library.family)
                                            : metalops::library(step.library.family);
  KernelName name = *step.name.begin();
  for (const auto* part = step.name.begin() + 1; part != step.name.end(); ++part) {
    name = name + *part;
  }
  auto& function = metalops::kernel(library, name);
  // A kernel's buffers must be bound, also those that it does not read: they get the last one,
  // which is rarely a result.
  const Tensor* absent = nullptr;
  for (int32_t i = step.arguments_count; absent == nullptr && i-- > 0;) {
    if (step.arguments[i].kind == ArgumentKind::kView) {
      absent = &tensors_[static_cast<const View*>(step.arguments[i].value)->buffer];
    }
  }
  metalops::encode(function, [&] {
    for (int32_t i = 0; i < step.arguments_count; ++i) {
      const Argument& argument = step.arguments[i];
      switch (argument.kind) {
        case ArgumentKind::kNothing:
          function.setArg(i, *absent);
          break;
        case ArgumentKind::kView:
          function.setArg(i, beginning(*static_cast<const View*>(argument.value)));
          break;
        case ArgumentKind::kBytes:
          function.setArg(i, argument.value, argument.size);
          break;
        case ArgumentKind::kErrors:
          function.setErrorBufferIndex(i);
          break;
      }
    }
    metalops::dispatch(function, step.grid);
  });
}

void metalops::PlanRun::run() {
  const auto& buffers = plan_.buffers();
  for (size_t number = tensors_.size(); number < buffers.size(); ++number) {
    tensors_.push_back(
        at::empty({buffers[number].elements},
                  tensors_[0].options().dtype(static_cast<at::ScalarType>(buffers[number].type))));
  }
  for (const auto& step : plan_.steps()) {
    switch (step.kind) {
      case StepKind::kLaunch:
        launch(step);
        break;
      case StepKind::kCopy:
        tensor(step.views[0]).copy_(tensor(step.views[1]));
        break;
      case StepKind::kFill:
        tensor(step.views[0]).fill_(step.value);
        break;
      case StepKind::kProduct:
        multiply(step, tensor(step.views[0]), tensor(step.views[1]), tensor(step.views[2]));
        break;
    }
  }
}
