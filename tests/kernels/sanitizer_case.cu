// Every kernel once, for compute-sanitizer: buffers of exactly the size in use, selected rows at both ends of the cache,
// -1 and out-of-range indices among them. Its own small program, since under the sanitizer torch takes minutes to start.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "params.h"

extern "C" int prime_decode_prepare(int32_t* capacity);
extern "C" int prime_decode(const PrimeDecode* args, void* stream);
extern "C" int prime_write_rows(const PrimeWrite* args, void* stream);
extern "C" int prime_unpack_rows(const PrimeUnpack* args, void* stream);

namespace {

constexpr int kTokens = 3, kHeads = 20, kTopk = 290, kRows = 128, kWritten = 37;

void check(int code, const char* what) {
  if (code == 0) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(code)));
  std::exit(1);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* pointer = nullptr;
  check(cudaMalloc(&pointer, values.size() * sizeof(T)), "cudaMalloc");
  check(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return pointer;
}

std::vector<uint16_t> random_bf16(size_t count) {
  std::vector<uint16_t> values(count);
  for (auto& value : values) value = uint16_t((std::rand() & 0x80FF) | 0x3F00);  // 0.5 to 2, either sign
  return values;
}

void run(int row_bytes, int only) {
  std::vector<uint8_t> bytes(size_t(kRows) * row_bytes);
  for (auto& byte : bytes) byte = uint8_t(std::rand() & 0xB7);  // never an E4M3 NaN
  const PrimeCache cache = {on_device(bytes), kRows, 16ll * row_bytes, row_bytes, 16, row_bytes};
  std::vector<int32_t> indices(kTokens * kTopk);
  for (auto& index : indices) index = std::rand() % kRows;
  for (size_t i = 0; i < indices.size(); i += 7) indices[i] = -1;
  indices[1] = 0;
  indices[2] = kRows - 1;
  indices[3] = kRows;
  const int32_t* device_indices = on_device(indices);
  const auto* q_latent = on_device(random_bf16(kTokens * kHeads * 512));
  const auto* q_rope = on_device(random_bf16(kTokens * kHeads * 64));
  const std::vector<uint16_t> poison(kTokens * kHeads * 512, 0x7FC0);
  uint16_t* out = on_device(poison);
  float* lse = on_device(std::vector<float>(kTokens * kHeads));
  for (const int cluster : {2, 3, 8}) {  // memcheck refuses distributed shared memory to a cluster of one
    if (only && cluster != only) continue;
    const PrimeDecode decode = {cache, q_latent, q_rope, device_indices, out, lse, {kHeads * 512, 512}, {kHeads * 64, 64},
                                kTopk, kTokens, kHeads, kTopk, 0, 0.01f, cluster, 0, 0, 0};
    check(prime_decode(&decode, nullptr), "decode");
    check(cudaDeviceSynchronize(), "decode");
    std::vector<uint16_t> result(poison.size());
    check(cudaMemcpy(result.data(), out, 2 * result.size(), cudaMemcpyDeviceToHost), "copy back");
    for (const uint16_t value : result) {
      if ((value & 0x7F80) == 0x7F80) check(cudaErrorUnknown, "an output is not a number, or was not written");
    }
  }
  std::vector<int64_t> slots(kWritten);
  for (int i = 0; i < kWritten; ++i) slots[i] = i % 5 ? 3 * i : -1;
  const PrimeWrite write = {cache, on_device(random_bf16(kWritten * 512)), on_device(random_bf16(kWritten * 64)),
                            on_device(slots), 512, 64, kWritten};
  check(prime_write_rows(&write, nullptr), "write");
  if (row_bytes == 352) {
    const PrimeUnpack unpack = {cache, device_indices, kTopk, on_device(std::vector<uint8_t>(kTokens * kTopk * 576)),
                                on_device(std::vector<int32_t>(kTokens * kTopk)), kTokens, kTopk};
    check(prime_unpack_rows(&unpack, nullptr), "unpack");
  }
  check(cudaDeviceSynchronize(), "write and unpack");
}

}  // namespace

// One argument: run this cluster size alone.
int main(int count, char** words) {
  const int only = count > 1 ? std::atoi(words[1]) : 0;
  int32_t capacity[9];
  check(prime_decode_prepare(capacity), "prepare");
  run(352, only);
  run(576, only);
  std::printf("every kernel ran\n");
}
