#include <cstdio>
#include <cstdint>
#include <vector>
#include <algorithm>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#define N 256
template <int OP> __global__ void micro(uint32_t* out, long long* cyc, uint32_t seed) {
  uint32_t r[8], s = seed + threadIdx.x; for (int i = 0; i < 8; ++i) r[i] = s * (i + 1);
  float acc[8][4] = {};
  __shared__ uint32_t sm[4096];
  uint32_t base = (uint32_t)__cvta_generic_to_shared(sm) + 16 * threadIdx.x % 8192;
  __syncthreads();
  long long t0 = clock64();
  for (int it = 0; it < N; ++it) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (OP == 0) asm volatile("{.reg .b16 l,h; mov.b32 {l,h}, %0; cvt.rn.f16x2.e4m3x2 %0, l;}" : "+r"(r[i]));
      if (OP == 1) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r[i]));
      if (OP == 2) asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3]) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]));
      if (OP == 3) asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(r[i]) : "r"(s));
      if (OP == 4) asm volatile("lop3.b32 %0, %0, %1, 0x1C1C1C1C, 0x6a;" : "+r"(r[i]) : "r"(s));
      if (OP == 5) asm volatile("shf.l.wrap.b32 %0, %0, %1, 3;" : "+r"(r[i]) : "r"(s));
      if (OP == 6) asm volatile("prmt.b32 %0, %0, %1, 0x5140;" : "+r"(r[i]) : "r"(s));
      if (OP == 7) asm volatile("mad.lo.u32 %0, %0, 4, %1;" : "+r"(r[i]) : "r"(s));
      if (OP == 8) asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(r[i]) : "r"(s));
      if (OP == 9) { uint32_t a,b,c,d; asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a),"=r"(b),"=r"(c),"=r"(d) : "r"(base)); r[i] ^= a^b^c^d; }
      if (OP == 10) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(acc[i][0]));
      if (OP == 11) r[i] = __shfl_xor_sync(0xffffffffu, r[i], 1);
      if (OP == 12) asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};" : "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3]) : "r"(r[0]), "r"(r[1]), "r"(r[4]));
      if (OP == 13) { float x; asm volatile("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(r[i]) : "f"(acc[i][0])); acc[i][0] = __uint_as_float(r[i]); }
      if (OP == 14) { uint32_t d0 = __float_as_uint(acc[i][0]), d1 = __float_as_uint(acc[i][1]); asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};" : "+r"(d0), "+r"(d1) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5])); acc[i][0] = __uint_as_float(d0); acc[i][1] = __uint_as_float(d1); }
    }
  }
  long long t1 = clock64();
  uint32_t x = 0; for (int i = 0; i < 8; ++i) x ^= r[i] ^ __float_as_uint(acc[i][0]) ^ __float_as_uint(acc[i][3]);
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
  if (threadIdx.x % 32 == 0) cyc[threadIdx.x / 32] = t1 - t0;
}
template <int OP> void m(const char* name) {
  uint32_t* o; long long* c; cudaMalloc(&o, 4096 * 4); cudaMalloc(&c, 8 * 64); long long h[32];
  printf("%-10s", name);
  for (int w : {1, 4, 8, 16}) { micro<OP><<<1, 32 * w>>>(o, c, 7); micro<OP><<<1, 32 * w>>>(o, c, 7); cudaMemcpy(h, c, 8 * w, cudaMemcpyDeviceToHost);
    long long mx = *std::max_element(h, h + w); printf("  w%-2d %6.2f clk/instr/SM", w, double(mx) / (N * 8 * w)); }
  printf("  %s\n", cudaGetErrorString(cudaGetLastError()));
}
// ---- whole grid ----
__device__ inline void cp16(uint32_t d, const void* s) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(d), "l"(__cvta_generic_to_global(s)) : "memory"); }
// KIND 0 empty, 1 cluster barrier, 2 index load, 3 cp.async by W warps, 4 bulk by W warps
template <int KIND, int ROW, int W> __global__ void __launch_bounds__(512, 1) grid(const uint8_t* cache, const int* idx, float* out, int keys) {
  extern __shared__ __align__(128) uint8_t sm[];
  __shared__ __align__(8) uint64_t bar;
  uint32_t base = (uint32_t)__cvta_generic_to_shared(sm), b = (uint32_t)__cvta_generic_to_shared(&bar);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (KIND == 0) return;
  if (KIND == 1) { asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory"); return; }
  if (KIND == 4) { if (threadIdx.x == 0) { asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; " ::"r"(b) : "memory"); asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(keys * ROW) : "memory"); } __syncthreads(); }
  if (warp < W) {
    int per = keys / W;
    for (int k0 = 0; k0 < per; k0 += 32) {
      int n = min(32, per - k0);
      int row = lane < n ? __ldg(idx + (blockIdx.y * gridDim.x + blockIdx.x) * keys + warp * per + k0 + lane) : 0;
      if (KIND == 2) { if (row == -5) out[0] = 1; continue; }
      if (KIND == 4) { if (lane < n) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(base + (warp * per + k0 + lane) * ROW), "l"(cache + (long long)row * ROW), "r"(ROW), "r"(b) : "memory"); continue; }
#pragma unroll 8
      for (int k = 0; k < n; ++k) {
        long long r = __shfl_sync(~0u, row, k);
        uint32_t d = base + (warp * per + k0 + k) * ROW;
        if (lane * 16 < ROW) cp16(d + 16 * lane, cache + r * ROW + 16 * lane);
        if (ROW > 512 && lane < (ROW - 512) / 16) cp16(d + 512 + 16 * lane, cache + r * ROW + 512 + 16 * lane);
      }
    }
    if (KIND == 3) asm volatile("cp.async.wait_all;" ::: "memory");
  }
  if (KIND == 4 && warp == 0) { asm volatile("{.reg .pred p; w: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @p bra d; bra w; d: }" ::"r"(b) : "memory"); }
}
template <int KIND, int ROW, int W> void g(const char* name, const uint8_t* cache, const int* idx, float* out, int cl = 8) {
  auto k = grid<KIND, ROW, W>; int smem = ROW == 352 ? 160 * 1024 : 160 * 1024;
  cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  cudaStream_t s; cudaStreamCreate(&s); cudaGraph_t gr; cudaGraphExec_t ge;
  cudaLaunchAttribute a; a.id = cudaLaunchAttributeClusterDimension; a.val.clusterDim = {(unsigned)cl, 1, 1};
  cudaLaunchConfig_t c = {}; c.gridDim = dim3(8, 15); c.blockDim = 512; c.dynamicSmemBytes = smem; c.stream = s; c.attrs = &a; c.numAttrs = 1;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < 48; ++i) cudaLaunchKernelEx(&c, k, cache, idx, out, 256);
  cudaStreamEndCapture(s, &gr); cudaGraphInstantiate(&ge, gr, 0);
  cudaEvent_t e0, e1; cudaEventCreate(&e0); cudaEventCreate(&e1); std::vector<float> v;
  for (int i = 0; i < 45; ++i) { cudaEventRecord(e0, s); cudaGraphLaunch(ge, s); cudaEventRecord(e1, s); cudaEventSynchronize(e1); float ms; cudaEventElapsedTime(&ms, e0, e1); if (i > 4) v.push_back(ms * 1000 / 48); }
  std::sort(v.begin(), v.end()); printf("%-34s %7.2f us  %s\n", name, v[v.size() / 2], cudaGetErrorString(cudaGetLastError()));
}
int main() {
  m<0>("F2FP"); m<1>("MOVM"); m<2>("HMMA16816"); m<12>("HMMA1688"); m<14>("HMMA f16acc"); m<3>("HMUL2"); m<8>("HFMA2"); m<4>("LOP3"); m<5>("SHF"); m<6>("PRMT"); m<7>("IMAD"); m<9>("LDSM.T.x4"); m<10>("EX2"); m<11>("SHFL"); m<13>("F2F16x2");
  uint8_t* cache; size_t rows = 8000000; cudaMalloc(&cache, rows * 576); cudaMemset(cache, 0, rows * 576);
  std::vector<int> h(15 * 2048); srand(1);
  for (int t = 0; t < 15; ++t) { int req = t / 5; std::vector<int> pool(3000); srand(req + 1); for (int i = 0; i < 3000; ++i) pool[i] = req * 50000 + (i < 1100 ? 48900 + i : rand() % 48900); srand(100 + t); std::random_shuffle(pool.begin(), pool.end(), [](int n) { return rand() % n; }); for (int i = 0; i < 2048; ++i) h[t * 2048 + i] = pool[i]; }
  int* idx; cudaMalloc(&idx, h.size() * 4); cudaMemcpy(idx, h.data(), h.size() * 4, cudaMemcpyHostToDevice); float* out; cudaMalloc(&out, 4);
  g<0, 352, 4>("empty, cluster 8", cache, idx, out); g<0, 352, 4>("empty, cluster 1", cache, idx, out, 1);
  g<1, 352, 4>("cluster barrier", cache, idx, out); g<2, 352, 4>("index load", cache, idx, out);
  g<3, 352, 4>("cp.async 352 4 warps", cache, idx, out); g<3, 352, 8>("cp.async 352 8 warps", cache, idx, out); g<3, 352, 16>("cp.async 352 16 warps", cache, idx, out);
  g<3, 576, 4>("cp.async 576 4 warps", cache, idx, out); g<3, 576, 8>("cp.async 576 8 warps", cache, idx, out); g<3, 576, 16>("cp.async 576 16 warps", cache, idx, out);
  g<4, 352, 4>("bulk 352 4 warps", cache, idx, out); g<4, 352, 8>("bulk 352 8 warps", cache, idx, out); g<4, 576, 4>("bulk 576 4 warps", cache, idx, out); g<4, 576, 8>("bulk 576 8 warps", cache, idx, out);
}
