"""NVIDIA's GPUs: CUDA C++ that NVRTC compiles."""
