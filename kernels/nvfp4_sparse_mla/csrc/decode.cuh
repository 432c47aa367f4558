// Sparse-MLA decode for 16 heads of one token: one cluster, each of its CTAs taking a share of the selected rows.
//
//   key warps   0-7   four pairs on alternate stages of 32 keys; a warp takes the stage's keys and half of the dims:
//                     dequantises into registers, scores from there, and leaves the values once in the value tile.
//                     The pair adds its half scores; each warp then does the softmax of 16 keys.
//   value warps 8-11  128 dims each: weights times values.
//   gather warps 12-15 eight rows each of every stage, into a ring of stages.
//
// A 16-key tile's weights are relative to that tile's own maximum, so key warps never wait for each other's maxima; the
// value warps bring tiles to a common one. Partial results meet in distributed shared memory.
#pragma once
#include "query.cuh"

constexpr int kHeads = 16;           // a tensor-core fragment's rows
constexpr int kStageKeys = 32;
constexpr int kTiles = 2;            // of 16 keys
constexpr int kKeyWarps = 8;
constexpr int kPairs = kKeyWarps / 2;  // as many value tiles, so that a pair waits for no other pair's
constexpr int kValueWarps = 4;
constexpr int kValueBlocks = kLatentDim / 8 / kValueWarps;  // 8-dim blocks of one value warp
constexpr int kGatherWarps = 4;
constexpr int kGatherRows = kStageKeys / kGatherWarps;      // of a stage, by one gather warp
constexpr int kWarps = kKeyWarps + kValueWarps + kGatherWarps;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxCluster = 8;       // the largest portable one
constexpr int kValuePitch = 2 * kLatentDim + 16;  // bytes; the odd 16 keeps stores and ldmatrix free of bank conflicts
constexpr int kWeightPitch = 2 * kStageKeys + 16;
constexpr int kUnits = kLatentDim / 16;           // of 16 dims, what the merge deals out over the cluster
constexpr int kUnitBytes = kHeads * 16 * 2;
constexpr int kGroupStages = 32 / kGatherRows;    // stages whose indices a gather warp holds, one a lane
constexpr int kStatsBytes = kHeads * 2 * 4;       // maximum and sum of each head, as 8 x (max g, max g+8, sum g, sum g+8)
constexpr float kNoKey = -1e30f;     // maximum of no keys; finite, so that differences of two are 0, not NaN
// Registers a thread: 128 for all at the start; gather warps hand 64 each to the key warps, twice as many.
constexpr int kKeyRegisters = 160;
constexpr int kGatherRegisters = 64;

template <class Rows>
struct Shared {
  static constexpr int kSlotBytes = kStageKeys * Rows::kBytes;
  static constexpr int kValueTile = kStageKeys * kValuePitch;
  static constexpr int kRaw = 0;
  static constexpr int kValues = kRaw + Rows::kSlots * kSlotBytes;
  static constexpr int kExchange = kValues + kPairs * kValueTile;         // [pairs][2 warps][2 n-tiles][32 lanes] float4
  static constexpr int kWeights = kExchange + kPairs * 2 * 2 * 512;       // [pairs][16 heads][32 keys] half
  static constexpr int kStats = kWeights + kPairs * kHeads * kWeightPitch;  // [pairs][tiles] kStatsBytes
  static constexpr int kMerge = kStats + kPairs * kTiles * kStatsBytes;   // [8 CTAs] kStatsBytes
  static constexpr int kSelected = kMerge + kMaxCluster * kStatsBytes;    // [slots], a bit a key
  static constexpr int kBarriers = (kSelected + 4 * Rows::kSlots + 7) / 8 * 8;
  static constexpr int kRawFull = kBarriers;                       // [slots]
  static constexpr int kRawEmpty = kRawFull + 8 * Rows::kSlots;    // [slots]
  static constexpr int kValuesFull = kRawEmpty + 8 * Rows::kSlots;  // [pairs]
  static constexpr int kValuesEmpty = kValuesFull + 8 * kPairs;    // [pairs]
  static constexpr int kMergeFull = kValuesEmpty + 8 * kPairs;
  static constexpr int kQueryRead = kMergeFull + 8;
  static constexpr int kBytes = kQueryRead + 8;
  static constexpr int kMailbox = kRaw;  // partial outputs land on the ring once every CTA is done with it
  static constexpr int kQuery = kValues + (kPairs - 1) * kValueTile;  // the last value tile, before its first use
  static_assert(kQueryBytes <= kValueTile, "the query must fit a value tile");
  static_assert(((kUnits + kMaxCluster) * kUnitBytes) <= Rows::kSlots * kSlotBytes, "the mailbox must fit the ring");
  static_assert(kBytes <= 232448, "sm_90 gives a CTA 227 KiB");
};

// Kernels that stop early, for the benchmark's account of where the time goes (parts.cu).
enum class Part {
  kWhole,
  kLaunch,  // barriers, and the cluster's own
  kGather,  // and the selected rows into shared memory, unread
  kScores,  // and scores, weights and unpacked values; no weights times values, no merge
};

struct Work {
  int token, head, rank, cluster, first_stage, stages;
};

// ---- key warps ----

template <class Rows, bool kHalf>
__device__ inline void key_warp(const PrimeDecode& args, const Work& work, const RawQuery<kHalf>& raw_query, uint32_t smem, int warp,
                                int lane) {
  using S = Shared<Rows>;
  const int g = lane / 4, c = lane % 4;
  const int pair = warp / 2, dim_half = warp % 2;  // dim_half also names the 16 keys whose softmax this warp does
  raw_query.template convert<Rows>(smem + S::kQuery, args.softmax_scale, warp, lane);
  named_barrier_sync<32 * kKeyWarps>(1 + kPairs);
  QueryFragments query;
  query.load(smem + S::kQuery, dim_half, lane);
  warp_arrive(smem + S::kQueryRead, lane);

  // Tile n holds keys 8 (n ^ 2 dim_half) and on: so the first two are a warp's own, whichever half it has.
  uint32_t first_key[2] = {uint32_t(16 * dim_half + g), uint32_t(16 * (1 - dim_half) + g)};
  const uint32_t exchange = smem + S::kExchange + pair * 2048 + 16 * lane;
  const uint32_t values = smem + S::kValues + pair * S::kValueTile + 512 * dim_half + 32 * c;
  const uint32_t out[2] = {values + first_key[0] * kValuePitch, values + first_key[1] * kValuePitch};
  for (int stage = pair; stage < work.stages; stage += kPairs) {
    const int slot = stage % Rows::kSlots;
    barrier_wait(smem + S::kRawFull + 8 * slot, (stage / Rows::kSlots) & 1);
    const uint32_t ring = smem + S::kRaw + slot * S::kSlotBytes;
    const uint32_t raw[2] = {ring + first_key[0] * Rows::kBytes, ring + first_key[1] * Rows::kBytes};

    // The next chunk's loads come before this chunk's stores: the compiler may not move a load over a store.
    float score[4][4] = {};
    uint32_t selected = 0;
    typename Rows::Packed packed[4], next[4];
    uint2 rope[4];
    typename Rows::Scales scales[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      packed[n] = Rows::fetch(raw[n / 2] + 8 * (n % 2) * Rows::kBytes, 4 * dim_half, c);
      scales[n] = Rows::fetch_scales(raw[n / 2] + 8 * (n % 2) * Rows::kBytes, dim_half, c);
    }
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      if (chunk < 3) {
#pragma unroll
        for (int n = 0; n < 4; ++n) next[n] = Rows::fetch(raw[n / 2] + 8 * (n % 2) * Rows::kBytes, 4 * dim_half + chunk + 1, c);
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          rope[n] = load_shared_v2(raw[n / 2] + 8 * (n % 2) * Rows::kBytes + Rows::kRope + 32 * dim_half + 8 * c);
        }
      }
      uint32_t v[4][8];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Rows::unpack(packed[n], scales[n], chunk, v[n]);
        packed[n] = next[n];
      }
      if (chunk == 3) {  // the stage's bytes are in registers
        selected = load_shared_u16(smem + S::kSelected + 4 * slot + 2 * dim_half);
        warp_arrive(smem + S::kRawEmpty + 8 * slot, lane);
      }
      // Four chains of dependent products side by side: one alone would wait 33 cycles at each link.
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          multiply_add(score[n], query.latent[chunk][step], v[n][2 * step], v[n][2 * step + 1]);
        }
      }
      if (chunk == 0) {  // as late as it can be: the value warps may still be at work on the tile
        barrier_wait(smem + S::kValuesEmpty + 8 * pair, ((stage / kPairs) & 1) ^ 1);
        if (stage == kPairs - 1) barrier_wait(smem + S::kQueryRead, 0);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        store_shared(out[n / 2] + 8 * (n % 2) * kValuePitch + 128 * chunk, v[n][0], v[n][1], v[n][2], v[n][3]);
        store_shared(out[n / 2] + 8 * (n % 2) * kValuePitch + 128 * chunk + 16, v[n][4], v[n][5], v[n][6], v[n][7]);
      }
    }
    uint32_t positional[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      e4m3_to_half2(rope[n].x, positional[n][0], positional[n][1]);
      e4m3_to_half2(rope[n].y, positional[n][2], positional[n][3]);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        multiply_add(score[n], query.rope[step], positional[n][2 * step], positional[n][2 * step + 1]);
      }
    }

    // Half scores to whole scores: keep the first two tiles, hand over the others.
#pragma unroll
    for (int n = 0; n < 2; ++n) store_shared(exchange + 1024 * dim_half + 512 * n, score[n + 2]);
    named_barrier_sync<64>(1 + pair);
    float x[2][4], maximum[2] = {kNoKey, kNoKey}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 other = load_shared_f4(exchange + 1024 * (1 - dim_half) + 512 * n);
      const float add[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool on = (selected >> (8 * n + 2 * c + i % 2)) & 1;
        x[n][i] = on ? (score[n][i] + add[i]) * query.factor[i / 2] : -INFINITY;
        maximum[i / 2] = fmaxf(maximum[i / 2], x[n][i]);
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      maximum[side] = fmaxf(maximum[side], __shfl_xor_sync(0xFFFFFFFFu, maximum[side], 1));
      maximum[side] = fmaxf(maximum[side], __shfl_xor_sync(0xFFFFFFFFu, maximum[side], 2));
    }
    const uint32_t weights = smem + S::kWeights + pair * kHeads * kWeightPitch + 32 * dim_half + 4 * c;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float p0 = exp2_fast(x[n][2 * side] - maximum[side]);
        const float p1 = exp2_fast(x[n][2 * side + 1] - maximum[side]);
        sum[side] += p0 + p1;
        store_shared(weights + (g + 8 * side) * kWeightPitch + 16 * n, to_half2(p0, p1));
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      sum[side] += __shfl_xor_sync(0xFFFFFFFFu, sum[side], 1);
      sum[side] += __shfl_xor_sync(0xFFFFFFFFu, sum[side], 2);
    }
    if (c == 0) {
      const float stats[4] = {maximum[0], maximum[1], sum[0], sum[1]};
      store_shared(smem + S::kStats + (pair * kTiles + dim_half) * kStatsBytes + 16 * g, stats);
    }
    warp_arrive(smem + S::kValuesFull + 8 * pair, lane);
  }
}

// ---- gather warp ----

// Addresses fit 32 bits in units of 16 bytes: every stride is a multiple of that, and a cache spans at most 64 GiB.
__device__ inline uint32_t row_unit(const PrimeCache& cache, int row) {
  const int shift = __ffs(cache.block_size) - 1;
  const uint32_t block = cache.block_size == 1 << shift ? uint32_t(row) >> shift : uint32_t(row) / cache.block_size;
  const uint32_t within = uint32_t(row) - block * cache.block_size;
  return block * uint32_t(cache.block_stride >> 4) + within * uint32_t(cache.row_stride >> 4);
}

// The row that a lane looks after in a group of four stages, or -1: of each, gather warp w has rows 8w to 8w + 7. One
// load serves four stages: a load a stage would make every stage wait for an index to arrive.
__device__ inline int gather_index(const PrimeDecode& args, const Work& work, int group, int warp, int lane) {
  const int stage = kGroupStages * group + lane / kGatherRows;
  const int position = (work.first_stage + stage) * kStageKeys + kGatherRows * warp + lane % kGatherRows;
  if (stage >= work.stages || position >= args.topk) return -1;
  return __ldg(args.indices + work.token * args.indices_stride + position);
}

// Rows of the first two groups; on their way while barriers are set up.
struct FirstRows {
  int row = -1, next_row = -1;
};

template <class Rows>
__device__ inline void gather_warp(const PrimeDecode& args, const Work& work, uint32_t smem, int warp, int lane,
                                   FirstRows rows) {
  using S = Shared<Rows>;
  constexpr int kUnits16 = Rows::kBytes / 16;  // of a row: 22 or 36
  constexpr int kWide = kUnits16 < 32 ? kUnits16 : 32;
  constexpr int kRest = kUnits16 - kWide;      // what a 32-lane copy leaves of a row; one more copy takes it of all rows
  static_assert(kRest * kGatherRows <= 32, "the rests of a warp's rows fit one copy");
  uint32_t unit = 0, mask = 0;
  for (int stage = 0; stage < work.stages; ++stage) {
    const int within_group = stage % kGroupStages;
    if (within_group == 0) {
      const bool selected = rows.row >= 0 && rows.row < args.cache.rows;
      unit = row_unit(args.cache, selected ? rows.row : 0);
      mask = __ballot_sync(0xFFFFFFFFu, selected);
      rows.row = rows.next_row;
      rows.next_row = gather_index(args, work, stage / kGroupStages + 2, warp, lane);
    }
    const int slot = stage % Rows::kSlots;
    const uint32_t stage_mask = mask >> (kGatherRows * within_group);
    barrier_wait(smem + S::kRawEmpty + 8 * slot, ((stage / Rows::kSlots) & 1) ^ 1);
    const uint32_t out = smem + S::kRaw + slot * S::kSlotBytes + kGatherRows * warp * Rows::kBytes;
#pragma unroll
    for (int key = 0; key < kGatherRows; ++key) {
      const uint32_t start = __shfl_sync(0xFFFFFFFFu, unit, kGatherRows * within_group + key);
      if (lane < kWide) {
        copy_16(out + key * Rows::kBytes + 16 * lane, args.cache.base + 16ull * (start + lane), (stage_mask >> key) & 1 ? 16 : 0);
      }
    }
    if constexpr (kRest > 0) {
      const int key = lane / kRest, within = kWide + lane % kRest;
      const uint32_t start = __shfl_sync(0xFFFFFFFFu, unit, kGatherRows * within_group + key);
      copy_16(out + key * Rows::kBytes + 16 * within, args.cache.base + 16ull * (start + within),
              (stage_mask >> key) & 1 ? 16 : 0);
    }
    const uint32_t full = smem + S::kRawFull + 8 * slot;
    if (lane == 0) {
      store_shared_u8(smem + S::kSelected + 4 * slot + warp, stage_mask);
      barrier_arrive(full);
    }
    barrier_arrive_after_copies(full);
  }
}

struct Partial {
  float output[kValueBlocks][4] = {};  // blocks of 8 dims; heads g and g + 8, positions 2c and 2c + 1
  float maximum[2] = {kNoKey, kNoKey};
  float sum[2] = {0.0f, 0.0f};
};

// Where a value warp's lane reads, for value tile 0. Kept in registers: left alone, the compiler works them out anew in
// every stage, between the barrier and the loads.
struct ValueAddresses {
  uint32_t stats, weights, values;

  template <class S>
  __device__ static ValueAddresses of(uint32_t smem, int warp, int lane) {
    ValueAddresses at = {smem + S::kStats + 16 * (lane / 4),
                         smem + S::kWeights + (lane % 16) * kWeightPitch + 16 * (lane / 16),
                         smem + S::kValues + (lane % 16) * kValuePitch + 16 * (lane / 16) + 16 * kValueBlocks * warp};
    asm volatile("" : "+r"(at.stats), "+r"(at.weights), "+r"(at.values));
    return at;
  }
};

template <class Rows>
__device__ inline void accumulate(Partial& partial, const ValueAddresses& at, int buffer) {
  using S = Shared<Rows>;
  const uint32_t weights = at.weights + buffer * kHeads * kWeightPitch, values = at.values + buffer * S::kValueTile;
  float4 stats[kTiles];
  uint32_t a[kTiles][4], b[kValueBlocks / 2][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    stats[tile] = load_shared_f4(at.stats + (buffer * kTiles + tile) * kStatsBytes);
    load_matrices(a[tile], weights + 32 * tile);
  }
  // The first tile's values are on their way while the weights are brought to a common maximum.
#pragma unroll
  for (int two = 0; two < kValueBlocks / 2; ++two) load_matrices_transposed(b[two], values + 32 * two);

  float weight[kTiles][2], rescale[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float maximum = partial.maximum[side];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      weight[tile][side] = side == 0 ? stats[tile].x : stats[tile].y;
      maximum = fmaxf(maximum, weight[tile][side]);
    }
    rescale[side] = exp2_fast(partial.maximum[side] - maximum);
    partial.maximum[side] = maximum;
    partial.sum[side] *= rescale[side];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      weight[tile][side] = exp2_fast(weight[tile][side] - maximum);
      partial.sum[side] += weight[tile][side] * (side == 0 ? stats[tile].z : stats[tile].w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[tile][i] = multiply_half2(a[tile][i], to_half2(weight[tile][i % 2], weight[tile][i % 2]));
  }
  // Maxima settle after a few stages; from then on there is nothing to rescale.
  if (__any_sync(0xFFFFFFFFu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
    for (int block = 0; block < kValueBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) partial.output[block][i] *= rescale[i / 2];
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int two = 0; two < kValueBlocks / 2; ++two) {
      multiply_add(partial.output[2 * two], a[tile], b[two][0], b[two][1]);
      multiply_add(partial.output[2 * two + 1], a[tile], b[two][2], b[two][3]);
      if (tile + 1 < kTiles) load_matrices_transposed(b[two], values + 16 * (tile + 1) * kValuePitch + 32 * two);
    }
  }
}

// Sends each unit of 16 dims to the CTA that merges it, and this CTA's maxima and sums to all. What crosses is the
// CTA's own weighted mean, which lies within its values' range and so fits fp16 in true units (at most 6 * 448).
template <class Rows>
__device__ inline void send_partial(const Partial& partial, const Work& work, uint32_t smem, int warp, int lane) {
  using S = Shared<Rows>;
  const uint32_t barrier = smem + S::kMergeFull;
  for (int peer = warp; peer < work.cluster; peer += kValueWarps) {
    const uint32_t at = smem + S::kMerge + kStatsBytes * work.rank + 4 * lane;
    if (lane % 4 == 0) {
      remote_store(remote_address(at, peer), __float_as_uint(partial.maximum[0]), __float_as_uint(partial.maximum[1]),
                   __float_as_uint(partial.sum[0]), __float_as_uint(partial.sum[1]), remote_address(barrier, peer));
    }
  }
  float scale[2];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    scale[side] = partial.sum[side] == 0.0f ? 0.0f : __fdividef(Rows::kValueScale, partial.sum[side]);
  }
  constexpr int kOwn = kUnits / kValueWarps;
  int row = kOwn * warp / work.cluster, owner = kOwn * warp - row * work.cluster;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const uint32_t at = smem + S::kMailbox + (row * work.cluster + work.rank) * kUnitBytes + 16 * lane;
    uint32_t halves[4];  // of both blocks of 8 dims, heads g and g + 8
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* o = partial.output[2 * i + j / 2] + 2 * (j % 2);
      halves[j] = to_half2(o[0] * scale[j % 2], o[1] * scale[j % 2]);
    }
    remote_store(remote_address(at, owner), halves[0], halves[1], halves[2], halves[3], remote_address(barrier, owner));
    if (++owner == work.cluster) {
      owner = 0;
      ++row;
    }
  }
}

// What the cluster sends to the CTA of this rank.
__device__ inline uint32_t merge_bytes(int rank, int cluster) {
  const int units = (kUnits - rank + cluster - 1) / cluster;
  return uint32_t(cluster * (units * kUnitBytes + kStatsBytes));
}

// ---- merge, by as many key warps of every CTA as it has units ----

template <class Rows>
__device__ inline void merge(const PrimeDecode& args, const Work& work, uint32_t smem, int warp, int lane) {
  using S = Shared<Rows>;
  const int g = lane / 4, c = lane % 4;
  // Peers beyond the cluster count as the last one with weight 0: without branches all loads are under way together.
  float weight[kMaxCluster][2];
  float4 stats[kMaxCluster];
  float maximum[2] = {kNoKey, kNoKey}, total[2] = {0.0f, 0.0f};
#pragma unroll
  for (int peer = 0; peer < kMaxCluster; ++peer) {
    stats[peer] = load_shared_f4(smem + S::kMerge + kStatsBytes * min(peer, work.cluster - 1) + 16 * g);
  }
#pragma unroll
  for (int peer = 0; peer < kMaxCluster; ++peer) {
    maximum[0] = fmaxf(maximum[0], stats[peer].x);
    maximum[1] = fmaxf(maximum[1], stats[peer].y);
  }
#pragma unroll
  for (int peer = 0; peer < kMaxCluster; ++peer) {
    const bool exists = peer < work.cluster;
    weight[peer][0] = exists ? exp2_fast(stats[peer].x - maximum[0]) * stats[peer].z : 0.0f;
    weight[peer][1] = exists ? exp2_fast(stats[peer].y - maximum[1]) * stats[peer].w : 0.0f;
    total[0] += weight[peer][0];
    total[1] += weight[peer][1];
  }
  const float scale[2] = {total[0] == 0.0f ? 0.0f : __fdividef(1.0f, total[0]),
                          total[1] == 0.0f ? 0.0f : __fdividef(1.0f, total[1])};
  uint16_t* out = static_cast<uint16_t*>(args.out);
  for (int row = warp; row * work.cluster + work.rank < kUnits; row += kKeyWarps) {
    const int place = row * work.cluster, unit = place + work.rank;
    float o[4][2] = {};  // both blocks of 8 dims, heads g and g + 8; positions 2c and 2c + 1
    uint4 parts[kMaxCluster];
#pragma unroll
    for (int peer = 0; peer < kMaxCluster; ++peer) {
      parts[peer] = load_shared_v4(smem + S::kMailbox + (place + min(peer, work.cluster - 1)) * kUnitBytes + 16 * lane);
    }
#pragma unroll
    for (int peer = 0; peer < kMaxCluster; ++peer) {
      const uint32_t words[4] = {parts[peer].x, parts[peer].y, parts[peer].z, parts[peer].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
        o[j][0] += weight[peer][j % 2] * two.x;
        o[j][1] += weight[peer][j % 2] * two.y;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float first = o[j][0] * scale[j % 2], second = o[j][1] * scale[j % 2];
      int dim = 2 * c;
      if constexpr (Rows::kInterleaved) {
        // Positions hold dims 0 2 | 4 6 | 1 3 | 5 7; lanes c and c ^ 2 swap one each to hold neighbours.
        const float received = __shfl_xor_sync(0xFFFFFFFFu, c < 2 ? second : first, 2);
        if (c < 2) {
          second = received;
          dim = 4 * c;
        } else {
          first = received;
          dim = 4 * c - 6;
        }
      }
      const int head = work.head + g + 8 * (j % 2);
      if (head < args.heads) {
        const int64_t at = (int64_t(work.token) * args.heads + head) * kLatentDim + 16 * unit + 8 * (j / 2) + dim;
        *reinterpret_cast<uint32_t*>(out + at) = to_bf16x2(first, second);
      }
    }
  }
  if (work.rank == 0 && warp == 0 && c == 0) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = work.head + g + 8 * side;
      if (head >= args.heads) continue;
      const float lse = total[side] == 0.0f ? -INFINITY : (maximum[side] + log2f(total[side])) * 0.693147181f;
      args.lse[int64_t(work.token) * args.heads + head] = lse;
    }
  }
}

// kHalf: fp16 queries rather than bf16.
template <class Rows, bool kHalf, Part kPart = Part::kWhole>
__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ PrimeDecode args) {
  using S = Shared<Rows>;
  extern __shared__ __align__(128) uint8_t shared_memory[];
  const uint32_t smem = shared_address(shared_memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Grid: (CTA of the cluster, group of 16 heads, token).
  Work work;
  work.token = blockIdx.z;
  work.head = blockIdx.y * kHeads;
  work.rank = int(cluster_rank());
  work.cluster = args.cluster_size;
  work.stages = args.stages_each + (work.rank < args.stages_over);
  work.first_stage = work.rank * args.stages_each + min(work.rank, args.stages_over);

  if (threadIdx.x == 32 * kKeyWarps) {  // a value warp: these have nothing else to do yet
    for (int slot = 0; slot < Rows::kSlots; ++slot) {
      barrier_init(smem + S::kRawFull + 8 * slot, 33 * kGatherWarps);  // each lane's copies, each warp's mask
      barrier_init(smem + S::kRawEmpty + 8 * slot, 2 * kWarpArrivals);
    }
    for (int pair = 0; pair < kPairs; ++pair) {
      barrier_init(smem + S::kValuesFull + 8 * pair, 2 * kWarpArrivals);
      barrier_init(smem + S::kValuesEmpty + 8 * pair, kValueWarps * kWarpArrivals);
    }
    barrier_init(smem + S::kMergeFull, 1);
    barrier_init(smem + S::kQueryRead, kKeyWarps * kWarpArrivals);
    barrier_init_fence();
    barrier_arrive_expect(smem + S::kMergeFull, merge_bytes(work.rank, work.cluster));
  }
  let_next_kernel_start();
  wait_for_kernel_ahead();
  // On its way while barriers are set up: the query for key warps, the first stages' indices for gather warps.
  const int gather = warp - kKeyWarps - kValueWarps;
  RawQuery<kHalf> raw_query;
  FirstRows first_rows;
  if (warp < kKeyWarps) {
    raw_query.fetch(args, work.token, work.head, warp, lane);
  } else if (gather >= 0) {
    first_rows.row = gather_index(args, work, 0, gather, lane);
    first_rows.next_row = gather_index(args, work, 1, gather, lane);
  }
  __syncthreads();
  if constexpr (kPart == Part::kLaunch) {
    cluster_arrive();
    cluster_wait();
    return;
  }
  if constexpr (kPart == Part::kGather) {
    if (warp < kKeyWarps) {
      for (int stage = warp / 2; stage < work.stages; stage += kPairs) {
        barrier_wait(smem + S::kRawFull + 8 * (stage % Rows::kSlots), (stage / Rows::kSlots) & 1);
        warp_arrive(smem + S::kRawEmpty + 8 * (stage % Rows::kSlots), lane);
      }
      if (raw_query.latent[0][0].x == 0xFFFFFFFFu) args.lse[0] = 0.0f;  // NaNs: no query has them, but its load stays
    } else if (gather >= 0) {
      gather_warp<Rows>(args, work, smem, gather, lane, first_rows);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    return;
  }
  if (warp < kKeyWarps) {
    take_registers<kKeyRegisters>();
    key_warp<Rows, kHalf>(args, work, raw_query, smem, warp, lane);
    __syncwarp();
    cluster_arrive();  // this CTA's ring is dead: peers may write to it
    cluster_wait();    // every thread of a cluster must, though only value warps need to know
    if constexpr (kPart == Part::kScores) return;
    if (warp * work.cluster + work.rank >= kUnits) return;
    // Nothing is sent to a CTA beyond what it waits for here, so it may leave when it is done.
    barrier_wait(smem + S::kMergeFull, 0);
    merge<Rows>(args, work, smem, warp, lane);
  } else if (gather < 0) {
    if (!kSanitized) cluster_arrive();
    const int value_warp = warp - kKeyWarps;
    const ValueAddresses at = ValueAddresses::of<S>(smem, value_warp, lane);
    Partial partial;
    for (int stage = 0; stage < work.stages; ++stage) {
      const int buffer = stage % kPairs;
      barrier_wait(smem + S::kValuesFull + 8 * buffer, (stage / kPairs) & 1);
      if constexpr (kPart != Part::kScores) accumulate<Rows>(partial, at, buffer);
      warp_arrive(smem + S::kValuesEmpty + 8 * buffer, lane);
    }
    if (kSanitized) cluster_arrive();
    cluster_wait();
    if constexpr (kPart != Part::kScores) send_partial<Rows>(partial, work, smem, value_warp, lane);
  } else {
    give_registers<kGatherRegisters>();
    gather_warp<Rows>(args, work, smem, gather, lane, first_rows);
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}
