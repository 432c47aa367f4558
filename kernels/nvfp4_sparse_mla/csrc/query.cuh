// The query as tensor-core fragments in registers: one warp's half of the dims of 16 heads.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "formats.cuh"

// After scaling, the largest query value of a head lies in [2^9, 2^10): far from fp16's overflow, and values 2^-20
// times as large still keep all their bits. The power of two goes back in through the score factor.
constexpr int kQueryExponent = 9;

// Two values in one register, bf16 or fp16. Scaling by a power of two is exact in either.
template <bool kHalf>
struct QueryPair;

template <>
struct QueryPair<false> {
  using Two = __nv_bfloat162;
  __device__ static Two from(uint32_t word) { return *reinterpret_cast<const Two*>(&word); }
  __device__ static float largest(Two two) { return fmaxf(__low2float(two), __high2float(two)); }
  __device__ static Two scale(float factor) { return __float2bfloat162_rn(factor); }
  // Halves of one pair each, as two fp16 values.
  __device__ static uint32_t lows(Two a, Two b) { return to_half2(__low2float(a), __low2float(b)); }
  __device__ static uint32_t highs(Two a, Two b) { return to_half2(__high2float(a), __high2float(b)); }
  __device__ static uint32_t both(Two a) { return to_half2(__low2float(a), __high2float(a)); }
};

template <>
struct QueryPair<true> {
  using Two = __half2;
  __device__ static Two from(uint32_t word) { return *reinterpret_cast<const Two*>(&word); }
  __device__ static float largest(Two two) { return fmaxf(__low2float(two), __high2float(two)); }
  __device__ static Two scale(float factor) { return __float2half2_rn(factor); }
  __device__ static uint32_t lows(Two a, Two b) { return bits(__lows2half2(a, b)); }
  __device__ static uint32_t highs(Two a, Two b) { return bits(__highs2half2(a, b)); }
  __device__ static uint32_t both(Two a) { return bits(a); }
  __device__ static uint32_t bits(Two a) { return *reinterpret_cast<const uint32_t*>(&a); }
};

// Exponent e with amax in [2^e, 2^(e+1)), kept where the power of two that undoes it is representable.
template <bool kHalf>
__device__ inline int query_exponent(float amax) {
  if (amax == 0.0f) return kQueryExponent;
  return max(int(__float_as_uint(amax) >> 23) - 127, kHalf ? -6 : -100);
}

__device__ inline float power_of_two(int exponent) { return __uint_as_float(uint32_t(exponent + 127) << 23); }

// Eight neighbouring dims (four words) -> four registers: k-step 0 (b0, b1), k-step 1 (b0, b1).
template <bool kInterleaved, bool kHalf>
__device__ inline void query_registers(const uint4& w, float scale, uint32_t (&r)[4]) {
  using Pair = QueryPair<kHalf>;
  const typename Pair::Two factor = Pair::scale(scale);
  const typename Pair::Two a = __hmul2(Pair::from(w.x), factor), b = __hmul2(Pair::from(w.y), factor);
  const typename Pair::Two c = __hmul2(Pair::from(w.z), factor), d = __hmul2(Pair::from(w.w), factor);
  if constexpr (kInterleaved) {
    r[0] = Pair::lows(a, b);
    r[1] = Pair::lows(c, d);
    r[2] = Pair::highs(a, b);
    r[3] = Pair::highs(c, d);
  } else {
    r[0] = Pair::both(a);
    r[1] = Pair::both(b);
    r[2] = Pair::both(c);
    r[3] = Pair::both(d);
  }
}

// The query as it lies in memory: heads g and g + 8 of 16, one lane's 64 latent and 8 positional dims of one half.
struct RawQuery {
  uint4 words[2][9];  // 8 of latent dims, 1 of positional ones

  __device__ void fetch(const PrimeDecode& args, int token, int head, int half, int lane) {
    const int g = lane / 4, c = lane % 4;
    const uint16_t* latent = static_cast<const uint16_t*>(args.q_latent) + token * args.q_latent_strides[0];
    const uint16_t* rope = static_cast<const uint16_t*>(args.q_rope) + token * args.q_rope_strides[0];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int row = head + g + 8 * side;
      const uint16_t* latent_row = latent + row * args.q_latent_strides[1] + 256 * half + 16 * c;
      const uint16_t* rope_row = rope + row * args.q_rope_strides[1] + 32 * half + 8 * c;
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        const uint16_t* from = i < 8 ? latent_row + 64 * (i / 2) + 8 * (i % 2) : rope_row;
        words[side][i] = row < args.heads ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
      }
    }
  }
};

struct QueryFragments {
  uint32_t latent[4][4][4];  // chunk, k-step, a0..a3
  uint32_t rope[2][4];       // k-step, a0..a3
  float factor[2];           // raw score of heads g and g + 8 -> score in powers of two

  template <class Rows, bool kHalf>
  __device__ void convert(const RawQuery& raw, float softmax_scale) {
    using Pair = QueryPair<kHalf>;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      typename Pair::Two largest = __habs2(Pair::from(raw.words[side][0].x));
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        const uint4& w = raw.words[side][i];
        largest = __hmax2(__hmax2(largest, __habs2(Pair::from(w.x))), __habs2(Pair::from(w.y)));
        largest = __hmax2(__hmax2(largest, __habs2(Pair::from(w.z))), __habs2(Pair::from(w.w)));
      }
      float amax = Pair::largest(largest);
      amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
      const int exponent = query_exponent<kHalf>(amax);
      const float scale = power_of_two(kQueryExponent - exponent);
      factor[side] = softmax_scale * 1.44269504f * Rows::kValueScale * power_of_two(exponent - kQueryExponent);
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        query_registers<Rows::kInterleaved, kHalf>(raw.words[side][i], scale, r);
        latent[i / 2][2 * (i % 2)][side] = r[0];
        latent[i / 2][2 * (i % 2)][2 + side] = r[1];
        latent[i / 2][2 * (i % 2) + 1][side] = r[2];
        latent[i / 2][2 * (i % 2) + 1][2 + side] = r[3];
      }
      // Positional values are never interleaved, and are true values: the latent ones may be smaller by kValueScale.
      query_registers<false, kHalf>(raw.words[side][8], scale / Rows::kValueScale, r);
      rope[0][side] = r[0];
      rope[0][2 + side] = r[1];
      rope[1][side] = r[2];
      rope[1][2 + side] = r[3];
    }
  }
};
