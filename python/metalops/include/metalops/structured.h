// Reuse of torch's own meta function by a kernel for one of ATen's structured operators. For such
// an operator torch generates the functional and the in-place overload for every device from its
// .out overload, so a kernel for that one is all that a device needs. What torch generates for the
// .out overload itself, around the meta function that does broadcasting, type promotion and checks,
// is what StructuredOut supplies:
//
//   at::Tensor& heaviside_out(const at::Tensor& self, const at::Tensor& values, at::Tensor& out) {
//     metalops::StructuredOut<at::meta::structured_heaviside> iter(out);
//     iter.meta(self, values);
//     metalops::library("elementwise").exec_binary_kernel(iter, "heaviside");
//     return out;
//   }
//
// A kernel that writes only outputs of the strides that the meta function states (those of linear
// algebra: columns without gaps) writes output(index), and then copies to outputs of other strides:
//
//   metalops::StructuredOut<at::meta::structured_linalg_lu_solve> call(out);
//   call.meta(...);
//   solve(..., call.output(0));
//   call.write_back();
//
// (Registering a kernel with torch's DispatchStub of the operator, the usual way inside torch, has
// no effect where torch was built without MPS.)
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
// meta(...) the outputs have their sizes, and if torch made the operator of a TensorIterator, the
// object is that of the call.
template <class Meta>
class METALOPS_HIDDEN StructuredOut final : public Meta {
 public:
  // outputs: in the order in which the operator returns them.
  template <class... Outputs>
  explicit StructuredOut(const Outputs&... outputs)
      : outputs_{outputs...}, temporaries_(sizeof...(Outputs)) {}

  // Called by the meta function when it knows an output's properties. An output that is given
  // keeps its strides unless it has to be resized, of which torch warns.
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

  // The same by a meta function whose kernel needs these strides.
  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
    if (outputs_[index].strides() != strides) {
      temporaries_[index] = at::empty_strided(sizes, strides, options);
    }
  }

  const at::Tensor& maybe_get_output(int64_t index) override { return output(index); }

  // What the kernel writes: the output, or where that has not the strides it needs, a temporary.
  const at::Tensor& output(int64_t index) const {
    const auto& temporary = temporaries_[index];
    return temporary.defined() ? temporary : outputs_[index];
  }

  // Copies the temporaries to their outputs; to be called when the kernel has been launched.
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
