"""The targets that Metal source is compiled for."""
