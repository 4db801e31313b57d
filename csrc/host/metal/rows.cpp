// Runs dense kernels on pieces of rows, with copies of operands that are not dense along them.
#include <metal/rows.h>

#include <c10/util/SmallVector.h>

#include <cstring>
#include <memory>

#include <exec/share_out.h>
#include <metal/elementwise.h>
#include <metal/streams.h>

namespace metalops {
namespace {

constexpr int64_t kShortestRow = 64;  // shorter ones are not worth a launch each
constexpr int64_t kPiece =
    2048;  // elements; the buffers of a few operands fit in the first-level caches
constexpr int64_t kElementsPerThread = 32768;  // ATen's grain size

// An operand along the innermost dimension.
struct Operand {
  char* begin;
  int64_t stride;
  c10::ScalarType type;
  int64_t size;  // of an element
  bool dense;
  ScalarBytes number;  // the value of a 0-d CPU tensor; `begin` then points to it
};

using Operands = c10::SmallVector<Operand, 4>;

void describe(const at::TensorIteratorBase& iter, Operands& operands) {
  operands.resize(iter.ntensors());
  for (int i = 0; i < iter.ntensors(); ++i) {
    Operand& operand = operands[i];
    operand.begin = static_cast<char*>(iter.data_ptr(i));
    operand.stride = iter.strides(i)[0];
    operand.type = operand_type(iter, i);
    operand.size = size_of(operand.type);
    operand.dense = operand.stride == operand.size;
    if (iter.tensor_base(i).device().is_cpu()) {
      operand.number = scalar_bytes(operand.begin, iter.dtype(i));
      operand.begin = reinterpret_cast<char*>(operand.number.data);
    }
  }
}

// Counts through the outer dimensions of an iterator and keeps the byte offset of each operand.
class Outer {
 public:
  // Not inlined, because then g++ 12 warns that SmallVector reads its own storage before it is set.
  C10_NOINLINE Outer(const at::TensorIteratorBase& iter, int64_t row)
      : iter_(iter), index_(iter.ndim() - 1), offsets_(iter.ntensors()) {
    for (size_t axis = 0; axis < index_.size(); ++axis) {
      const int64_t size = iter.shape()[axis + 1];
      index_[axis] = row % size;
      row /= size;
      advance(axis, index_[axis]);
    }
  }

  int64_t offset(int operand) const { return offsets_[operand]; }

  void next() {
    for (size_t axis = 0; axis < index_.size(); ++axis) {
      advance(axis, 1);
      if (++index_[axis] < iter_.shape()[axis + 1]) return;
      advance(axis, -index_[axis]);
      index_[axis] = 0;
    }
  }

 private:
  void advance(size_t axis, int64_t steps) {
    for (size_t operand = 0; operand < offsets_.size(); ++operand) {
      offsets_[operand] += steps * iter_.strides(operand)[axis + 1];
    }
  }

  const at::TensorIteratorBase& iter_;
  c10::SmallVector<int64_t, 6> index_;
  c10::SmallVector<int64_t, 4> offsets_;
};

template <int64_t size>
void copy_elements(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, size);
}

void copy_elements(int64_t size, char* to, int64_t to_stride, const char* from, int64_t from_stride,
                   int64_t count) {
  switch (size) {
    case 1:
      return copy_elements<1>(to, to_stride, from, from_stride, count);
    case 2:
      return copy_elements<2>(to, to_stride, from, from_stride, count);
    case 4:
      return copy_elements<4>(to, to_stride, from, from_stride, count);
    default:
      TORCH_INTERNAL_ASSERT(size == 8);
      return copy_elements<8>(to, to_stride, from, from_stride, count);
  }
}

// One CPU thread's share of the work.
class Worker {
 public:
  Worker(at::TensorIteratorBase& iter, const exec::Kernel& kernel,
         c10::function_ref<void(Encoder&)> set_arguments)
      : kernel_(kernel) {
    describe(iter, operands_);
    set_operands(encoder_, iter);
    set_arguments(encoder_);
    encoder_.check_bound(kernel);
    for (const Operand& operand : operands_) {
      buffers_.emplace_back(operand.dense ? nullptr : new char[kPiece * operand.size]);
    }
  }

  // Computes elements [first, first + count) of the row at `outer`.
  void run(const Outer& outer, int64_t first, int64_t count) {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& operand = operands_[i];
      char* place = operand.begin + outer.offset(i) + first * operand.stride;
      if (!operand.dense && i > 0) {
        copy_elements(operand.size, buffers_[i].get(), operand.size, place, operand.stride, count);
      }
      encoder_.set_elements(i, operand.dense ? place : buffers_[i].get(), count, operand.type);
    }
    encoder_.dispatch_1d_in_turn(kernel_, count);
    const Operand& out = operands_[0];
    if (!out.dense) {
      char* place = out.begin + outer.offset(0) + first * out.stride;
      copy_elements(out.size, place, out.stride, buffers_[0].get(), out.size, count);
    }
  }

 private:
  const exec::Kernel& kernel_;
  Operands operands_;
  c10::SmallVector<std::unique_ptr<char[]>, 4> buffers_;
  Encoder encoder_;
};

}  // namespace

bool runs_by_rows(const at::TensorIteratorBase& iter) {
  if (!streams::is_current_default()) return false;  // a launch of the whole can be queued
  return iter.ndim() >= 1 && iter.shape()[0] >= kShortestRow;
}

void run_rows(at::TensorIteratorBase& iter, const exec::Kernel& kernel,
              c10::function_ref<void(Encoder&)> set_arguments) {
  streams::follow(streams::Followers::Work::kLaunch);
  if (C10_UNLIKELY(exec::checks_stream_order())) {
    Encoder encoder;
    set_operands(encoder, iter);
    set_arguments(encoder);
    encoder.check_order(kernel);
  }
  const int64_t length = iter.shape()[0];
  const int64_t pieces = (length + kPiece - 1) / kPiece;  // per row
  const int64_t total = iter.numel() / length * pieces;
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / std::min(length, kPiece));
  const auto threads = std::min<int64_t>(exec::threads_to_use(0), (total + grain - 1) / grain);
  Turn turn;
  exec::share_out(0, total, grain, static_cast<int>(threads), [&] {
    return [&, worker = std::make_unique<Worker>(iter, kernel, set_arguments)](uint64_t begin,
                                                                               uint64_t end) {
      Outer outer(iter, int64_t(begin) / pieces);
      int64_t piece = int64_t(begin) % pieces;
      for (uint64_t i = begin; i < end; ++i) {
        const int64_t first = piece * kPiece;
        worker->run(outer, first, std::min(kPiece, length - first));
        if (++piece == pieces) {
          piece = 0;
          outer.next();
        }
      }
    };
  });
}

}  // namespace metalops
