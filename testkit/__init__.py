"""What tests, benchmarks and battle share: private nodes, brokers, proxies, ledgers. Imports none of them."""
