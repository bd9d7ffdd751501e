"""Shared helpers of tests, tools, benchmarks and battle: nodes, brokers, proxies, ledgers. Imports none of them."""
