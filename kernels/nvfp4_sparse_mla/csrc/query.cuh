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

// The scaled fp16 query in shared memory: 16 heads of 72 units of eight dims (64 latent, 8 positional), each unit in the
// order of a fragment's registers; then the heads' score factors. Odd heads swap neighbouring units, which frees the
// fragment loads of bank conflicts.
constexpr int kQueryPitch = 2 * (kLatentDim + kRopeDim);
constexpr int kQueryFactors = 16 * kQueryPitch;
constexpr int kQueryBytes = kQueryFactors + 16 * 4;

__device__ inline uint32_t query_unit(uint32_t smem, int head, int unit) {
  return smem + head * kQueryPitch + 16 * (unit ^ (head & 1));
}

// Two heads of the query as they lie in memory: warp w loads heads 2w and 2w + 1, neighbouring lanes neighbouring bytes.
template <bool kHalf>
struct RawQuery {
  using Pair = QueryPair<kHalf>;
  uint4 latent[2][2];  // head, half of the dims
  uint4 rope;          // lanes 0-7: of the first head, 8-15: of the second

  __device__ static uint4 load(const uint16_t* from, bool exists) {
    return exists ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }

  __device__ void fetch(const PrimeDecode& args, int token, int head, int warp, int lane) {
    const uint16_t* latent_token = static_cast<const uint16_t*>(args.q_latent) + token * args.q_latent_strides[0];
    const uint16_t* rope_token = static_cast<const uint16_t*>(args.q_rope) + token * args.q_rope_strides[0];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int row = head + 2 * warp + side;
      const uint16_t* from = latent_token + row * args.q_latent_strides[1] + 8 * lane;
      latent[side][0] = load(from, row < args.heads);
      latent[side][1] = load(from + 256, row < args.heads);
    }
    const int row = head + 2 * warp + lane / 8;
    rope = load(rope_token + row * args.q_rope_strides[1] + 8 * (lane % 8), lane < 16 && row < args.heads);
  }

  __device__ static float largest(const uint4& w) {
    return Pair::largest(__hmax2(__hmax2(__habs2(Pair::from(w.x)), __habs2(Pair::from(w.y))),
                                 __hmax2(__habs2(Pair::from(w.z)), __habs2(Pair::from(w.w)))));
  }

  // Scales each head, turns it to fp16 and leaves it in shared memory.
  template <class Rows>
  __device__ void convert(uint32_t smem, float softmax_scale, int warp, int lane) const {
    float amax[2];
    const float of_rope = largest(rope);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      amax[side] = fmaxf(largest(latent[side][0]), largest(latent[side][1]));
      if (lane / 8 == side) amax[side] = fmaxf(amax[side], of_rope);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        amax[side] = fmaxf(amax[side], __shfl_xor_sync(0xFFFFFFFFu, amax[side], distance));
      }
    }
    float scale[2];
    uint32_t r[4];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int exponent = query_exponent<kHalf>(amax[side]);
      scale[side] = power_of_two(kQueryExponent - exponent);
      const float factor = softmax_scale * 1.44269504f * Rows::kValueScale * power_of_two(exponent - kQueryExponent);
      const int head = 2 * warp + side;
      if (lane == 0) store_shared(smem + kQueryFactors + 4 * head, factor);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        query_registers<Rows::kInterleaved, kHalf>(latent[side][half], scale[side], r);
        store_shared(query_unit(smem, head, 32 * half + lane), r[0], r[1], r[2], r[3]);
      }
    }
    if (lane < 16) {
      // Positional values are never interleaved, and are true values: the latent ones may be smaller by kValueScale.
      query_registers<false, kHalf>(rope, (lane < 8 ? scale[0] : scale[1]) / Rows::kValueScale, r);
      store_shared(query_unit(smem, 2 * warp + lane / 8, 64 + lane % 8), r[0], r[1], r[2], r[3]);
    }
  }
};

// Heads g and g + 8, one lane's 64 latent and 8 positional dims of one half.
struct QueryFragments {
  uint32_t latent[4][4][4];  // chunk, k-step, a0..a3
  uint32_t rope[2][4];       // k-step, a0..a3
  float factor[2];           // raw score of heads g and g + 8 -> score in powers of two

  __device__ void load(uint32_t smem, int half, int lane) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = g + 8 * side;
      factor[side] = load_shared_f1(smem + kQueryFactors + 4 * head);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4 r = load_shared_v4(query_unit(smem, head, 32 * half + 8 * (i / 2) + 2 * c + i % 2));
        latent[i / 2][2 * (i % 2)][side] = r.x;
        latent[i / 2][2 * (i % 2)][2 + side] = r.y;
        latent[i / 2][2 * (i % 2) + 1][side] = r.z;
        latent[i / 2][2 * (i % 2) + 1][2 + side] = r.w;
      }
      const uint4 r = load_shared_v4(query_unit(smem, head, 64 + 4 * half + c));
      rope[0][side] = r.x;
      rope[0][2 + side] = r.y;
      rope[1][side] = r.z;
      rope[1][2 + side] = r.w;
    }
  }
};
