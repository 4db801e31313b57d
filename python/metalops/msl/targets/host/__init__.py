"""The software device: C++ for the CPU, with the engines that run kernels there."""
