"""The target for the software device: C++ for the CPU, and the engines that run kernels there."""
