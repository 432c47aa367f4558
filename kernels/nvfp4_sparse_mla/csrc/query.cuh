// The query as tensor-core fragments in registers: one warp's half of the dims of 16 heads.
#pragma once
#include <cuda_fp16.h>

#include "formats.cuh"

// After scaling, the largest query value of a head lies in [2^9, 2^10): far from fp16's overflow, and values 2^-20
// times as large still keep all their bits. The power of two goes back in through the score factor.
constexpr int kQueryExponent = 9;

__device__ inline float2 query_pair(uint32_t word, bool is_half) {
  if (is_half) return __half22float2(*reinterpret_cast<const __half2*>(&word));
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}

__device__ inline float absolute_maximum(const uint4& w, bool is_half, float amax) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = query_pair(words[i], is_half);
    amax = fmaxf(amax, fmaxf(fabsf(pair.x), fabsf(pair.y)));
  }
  return amax;
}

// Exponent e with amax in [2^e, 2^(e+1)), kept where 2^(9 - e) is an ordinary float.
__device__ inline int query_exponent(float amax) {
  if (amax == 0.0f) return kQueryExponent;
  return max(int(__float_as_uint(amax) >> 23) - 127, -100);
}

__device__ inline float power_of_two(int exponent) { return __uint_as_float(uint32_t(exponent + 127) << 23); }

// Eight neighbouring dims (four words) -> four registers: k-step 0 (b0, b1), k-step 1 (b0, b1).
template <bool kInterleaved>
__device__ inline void query_registers(const uint4& w, bool is_half, float scale, uint32_t (&r)[4]) {
  float x[8];
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = query_pair(words[i], is_half);
    x[2 * i] = pair.x * scale;
    x[2 * i + 1] = pair.y * scale;
  }
  if constexpr (kInterleaved) {
    r[0] = to_half2(x[0], x[2]);
    r[1] = to_half2(x[4], x[6]);
    r[2] = to_half2(x[1], x[3]);
    r[3] = to_half2(x[5], x[7]);
  } else {
    r[0] = to_half2(x[0], x[1]);
    r[1] = to_half2(x[2], x[3]);
    r[2] = to_half2(x[4], x[5]);
    r[3] = to_half2(x[6], x[7]);
  }
}

struct QueryFragments {
  uint32_t latent[4][4][4];  // chunk, k-step, a0..a3
  uint32_t rope[2][4];       // k-step, a0..a3
  float factor[2];           // raw score of heads g and g + 8 -> score in powers of two

  // half: which 256 latent and 32 positional dims; heads g and g + 8 of the 16 that start at `head`.
  template <class Rows>
  __device__ void load(const PrimeDecode& args, int token, int head, int half, int lane) {
    const int g = lane / 4, c = lane % 4;
    const bool is_half = args.query_is_half;
    const uint16_t* latent_base = static_cast<const uint16_t*>(args.q_latent) + token * args.q_latent_strides[0];
    const uint16_t* rope_base = static_cast<const uint16_t*>(args.q_rope) + token * args.q_rope_strides[0];
    uint4 raw[2][4][2], raw_rope[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int row = head + g + 8 * side;
      const bool present = row < args.heads;
      const uint16_t* latent_row = latent_base + row * args.q_latent_strides[1] + 256 * half + 16 * c;
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          raw[side][chunk][part] =
              present ? __ldg(reinterpret_cast<const uint4*>(latent_row + 64 * chunk + 8 * part)) : make_uint4(0, 0, 0, 0);
        }
      }
      const uint16_t* rope_row = rope_base + row * args.q_rope_strides[1] + 32 * half + 8 * c;
      raw_rope[side] = present ? __ldg(reinterpret_cast<const uint4*>(rope_row)) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float amax = absolute_maximum(raw_rope[side], is_half, 0.0f);
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        amax = absolute_maximum(raw[side][chunk][0], is_half, amax);
        amax = absolute_maximum(raw[side][chunk][1], is_half, amax);
      }
      amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
      const int exponent = query_exponent(amax);
      const float scale = power_of_two(kQueryExponent - exponent);
      factor[side] = args.softmax_scale * 1.44269504f * Rows::kValueScale * power_of_two(exponent - kQueryExponent);
      uint32_t r[4];
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          query_registers<Rows::kInterleaved>(raw[side][chunk][part], is_half, scale, r);
          latent[chunk][2 * part][side] = r[0];
          latent[chunk][2 * part][2 + side] = r[1];
          latent[chunk][2 * part + 1][side] = r[2];
          latent[chunk][2 * part + 1][2 + side] = r[3];
        }
      }
      // Positional values are never interleaved, and are true values: the latent ones may be smaller by kValueScale.
      query_registers<false>(raw_rope[side], is_half, scale / Rows::kValueScale, r);
      rope[0][side] = r[0];
      rope[0][2 + side] = r[1];
      rope[1][side] = r[2];
      rope[1][2 + side] = r[3];
    }
  }
};
