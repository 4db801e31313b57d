"""The target for NVIDIA's GPUs: CUDA C++ that NVRTC compiles."""
