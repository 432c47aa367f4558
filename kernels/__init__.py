"""CUDA kernels of Prime Inference. Stands alone: imports neither `prime_inference` nor `gateway`."""
