// Kernels with a thread per result, as people write them first, that benchmarks/lanes.py times.
#include <metal_stdlib>
using namespace metal;

kernel void product(device float* c, device const float* a, device const float* b, constant uint& n,
                    uint2 gid [[thread_position_in_grid]]) {
  if (gid.x >= n || gid.y >= n) return;
  float sum = 0;
  for (uint k = 0; k < n; ++k) sum += a[gid.y * n + k] * b[k * n + gid.x];
  c[gid.y * n + gid.x] = sum;
}

kernel void column_sums(device float* out, device const float* x, constant uint& width,
                        constant uint& height, uint gid [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint k = 0; k < height; ++k) sum += x[k * width + gid];
  out[gid] = sum;
}

kernel void row_sums(device float* out, device const float* x, constant uint& width,
                     uint gid [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint k = 0; k < width; ++k) sum += x[gid * width + k];
  out[gid] = sum;
}

kernel void mandelbrot(device float* out, constant uint& width,
                       uint2 gid [[thread_position_in_grid]]) {
  const float cr = gid.x * 3.0f / width - 2.0f, ci = gid.y * 2.0f / width - 1.0f;
  float zr = 0, zi = 0;
  int n = 0;
  for (; n < 100; ++n) {
    float next = zr * zr - zi * zi + cr;
    if (zr * zr + zi * zi >= 4) break;
    zi = 2 * zr * zi + ci;
    zr = next;
  }
  out[gid.y * width + gid.x] = n;
}

kernel void multiply_adds(device float* out, device const float* x,
                          uint gid [[thread_position_in_grid]]) {
  float v = x[gid];
  for (int j = 0; j < 200; ++j) v = v * 0.75f + 0.5f;
  out[gid] = v;
}

kernel void filter_7x7(device float* out, device const float* x, device const float* filter,
                       constant uint& width, uint2 gid [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint i = 0; i < 7; ++i) {
    for (uint j = 0; j < 7; ++j) {
      sum += filter[i * 7 + j] * x[(gid.y + i) * (width + 6) + gid.x + j];
    }
  }
  out[gid.y * width + gid.x] = sum;
}

kernel void convolution(device float* out, device const float* x, device const float* filter,
                        constant uint& width, constant uint& size,
                        uint2 gid [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint i = 0; i < size; ++i) {
    for (uint j = 0; j < size; ++j) {
      sum += filter[i * size + j] * x[(gid.y + i) * (width + size - 1) + gid.x + j];
    }
  }
  out[gid.y * width + gid.x] = sum;
}

kernel void stencil(device float* out, device const float* x, constant uint& width,
                    constant uint& height, uint2 gid [[thread_position_in_grid]]) {
  if (gid.x == 0 || gid.y == 0 || gid.x + 1 >= width || gid.y + 1 >= height) return;
  uint i = gid.y * width + gid.x;
  out[i] = 0.5f * x[i] + 0.125f * (x[i - 1] + x[i + 1] + x[i - width] + x[i + width]);
}

kernel void n_body(device float4* out, device const float4* bodies, device const float4* speeds,
                   constant uint& n, uint gid [[thread_position_in_grid]]) {
  float4 p = bodies[gid];
  float3 acceleration = 0;
  for (uint j = 0; j < n; ++j) {
    float4 q = bodies[j];
    float3 d = q.xyz - p.xyz;
    float r = rsqrt(dot(d, d) + 0.01f);
    acceleration += d * (q.w * r * r * r);
  }
  float4 v = speeds[gid];
  p.xyz += (v.xyz + acceleration * 0.01f) * 0.01f;
  out[gid] = p;
}

kernel void softmax(device float* out, device const float* x, constant uint& width,
                    uint gid [[thread_position_in_grid]]) {
  float most = -INFINITY, sum = 0;
  for (uint k = 0; k < width; ++k) most = max(most, x[gid * width + k]);
  for (uint k = 0; k < width; ++k) sum += exp(x[gid * width + k] - most);
  for (uint k = 0; k < width; ++k) out[gid * width + k] = exp(x[gid * width + k] - most) / sum;
}

kernel void hash(device uint* out, device const uint* x, uint gid [[thread_position_in_grid]]) {
  uint h = x[gid];
  for (uint i = 0; i < 64; ++i) {
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    h ^= h >> 16;
    h += i;
  }
  out[gid] = h;
}

// Blocks of 32 weights with 4 bits and one scale: those of the low bits, then those of the high
// ones.
kernel void gemv_4bit(device float* out, device const uchar* weights, device const float* scales,
                      device const float* x, constant uint& n,
                      uint gid [[thread_position_in_grid]]) {
  float sum = 0;
  for (uint b = 0; b < n / 32; ++b) {
    float of_block = 0;
    for (uint k = 0; k < 16; ++k) {
      uchar w = weights[gid * (n / 2) + b * 16 + k];
      of_block += (int(w & 15) - 8) * x[b * 32 + k] + (int(w >> 4) - 8) * x[b * 32 + k + 16];
    }
    sum += of_block * scales[gid * (n / 32) + b];
  }
  out[gid] = sum;
}
