// poisson and binomial. Element i in row-major order is drawn from position i of the Philox stream
// only: the result depends neither on the grid nor on the tensors' strides.
//
// [Devroye] L. Devroye, Non-Uniform Random Variate Generation, 1986.
// [PTRS] W. Hoermann, The transformed rejection method for generating Poisson random variables,
//   Insurance: Mathematics and Economics 12, 1993.
// [BTRS] W. Hoermann, The generation of binomial random variates, Journal of Statistical
//   Computation and Simulation 46, 1993.
// [Loader] C. Loader, Fast and accurate computation of binomial probabilities, 2000.
#include <c10/metal/error.h>
#include <c10/metal/expm1f.h>
#include <c10/metal/random.h>
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/common/numerics.h>
#include <kernels/creation/random.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

// ---- random numbers -----------------------------------------------------------------------------

// The random numbers of one position of the stream. The position is one half of Philox's counter;
// the other half counts the blocks of four drawn here, so that positions share no numbers however
// many a rejection takes. The first block is that of c10::metal::philox4::rand(seed, place).
class RandomNumbers {
 public:
  RandomNumbers(int64_t seed, int64_t place)
      : key_(c10::metal::detail::splitlong(seed)), place_(c10::metal::detail::splitlong(place)) {
    draw();
  }

  // Returns a uniformly distributed number between 0 and 1, with full precision where it is small:
  // never 0, but it may be rounded to 1.
  float uniform() { return (static_cast<float>(next()) + 0.5f) * kStep; }

  // Returns a uniformly distributed number between -1/2 and 1/2. distance: that to the nearer end,
  // in (0, 1/2].
  float centered(thread float& distance) {
    const uint bits = next();
    distance = (static_cast<float>(bits >> 1) + 0.5f) * kStep;
    return (bits & 1) != 0 ? 0.5f - distance : distance - 0.5f;
  }

  // Returns an exponentially distributed number with mean 1.
  float exponential() { return -c10::metal::log1p(-uniform()); }

 private:
  static constexpr constant float kStep = 2.32830644e-10f;  // 2^-32

  uint next() {
    if (left_ == 0) {
      draw();
    }
    --left_;
    return block_[left_];
  }

  void draw() {
    const uint4 counter(drawn_, 0, place_);
    block_ = c10::metal::philox4::multiple_rounds(counter, key_, 10);
    ++drawn_;
    left_ = 4;
  }

  uint2 key_;
  uint2 place_;
  uint4 block_;
  uint drawn_ = 0;
  uint left_ = 0;
};

// ---- log probabilities after [Loader], without cancellation of large terms ----------------------

constant constexpr float kStirlingErrors[] = {0.0f,  // unused
                                              8.10614668e-2f, 4.13406960e-2f, 2.76779257e-2f,
                                              2.07906721e-2f, 1.66446912e-2f, 1.38761288e-2f,
                                              1.18967099e-2f};

// Returns log(x!) - log(sqrt(2 pi x) (x / e)^x) for integers x > 0.
inline float stirling_error(float x) {
  if (x < 8.0f) {
    return kStirlingErrors[static_cast<uint>(x)];
  }
  const float inverse = 1.0f / x;
  return inverse * polynomial(inverse * inverse, 8.33333333e-2f, -2.77777778e-3f, 7.93650794e-4f);
}

// Returns k log(k / mean) + mean - k, given deviation = k - mean.
inline float deviance(float k, float mean, float deviation) {
  const float v = deviation / (k + mean);
  if (abs(v) > 0.1f) {
    return fma(k, precise::log(k / mean), -deviation);
  }
  const float square = v * v;
  const float series = polynomial(square, 1.0f / 3, 1.0f / 5, 1.0f / 7);
  return v * fma(2.0f * k * square, series, deviation);
}

// Returns the logarithm of sqrt(2 pi mean) times the Poisson probability of k. deviation: k - mean.
// If k = 0, the terms of k vanish.
inline float log_poisson(float k, float mean, float deviation) {
  if (k == 0.0f) {
    return fma(0.5f, precise::log(2.0f * M_PI_F * mean), -mean);
  }
  return -deviance(k, mean, deviation) - stirling_error(k) - 0.5f * precise::log(k / mean);
}

// ---- transformed rejection ----------------------------------------------------------------------

// Integers near the mean, as distances from it: beyond 2^24 the integers are rounded, but the
// distances are not.
class Near {
 public:
  // The mean is the double-float hi + lo.
  explicit Near(double_float mean)
      : base_(floor(mean.hi)), fraction_((mean.hi - base_) + mean.lo) {}

  // Computes k = floor(mean + offset) and deviation = k - mean.
  void floor_of(float offset, thread float& k, thread float& deviation) const {
    const float steps = floor(offset + fraction_);
    k = base_ + steps;
    deviation = steps - fraction_;
  }

 private:
  float base_;
  float fraction_;
};

// The hat function of [PTRS] and [BTRS].
struct Hat {
  float a;
  float b;
  float center;     // relative to the mean
  float squeeze;    // v up to this is accepted without computing the probability
  float logarithm;  // of the factor of v in the comparison with the probability
};

// Draws by transformed rejection. Distribution has the methods is_possible(k) and, for such k,
// log_probability(k, k - mean).
template <typename Distribution>
inline float transformed_rejection(thread const Distribution& distribution, Near near, Hat hat,
                                   thread RandomNumbers& numbers) {
  while (true) {
    float distance;
    const float u = numbers.centered(distance);
    const float v = numbers.uniform();
    const float slope = 2.0f * hat.a / distance + hat.b;
    float k;
    float deviation;
    near.floor_of(fma(slope, u, hat.center), k, deviation);
    if (distance >= 0.07f && v <= hat.squeeze) {
      return k;
    }
    if (!distribution.is_possible(k)) {
      continue;
    }
    const float density = hat.a / (distance * distance) + hat.b;
    if (precise::log(v / density) + hat.logarithm <= distribution.log_probability(k, deviation)) {
      return k;
    }
  }
}

// ---- poisson ------------------------------------------------------------------------------------

// The mean from which transformed rejection is used; it needs at least 10.
constant float kLargeMean = 10.0f;

struct Poisson {
  float rate;

  bool is_possible(float k) const { return k >= 0.0f; }
  float log_probability(float k, float deviation) const { return log_poisson(k, rate, deviation); }
};

inline float large_poisson(float rate, thread RandomNumbers& numbers) {
  Hat hat;
  hat.b = fma(2.53f, precise::sqrt(rate), 0.931f);
  hat.a = fma(0.02483f, hat.b, -0.059f);
  hat.center = 0.43f;
  hat.squeeze = 0.9277f - 3.6224f / (hat.b - 2.0f);
  constexpr float kHalfLogTwoPi = 0.918938533f;  // log_probability() includes sqrt(2 pi rate)
  hat.logarithm = precise::log(1.1239f + 1.1328f / (hat.b - 3.4f)) +
                  fma(0.5f, precise::log(rate), kHalfLogTwoPi);
  const Poisson distribution = {rate};
  return transformed_rejection(distribution, Near({rate, 0.0f}), hat, numbers);
}

// Returns the probability of more than `events` events, given that of exactly `events`. The terms
// of the sum must decrease from the first one on.
inline float poisson_tail(float rate, float events, float probability) {
  float term = probability;
  float sum = 0.0f;
  do {
    events += 1.0f;
    term *= rate / events;
    sum += term;
  } while (term > 1e-8f * sum);
  return sum;
}

// Draws by inversion of the distribution function (sequential search) at a number that is small
// where events are many. Where the probability of more events has lost digits by repeated
// subtraction, it is recomputed and the number is redrawn within it.
inline float small_poisson(float rate, thread RandomNumbers& numbers) {
  constexpr float kLost = 1.0f / 1024;
  float more = -c10::metal::expm1f(-rate);
  float left = numbers.uniform();
  if (left >= more) {
    return 0.0f;
  }
  float probability = precise::exp(-rate);
  float events = 0.0f;
  float known = more;
  while (true) {
    events += 1.0f;
    probability *= rate / events;
    more -= probability;
    if (left >= more) {
      return events;
    }
    if (more < kLost * known) {
      more = poisson_tail(rate, events, probability);
      known = more;
      left = numbers.uniform() * more;
    }
  }
}

inline float draw_poisson(float rate, thread RandomNumbers& numbers) {
  if (isinf(rate)) {
    return rate;
  }
  return rate >= kLargeMean ? large_poisson(rate, numbers) : small_poisson(rate, numbers);
}

template <typename T>
kernel void random_poisson(device T* output [[buffer(0)]], constant T* rates [[buffer(1)]],
                           constant RandomParameters& parameters [[buffer(2)]],
                           constant StridedLayout<2>& layout [[buffer(3)]],
                           device ErrorMessages* errors [[buffer(4)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(element, layout);
  const float rate = static_cast<float>(element_at(rates, offsets[1]));
  const bool valid = rate >= 0.0f;
  if (!valid) {
    TORCH_REPORT_ERROR(errors,
                       "poisson(): invalid Poisson rate, expected rate to be non-negative,"
                       " but that of element ",
                       element, " is not");
  }
  RandomNumbers numbers(parameters.seed, parameters.offset + element);
  element_at(output, offsets[0]) = static_cast<T>(valid ? draw_poisson(rate, numbers) : NAN);
}

// ---- binomial -----------------------------------------------------------------------------------

// Binomial distribution. The probability of k successes is P(k; count p) P(count - k; count q) /
// P(count; count), where P(k; mean) is the Poisson probability. Log probabilities are relative to
// the mode, as [BTRS] requires.
struct Binomial {
  float count;
  float mean;  // of the successes
  float mode;
  float mode_deviation;

  bool is_possible(float k) const { return k >= 0.0f && k <= count; }

  float log_probability(float k, float deviation) const {
    return log_product(k, deviation) - log_product(mode, mode_deviation);
  }

 private:
  float log_product(float k, float deviation) const {
    return log_poisson(k, mean, deviation) + log_poisson(count - k, count - mean, -deviation);
  }
};

// Draws by transformed rejection. probability: at most 1/2.
inline float large_binomial(float count, float probability, thread RandomNumbers& numbers) {
  const double_float mean = exact_product(count, probability);
  const Near near(mean);
  Binomial distribution;
  distribution.count = count;
  distribution.mean = mean.hi;
  near.floor_of(probability, distribution.mode, distribution.mode_deviation);
  const float deviation = precise::sqrt(mean.hi * (1.0f - probability));
  Hat hat;
  hat.b = fma(2.53f, deviation, 1.15f);
  hat.a = fma(0.0248f, hat.b, fma(0.01f, probability, -0.0873f));
  hat.center = 0.5f;
  hat.squeeze = 0.92f - 4.2f / hat.b;
  hat.logarithm = precise::log((2.83f + 5.1f / hat.b) * deviation);
  return transformed_rejection(distribution, near, hat, numbers);
}

// Draws by summing the waiting times between successes, which are geometrically distributed
// ([Devroye], X.4.3): an exponentially distributed number, rounded up.
inline float small_binomial(float count, float probability, thread RandomNumbers& numbers) {
  const float rate = -c10::metal::log1p(-probability);
  float successes = 0.0f;
  float trials = ceil(numbers.exponential() / rate);
  for (; trials <= count; trials += ceil(numbers.exponential() / rate)) {
    successes += 1.0f;
  }
  return successes;
}

// Draws a binomial number. Invalid arguments are treated as by torch's CPU operator: a count or a
// probability below 0 is 0, a probability above 1 is 1.
inline float draw_binomial(float count, float probability, thread RandomNumbers& numbers) {
  if (count <= 0.0f || probability <= 0.0f) {
    return 0.0f;
  }
  if (probability >= 1.0f || isinf(count)) {
    return isnan(probability) ? NAN : count;
  }
  if (isnan(count) || isnan(probability)) {
    return NAN;
  }
  const bool flipped = probability > 0.5f;
  const float rarer = flipped ? 1.0f - probability : probability;
  const float drawn = count * rarer >= kLargeMean ? large_binomial(count, rarer, numbers)
                                                  : small_binomial(count, rarer, numbers);
  return flipped ? count - drawn : drawn;
}

template <typename T>
kernel void random_binomial(device T* output [[buffer(0)]], constant T* counts [[buffer(1)]],
                            constant T* probabilities [[buffer(2)]],
                            constant RandomParameters& parameters [[buffer(3)]],
                            constant StridedLayout<3>& layout [[buffer(4)]],
                            uint2 position [[thread_position_in_grid]],
                            uint2 grid [[threads_per_grid]]) {
  const int64_t element = thread_index(position, grid);
  if (element >= layout.count) {
    return;
  }
  const auto offsets = offsets_of(element, layout);
  const float count = static_cast<float>(element_at(counts, offsets[1]));
  const float probability = static_cast<float>(element_at(probabilities, offsets[2]));
  RandomNumbers numbers(parameters.seed, parameters.offset + element);
  element_at(output, offsets[0]) = static_cast<T>(draw_binomial(count, probability, numbers));
}

// ---- instantiations -----------------------------------------------------------------------------

#define REGISTER_RANDOM(T)                                  \
  REGISTER_KERNEL("random_poisson_" #T, random_poisson, T); \
  REGISTER_KERNEL("random_binomial_" #T, random_binomial, T)

REGISTER_RANDOM(float);
REGISTER_RANDOM(half);
REGISTER_RANDOM(bfloat);
