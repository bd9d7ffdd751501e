"""What is measured and fought for the documentation: benchmarks, and battles with injected faults."""
