"""What the tests, the demo and the benchmarks share. Not part of the package."""
