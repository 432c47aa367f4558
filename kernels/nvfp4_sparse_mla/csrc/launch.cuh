// How the decode kernel is launched: a cluster a token and 16 heads.
#pragma once
#include <cuda_runtime.h>

#include "decode.cuh"

inline cudaLaunchConfig_t configure(int shared_bytes, int cluster, dim3 clusters, cudaLaunchAttribute (&attribute)[2], bool early,
                                    void* stream) {
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = cluster;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster, clusters.y, clusters.z);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attribute;
  config.numAttrs = early ? 2 : 1;
  return config;
}

// The arguments with the selected rows dealt out over the cluster.
inline PrimeDecode with_stages(PrimeDecode args) {
  const int stages = (args.topk + kStageKeys - 1) / kStageKeys;
  args.stages_each = stages / args.cluster_size;
  args.stages_over = stages % args.cluster_size;
  return args;
}
