// Reuse of torch's own meta function in a kernel for one of ATen's structured operators. For such
// an operator torch generates the functional and the in-place overload for every device from the
// .out overload, so a device only needs a kernel for the latter. StructuredOut supplies what torch
// generates for the .out overload itself, around the meta function that does broadcasting, type
// promotion and checks:
//
//   at::Tensor& heaviside_out(const at::Tensor& self, const at::Tensor& values, at::Tensor& out) {
//     metalops::StructuredOut<at::meta::structured_heaviside> iter(out);
//     iter.meta(self, values);
//     metalops::library("elementwise").exec_binary_kernel(iter, "heaviside");
//     return out;
//   }
//
// A kernel may require the strides that the meta function states (in linear algebra: contiguous
// columns). It then writes output(index), and copies to outputs of other strides afterwards:
//
//   metalops::StructuredOut<at::meta::structured_linalg_lu_solve> call(out);
//   call.meta(...);
//   solve(..., call.output(0));
//   call.write_back();
//
// (Registering a kernel with the operator's DispatchStub, the usual way inside torch, has no effect
// where torch was built without MPS.)
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <metalops/library.h>
#include <metalops/torch_internals.h>

#include <type_traits>

namespace metalops {

// Meta: torch's at::meta::structured_<operator>, declared in <ATen/ops/<operator>_meta.h>. After
// meta(...) the outputs have their sizes. If torch's operator derives from TensorIterator, this
// object is the call's iterator.
template <class Meta>
class METALOPS_HIDDEN StructuredOut final : public Meta {
 public:
  // outputs: in the order in which the operator returns them.
  template <class... Outputs>
  explicit StructuredOut(const Outputs&... outputs)
      : outputs_{outputs...}, temporaries_(sizeof...(Outputs)) {}

  // Receives an output's properties from the meta function. An output that was passed in keeps its
  // strides unless it has to be resized, about which torch warns.
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    const auto& out = outputs_[index];
    TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ",
                options.dtype(), ", but got ", out.dtype(), " instead");
    TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ",
                options.device(), ", but got ", out.device(), " instead");
    if (at::native::resize_output(out, sizes)) {
      if (!strides.empty()) {
        out.as_strided_(sizes, strides);
      } else if (options.memory_format_opt()) {
        internals::set_memory_format(out, *options.memory_format_opt());
      }
    }
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      Meta::set_output_raw_strided(index, sizes, strides, options);
    }
  }

  // Receives an output's properties from a meta function whose kernel requires these strides.
  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
    if (outputs_[index].strides() != strides) {
      temporaries_[index] = at::empty_strided(sizes, strides, options);
    }
  }

  const at::Tensor& maybe_get_output(int64_t index) override { return output(index); }

  // Returns the tensor that the kernel writes: the output, or a temporary if the output does not
  // have the required strides.
  const at::Tensor& output(int64_t index) const {
    const auto& temporary = temporaries_[index];
    return temporary.defined() ? temporary : outputs_[index];
  }

  // Copies the temporaries to their outputs; to be called after the kernel has been launched.
  void write_back() const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (temporaries_[i].defined()) {
        outputs_[i].copy_(temporaries_[i]);
      }
    }
  }

 private:
  c10::SmallVector<at::Tensor, 2> outputs_;
  c10::SmallVector<at::Tensor, 2> temporaries_;
};

}  // namespace metalops
