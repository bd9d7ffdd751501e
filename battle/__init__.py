"""Is anything lost, early or run twice? Real nodes, workers and publishers, and faults. Run it with `make battle`."""
