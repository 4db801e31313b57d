// Transfer: aliases and copies of mps tensors for Gloo, dtype conversion, and checks of their
// sizes.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/mps/MPSAllocatorInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <csrc/distributed/transfer.h>

#include <cstring>
#include <numeric>
#include <random>
#include <sstream>

namespace metalops::distributed {
namespace {

using at::Tensor;
using c10::ScalarType;
using c10d::ReduceOp;

// Disables views, version counters and autograd modes: for tensors whose history nobody keeps.
struct Plainly {
  const c10::InferenceMode normal{false};
  const at::AutoDispatchBelowADInplaceOrView below;
};

// Returns a CPU tensor over the memory of an mps tensor; undefined if the host cannot reach it
// (private buffers of GPUs).
Tensor host_alias(const Tensor& tensor) {
  auto* allocator = at::mps::getIMPSAllocator();
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() == 0) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  if (!allocator->isSharedBuffer(storage.data())) return {};
  // Equivalent to empty().set_(), which goes through the dispatcher twice.
  auto result = c10::make_intrusive<c10::TensorImpl>(allocator->getHostAliasStorage(storage),
                                                     c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     tensor.dtype());
  result->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return Tensor(std::move(result));
}

// Returns true for dtypes of mps that Gloo has kernels for.
bool known_to_gloo(ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
      return true;
    default:
      return false;
  }
}

std::string name(const ReduceOp& reduction) {
  switch (reduction) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

bool orders(const ReduceOp& reduction) {
  return reduction == ReduceOp::MIN || reduction == ReduceOp::MAX;
}

// Converts a contiguous tensor to one that Gloo reduces to the same result; shares its memory if
// possible.
Tensor reducible(const Tensor& host, const ReduceOp& reduction) {
  const ScalarType dtype = host.scalar_type();
  switch (dtype) {
    // The wider type gives the same result where the narrow one wraps around.
    case at::kShort:
    case at::kUInt16:
      return host.to(at::kInt);
    case at::kUInt32:
      return host.to(at::kLong);
    case at::kUInt64:
      if (!orders(reduction)) return host.view(at::kLong);
      break;
    case at::kComplexFloat:
    case at::kComplexHalf:
      if (reduction == ReduceOp::SUM || reduction == ReduceOp::AVG) return at::view_as_real(host);
      break;
    default:
      break;
  }
  C10_THROW_ERROR(NotImplementedError, "Gloo has no " + name(reduction) + " of " +
                                           c10::toString(dtype) +
                                           " and it cannot be made of what Gloo has");
}

// Views a contiguous tensor as bytes, with an additional last dimension for those of an element.
Tensor bytes(const Tensor& host) {
  auto sizes = host.sizes().vec();
  sizes.push_back(host.itemsize());
  return host.view({-1}).view(at::kByte).view(sizes);
}

// Returns kTail random bytes, a canary: no rank sends them, except by chance.
const char* stand_in() {
  static const uint64_t value = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return reinterpret_cast<const char*>(&value);
}

void describe_tensor(std::ostream& out, const Tensor& tensor) {
  out << tensor.scalar_type() << " " << tensor.sizes();
}

}  // namespace

Transfer::Transfer(std::string operation, std::string group, int rank, int size,
                   std::optional<ReduceOp> reduction, std::optional<int64_t> root,
                   bool in_equal_parts)
    : operation_(std::move(operation)),
      group_(std::move(group)),
      rank_(rank),
      size_(size),
      reduction_(std::move(reduction)),
      root_(root),
      in_equal_parts_(in_equal_parts) {}

Tensor Transfer::wire_format(const Tensor& host) const {
  if (known_to_gloo(host.scalar_type())) return host;
  return reduction_ ? reducible(host, *reduction_) : bytes(host);
}

Tensor Transfer::to_host(const Tensor& tensor, Role role) {
  if (!tensor.defined() || !tensor.is_mps()) return tensor;
  for (const Part& part : parts_) {
    if (part.device.is_same(tensor) && part.role == role) return part.host;
  }
  // Registered before the checks, so that their errors name this tensor too.
  parts_.push_back({tensor, {}, {}, role});
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "only strided tensors can be sent from mps");
  const Plainly plainly;
  Tensor memory = host_alias(tensor);
  const bool reachable = memory.defined();
  if (!reachable) {
    // A tensor that is only written is copied too: its gaps are not filled by any result.
    memory = tensor.to(at::kCPU);
  } else if (tensor.is_conj() || tensor.is_neg()) {
    TORCH_CHECK(role == Role::kReads,
                "cannot write into a tensor that is a lazy conjugate or negative; "
                "use resolve_conj() or resolve_neg()");
    memory = tensor.resolve_conj().resolve_neg().to(at::kCPU);
  }
  Tensor host = wire_format(memory.contiguous());
  const bool in_place = reachable && host.data_ptr() == memory.data_ptr();
  Part& part = parts_.back();
  part.host = host;
  if (role != Role::kReads && !in_place && tensor.numel() != 0) {
    part.target = reachable ? memory : tensor;
    needs_finish_ = true;
  }
  return host;
}

void Transfer::finish() {
  std::call_once(finished_, [this] {
    const Plainly plainly;
    for (const Part& part : parts_) {
      if (!part.target.defined()) continue;
      Tensor host = part.host;
      const ScalarType dtype = part.target.scalar_type();
      if (host.scalar_type() != dtype) {
        // Inverts wire_format().
        const bool converted = reduction_ && !c10::isComplexType(dtype) && dtype != at::kUInt64;
        host = converted ? host.to(dtype) : host.view({-1}).view(dtype);
      }
      part.target.copy_(host.view(part.target.sizes()));
    }
  });
}

std::vector<Tensor> Transfer::results() const {
  std::vector<Tensor> tensors;
  for (const Part& part : parts_) {
    if (part.role != Role::kReads) tensors.push_back(part.device);
  }
  return tensors;
}

c10::IValue Transfer::to_device(const c10::IValue& value) const {
  if (value.isTensor()) {
    for (const Part& part : parts_) {
      if (part.host.is_same(value.toTensor())) return part.device;
    }
    return value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> result;
    for (const Tensor& tensor : value.toTensorVector())
      result.push_back(to_device(tensor).toTensor());
    return result;
  }
  if (value.isList()) {
    const auto list = value.toList();
    auto result = list.copy();
    for (size_t i = 0; i < list.size(); ++i) result.set(i, to_device(list.get(i)));
    return result;
  }
  return value;
}

void Transfer::expect_all_bytes(at::IntArrayRef parts) {
  const int64_t whole = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (const Part& part : parts_) {
    if (part.role == Role::kReads || whole == 0) continue;
    char* end = static_cast<char*>(part.host.mutable_data_ptr());
    const int64_t unit = part.host.nbytes() / whole;
    for (const int64_t count : parts) {
      end += count * unit;
      if (count * unit < kTail) continue;
      tails_.push_back({end - kTail});
      std::memcpy(tails_.back().before, end - kTail, kTail);
      std::memcpy(end - kTail, stand_in(), kTail);
    }
  }
}

void Transfer::check_all_bytes(bool came) {
  std::call_once(checked_, [&] {
    for (const Tail& tail : tails_) {
      if (std::memcmp(tail.address, stand_in(), kTail) != 0) continue;
      std::memcpy(tail.address, tail.before, kTail);
      misses_bytes_ = came;
    }
  });
  TORCH_CHECK(!misses_bytes_,
              "fewer bytes came than the tensor takes: another rank has sent a smaller tensor");
}

// Only the root passes tensors to scatter or receives gathered ones, so these are not compared.
bool Transfer::is_compared(const Part& part) const {
  return is_message() || (part.role == Role::kWrites) == (operation_ == "scatter");
}

// Returns the sizes that must agree: in all_to_all_single the first dimension may differ by rank.
at::IntArrayRef Transfer::compared_sizes(const Part& part) const {
  const at::IntArrayRef sizes = part.device.sizes();
  return takes_parts() && !sizes.empty() ? sizes.slice(1) : sizes;
}

Agreement::Description Transfer::description() const {
  std::ostringstream out;
  if (is_message()) {
    // Shapes of messages are the receiver's, as in other backends of torch.
    const char* separator = "";
    for (const Part& part : parts_) {
      out << separator << part.device.numel() << " elements of " << part.device.scalar_type();
      separator = ", ";
    }
    return {out.str()};
  }
  out << operation_;
  if (reduction_) out << " (" << name(*reduction_) << ")";
  if (root_) out << " with root " << *root_;
  const char* separator = " of ";
  std::ostringstream known_to_some;
  for (const Part& part : parts_) {
    if (!is_compared(part)) continue;
    out << separator << part.device.scalar_type();
    if (takes_parts()) {
      out << " [*";
      for (const int64_t size : compared_sizes(part)) out << ", " << size;
      out << "]";
    } else {
      out << " " << part.device.sizes();
    }
    if (in_equal_parts_) known_to_some << " in equal parts of " << part.device.sizes();
    separator = ", ";
  }
  return {out.str(), known_to_some.str()};
}

std::string Transfer::key() const {
  std::string key = operation_;
  const auto add = [&](int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  add(reduction_ ? *reduction_ : -1);
  add(root_.value_or(-1));
  for (const Part& part : parts_) {
    if (!is_compared(part)) continue;
    add(static_cast<int64_t>(part.device.scalar_type()));
    if (is_message()) {
      add(part.device.numel());
      continue;
    }
    add(part.device.dim());
    for (const int64_t size : in_equal_parts_ ? part.device.sizes() : compared_sizes(part)) {
      add(size);
    }
  }
  return key;
}

std::string Transfer::describe() const {
  constexpr size_t kShown = 4;
  std::ostringstream out;
  out << operation_;
  if (reduction_) out << " (" << name(*reduction_) << ")";
  for (size_t i = 0; i < std::min(parts_.size(), kShown); ++i) {
    out << (i == 0 ? " of " : ", ");
    describe_tensor(out, parts_[i].device);
  }
  if (parts_.size() > kShown) out << " and " << parts_.size() - kShown << " more";
  out << " on mps, rank " << rank_ << " of " << size_ << " in group " << group_;
  return out.str();
}

void Transfer::rethrow_with_context() {
  bool first = false;
  std::call_once(described_, [&] { first = true; });
  if (!first) throw;
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context("in " + describe());
    throw;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, std::string(error.what()) + "\nin " + describe());
  }
}

}  // namespace metalops::distributed
