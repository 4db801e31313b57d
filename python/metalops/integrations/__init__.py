"""Other packages' ways to our operators. Each module joins one package when its ``enable()`` is called, never before."""
