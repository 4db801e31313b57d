// Runs launch plans (csrc/plans/plan.h) on mps tensors:
//
//   metalops::PlanRun run;
//   plans::attention_decode(run.plan(), {.out = run.view(out), ...}, metalops::plan_device());
//   run.run();
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/plans/plan.h>
#include <metalops/library.h>

#include <string_view>
#include <utility>
#include <vector>

namespace metalops {

// Returns the limits of the mps device. has_tensors: of the libraries with matrix products.
METALOPS_HIDDEN plans::Device plan_device(bool has_tensors = false);
// Returns them for a family of kernels with matrix products: see <metalops/matmul_library.h>.
METALOPS_HIDDEN plans::Device plan_device_of(std::string_view family);

// A plan and the tensors of its buffers.
class METALOPS_HIDDEN PlanRun {
 public:
  PlanRun() { tensors_.reserve(kUsualTensors); }

  plans::Plan& plan() { return plan_; }

  // Returns the view of a tensor; an absent one of an absent tensor. Raises ValueError for one of
  // more than four dimensions.
  plans::View view(const at::Tensor& tensor);
  plans::View view(const MaybeTensor& tensor);

  // Returns the view of a tensor of (*, ...), `ends` dimensions behind those of the batch, as
  // (batch, ...). The matrices of the batch must be at equal distances, as in contiguous memory.
  // That of an undefined tensor is absent.
  plans::View batch_view(const at::Tensor& tensor, int32_t ends);

  // Runs the steps.
  void run();

  // Returns the results of the plan, once run() has begun.
  std::vector<at::Tensor> results() const;

  // Returns a view of the plan as a tensor, once run() has begun or for tensors of the caller.
  at::Tensor tensor(const plans::View& view) const;

 private:
  // Adds a tensor, and returns its view without sizes and strides.
  plans::View add(const at::Tensor& tensor, int64_t dims);

  void launch(const plans::Step& step);

  // Returns a tensor that begins where the view does, of any sizes and strides.
  const at::Tensor& beginning(const plans::View& view);

  static constexpr size_t kUsualTensors = 16;

  plans::Plan plan_;
  std::vector<at::Tensor> tensors_;  // by buffer
  // By buffer, of the views that do not begin where it does: the last one that was bound. Making a
  // tensor takes longer than binding it, and loops bind the same parts again and again.
  std::vector<std::pair<plans::View, at::Tensor>> parts_;
};

}  // namespace metalops
