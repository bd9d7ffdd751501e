"""Injects faults into real nodes, workers and publishers, and counts lost, early and repeated tasks: `make battle`."""
