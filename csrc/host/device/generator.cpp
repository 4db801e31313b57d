// at::MPSGeneratorImpl for Linux, and RandomStream.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <device/device.h>
#include <device/generator.h>
#include <locks.h>
#include <torch_internals.h>

#include <cstring>
#include <mutex>

namespace at {
namespace internals = metalops::internals;

namespace mps::detail {

const Generator& getDefaultMPSGenerator() {
  struct Default {
    Generator generator = createMPSGenerator(internals::getNonDeterministicRandom());
    metalops::ForkSafeReference lock{generator.mutex()};
  };
  static const auto& chosen = *new Default;
  return chosen.generator;
}

Generator createMPSGenerator(uint64_t seed) {
  auto generator = make_generator<MPSGeneratorImpl>(seed);
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace mps::detail

namespace {

// Layout of a saved state in bytes: the Philox words, the seed, the offset.
constexpr size_t kWordBytes = internals::PHILOX_STATE_N * sizeof(uint32_t);
constexpr size_t kSeedAt = kWordBytes;
constexpr size_t kOffsetAt = kSeedAt + sizeof(uint64_t);
constexpr size_t kStateBytes = kOffsetAt + sizeof(uint64_t);

}  // namespace

MPSGeneratorImpl::MPSGeneratorImpl(uint64_t seed)
    : c10::GeneratorImpl{metalops::device::kDevice, c10::DispatchKeySet(c10::DispatchKey::MPS)},
      data_({.seed = seed}),
      engine_(seed, 0, 0) {}

void MPSGeneratorImpl::set_current_seed(uint64_t seed) {
  data_.seed = seed;
  data_.state.fill(1);
  // The last two words are the Philox key.
  data_.state[5] = static_cast<uint32_t>(seed);
  data_.state[6] = static_cast<uint32_t>(seed >> 32);
  engine_.reset_state(seed);
}

void MPSGeneratorImpl::set_offset(uint64_t offset) { engine_.set_offset(offset); }

uint64_t MPSGeneratorImpl::get_offset() const { return engine_.get_offset(); }

uint64_t MPSGeneratorImpl::current_seed() const { return data_.seed; }

uint64_t MPSGeneratorImpl::seed() {
  const uint64_t seed = internals::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void MPSGeneratorImpl::update_philox_counters() {
  for (int i = 1; i <= 4; ++i) data_.state[i] = engine_();
}

c10::intrusive_ptr<c10::TensorImpl> MPSGeneratorImpl::get_state() const {
  auto state = internals::empty_cpu({static_cast<int64_t>(kStateBytes)}, kByte, std::nullopt,
                                    std::nullopt, std::nullopt, std::nullopt);
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  const uint64_t seed = current_seed();
  const uint64_t offset = get_offset();
  std::memcpy(bytes, data_.state.data(), kWordBytes);
  std::memcpy(bytes + kSeedAt, &seed, sizeof seed);
  std::memcpy(bytes + kOffsetAt, &offset, sizeof offset);
  return state.getIntrusivePtr();
}

void MPSGeneratorImpl::set_state(const c10::TensorImpl& state) {
  internals::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<int64_t>(kStateBytes), "RNG state is wrong size");
  const auto* bytes = state.data_dtype_initialized<uint8_t>();
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, bytes + kSeedAt, sizeof seed);
  std::memcpy(&offset, bytes + kOffsetAt, sizeof offset);
  set_current_seed(seed);
  set_offset(offset);
  std::memcpy(state_data(), bytes, kWordBytes);
}

std::shared_ptr<MPSGeneratorImpl> MPSGeneratorImpl::clone() const {
  return std::shared_ptr<MPSGeneratorImpl>(clone_impl());
}

MPSGeneratorImpl* MPSGeneratorImpl::clone_impl() const {
  auto* copy = new MPSGeneratorImpl();
  copy->data_ = data_;
  copy->engine_ = engine_;
  return copy;
}

}  // namespace at

namespace metalops::device {
namespace {

// A stand-in advances the generator like a kernel that takes one number per element.
constexpr int64_t kElementsPerGroup = 4;

// Returns a Mersenne Twister seeded with Philox numbers of the given seed and offset. At offset 0
// it is the engine that torch.manual_seed gives the CPU: after seeding both devices alike, the
// first random operator agrees on both.
at::mt19937 cpu_engine(uint64_t seed, uint64_t offset) {
  if (offset == 0) return at::mt19937(seed);
  // Subsequences do not overlap; adjacent offsets of one subsequence would.
  at::Philox4_32 philox(seed, /*subsequence=*/offset);
  at::mt19937_data_pod data;
  data.seed_ = seed;
  data.left_ = 1;
  data.seeded_ = true;
  data.next_ = 0;
  for (auto& word : data.state_) word = philox();
  data.state_[0] |= 0x80000000u;  // never the all-zero state
  at::mt19937 engine;
  engine.set_data(data);
  return engine;
}

}  // namespace

RandomStream::RandomStream(const std::optional<at::Generator>& generator)
    : mps_(generator && generator->defined() ? *generator : internals::getDefaultMPSGenerator()) {
  TORCH_CHECK(mps_.device().is_mps(), "Expected a 'mps' device type for generator but found '",
              mps_.device().type(), "'");
  auto cpu = c10::make_intrusive<at::CPUGeneratorImpl>();
  {
    std::lock_guard<std::mutex> lock(mps_.mutex());
    auto* impl = mps_.get<at::MPSGeneratorImpl>();
    const uint64_t offset = impl->get_offset();
    seed_ = impl->current_seed();
    after_ = offset + 1;
    cpu->set_engine(cpu_engine(seed_, offset));
    impl->set_offset(after_);  // nobody else gets the same numbers
  }
  cpu_ = at::Generator(std::move(cpu));
}

void RandomStream::advance(int64_t elements) {
  const int64_t groups = (elements + kElementsPerGroup - 1) / kElementsPerGroup;
  if (groups <= 1) return;  // the constructor has advanced by one group
  std::lock_guard<std::mutex> lock(mps_.mutex());
  auto* impl = mps_.get<at::MPSGeneratorImpl>();
  const uint64_t offset = impl->get_offset();
  if (impl->current_seed() != seed_ || offset < after_) return;
  impl->set_offset(offset + static_cast<uint64_t>(groups - 1));
}

}  // namespace metalops::device
