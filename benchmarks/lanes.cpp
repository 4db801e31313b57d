// The kernels of lanes.metal, written by hand as loops over a fixed number of lanes, each with the
// operations of a thread in their order. benchmarks/lanes.py compiles and times them.
#include <math.h>
#include <string.h>

namespace {

constexpr int kWidth = 64;
constexpr int kNarrow = 16;  // where lanes read memory that is not adjacent

inline float power_of_two(int n) {
  const int bits = (n + 127) << 23;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

// As metalops computes it: within an ulp.
inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float rounded = rintf(x * 1.44269504f);
  const float r = fmaf(rounded, -0x1.7f7d1cp-20f, fmaf(rounded, -0x1.62e4p-1f, x));
  float p = 0x1.a05p-13f;
  p = fmaf(p, r, 0x1.6d4b6cp-10f);
  p = fmaf(p, r, 0x1.1110f2p-7f);
  p = fmaf(p, r, 0x1.55545ep-5f);
  p = fmaf(p, r, 0x1.555556p-3f);
  p = fmaf(p, r, 0.5f);
  const int n = static_cast<int>(rounded), first = n >> 1;
  return (1.0f + fmaf(r * r, p, r)) * power_of_two(first) * power_of_two(n - first);
}

}  // namespace

extern "C" {

void product(float* __restrict c, const float* a, const float* b, long n) {
  for (long y = 0; y < n; ++y) {
    for (long x = 0; x < n; x += kWidth) {
      float sum[kWidth] = {};
      for (long k = 0; k < n; ++k) {
        for (int l = 0; l < kWidth; ++l) sum[l] += a[y * n + k] * b[k * n + x + l];
      }
      for (int l = 0; l < kWidth; ++l) c[y * n + x + l] = sum[l];
    }
  }
}

void column_sums(float* __restrict out, const float* x, long width, long height) {
  for (long g = 0; g < width; g += kWidth) {
    float sum[kWidth] = {};
    for (long k = 0; k < height; ++k) {
      for (int l = 0; l < kWidth; ++l) sum[l] += x[k * width + g + l];
    }
    for (int l = 0; l < kWidth; ++l) out[g + l] = sum[l];
  }
}

void row_sums(float* __restrict out, const float* x, long width, long height) {
  for (long g = 0; g < height; g += kNarrow) {
    float sum[kNarrow] = {};
    for (long k = 0; k < width; ++k) {
      for (int l = 0; l < kNarrow; ++l) sum[l] += x[(g + l) * width + k];
    }
    for (int l = 0; l < kNarrow; ++l) out[g + l] = sum[l];
  }
}

void mandelbrot(float* __restrict out, long width) {
  constexpr int kLanes = 32;
  for (long y = 0; y < width; ++y) {
    for (long x = 0; x < width; x += kLanes) {
      float cr[kLanes], zr[kLanes] = {}, zi[kLanes] = {};
      const float ci = y * 2.0f / width - 1.0f;
      int n[kLanes] = {}, live[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        cr[l] = (x + l) * 3.0f / width - 2.0f;
        live[l] = 1;
      }
      for (int k = 0, any = 1; k < 100 && any; ++k) {
        any = 0;
        for (int l = 0; l < kLanes; ++l) {
          live[l] &= zr[l] * zr[l] + zi[l] * zi[l] < 4;
          const float next = zr[l] * zr[l] - zi[l] * zi[l] + cr[l];
          const float other = 2 * zr[l] * zi[l] + ci;
          zr[l] = live[l] ? next : zr[l];
          zi[l] = live[l] ? other : zi[l];
          n[l] += live[l];
          any |= live[l];
        }
      }
      for (int l = 0; l < kLanes; ++l) out[y * width + x + l] = n[l];
    }
  }
}

void multiply_adds(float* __restrict out, const float* x, long n) {
  for (long g = 0; g < n; g += kWidth) {
    float v[kWidth];
    for (int l = 0; l < kWidth; ++l) v[l] = x[g + l];
    for (int j = 0; j < 200; ++j) {
      for (int l = 0; l < kWidth; ++l) v[l] = v[l] * 0.75f + 0.5f;
    }
    for (int l = 0; l < kWidth; ++l) out[g + l] = v[l];
  }
}

void convolution(float* __restrict out, const float* x, const float* filter, long width,
                 long size) {
  for (long y = 0; y < width; ++y) {
    for (long g = 0; g < width; g += kWidth) {
      float sum[kWidth] = {};
      for (long i = 0; i < size; ++i) {
        for (long j = 0; j < size; ++j) {
          const float* from = x + (y + i) * (width + size - 1) + g + j;
          for (int l = 0; l < kWidth; ++l) sum[l] += filter[i * size + j] * from[l];
        }
      }
      for (int l = 0; l < kWidth; ++l) out[y * width + g + l] = sum[l];
    }
  }
}

void filter_7x7(float* __restrict out, const float* x, const float* filter, long width) {
  convolution(out, x, filter, width, 7);
}

void stencil(float* __restrict out, const float* x, long width, long height) {
  for (long i = 1; i + 1 < height; ++i) {
    for (long j = 1; j + 1 < width; ++j) {
      const float* at = x + i * width + j;
      out[i * width + j] = 0.5f * at[0] + 0.125f * (at[-1] + at[1] + at[-width] + at[width]);
    }
  }
}

void n_body(float* __restrict out, const float* bodies, const float* speeds, long n) {
  for (long g = 0; g < n; g += kWidth) {
    float p[3][kWidth], sum[3][kWidth] = {};
    for (int c = 0; c < 3; ++c) {
      for (int l = 0; l < kWidth; ++l) p[c][l] = bodies[(g + l) * 4 + c];
    }
    for (long j = 0; j < n; ++j) {
      const float* q = bodies + j * 4;
      for (int l = 0; l < kWidth; ++l) {
        const float dx = q[0] - p[0][l], dy = q[1] - p[1][l], dz = q[2] - p[2][l];
        const float r = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
        const float weight = q[3] * r * r * r;
        sum[0][l] += dx * weight;
        sum[1][l] += dy * weight;
        sum[2][l] += dz * weight;
      }
    }
    for (int l = 0; l < kWidth; ++l) {
      for (int c = 0; c < 3; ++c) {
        out[(g + l) * 4 + c] = p[c][l] + (speeds[(g + l) * 4 + c] + sum[c][l] * 0.01f) * 0.01f;
      }
      out[(g + l) * 4 + 3] = bodies[(g + l) * 4 + 3];
    }
  }
}

void softmax(float* __restrict out, const float* x, long width, long height) {
  for (long g = 0; g < height; g += kNarrow) {
    float most[kNarrow], sum[kNarrow] = {};
    const float* from = x + g * width;
    for (int l = 0; l < kNarrow; ++l) most[l] = -INFINITY;
    for (long k = 0; k < width; ++k) {
      for (int l = 0; l < kNarrow; ++l) {
        const float v = from[l * width + k];
        most[l] = most[l] > v ? most[l] : v;
      }
    }
    for (long k = 0; k < width; ++k) {
      for (int l = 0; l < kNarrow; ++l) sum[l] += exponential(from[l * width + k] - most[l]);
    }
    for (long k = 0; k < width; ++k) {
      float value[kNarrow];
      for (int l = 0; l < kNarrow; ++l) {
        value[l] = exponential(from[l * width + k] - most[l]) / sum[l];
      }
      for (int l = 0; l < kNarrow; ++l) out[(g + l) * width + k] = value[l];
    }
  }
}

void hash(unsigned* __restrict out, const unsigned* x, long n) {
  for (long g = 0; g < n; g += kWidth) {
    unsigned h[kWidth];
    for (int l = 0; l < kWidth; ++l) h[l] = x[g + l];
    for (unsigned i = 0; i < 64; ++i) {
      for (int l = 0; l < kWidth; ++l) {
        h[l] ^= h[l] >> 16;
        h[l] *= 0x7feb352du;
        h[l] ^= h[l] >> 15;
        h[l] *= 0x846ca68bu;
        h[l] ^= h[l] >> 16;
        h[l] += i;
      }
    }
    for (int l = 0; l < kWidth; ++l) out[g + l] = h[l];
  }
}

void gemv_4bit(float* __restrict out, const unsigned char* weights, const float* scales,
               const float* x, long n, long rows) {
  for (long g = 0; g < rows; g += kNarrow) {
    float sum[kNarrow] = {};
    for (long b = 0; b < n / 32; ++b) {
      float of_block[kNarrow] = {};
      for (long k = 0; k < 16; ++k) {
        for (int l = 0; l < kNarrow; ++l) {
          const int w = weights[(g + l) * (n / 2) + b * 16 + k];
          of_block[l] += ((w & 15) - 8) * x[b * 32 + k] + ((w >> 4) - 8) * x[b * 32 + k + 16];
        }
      }
      for (int l = 0; l < kNarrow; ++l) sum[l] += of_block[l] * scales[(g + l) * (n / 32) + b];
    }
    for (int l = 0; l < kNarrow; ++l) out[g + l] = sum[l];
  }
}

}  // extern "C"
