"""From chosen implementations to a program: steps with formulas, packed weights, compiled kernels."""
