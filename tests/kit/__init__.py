"""Shared helpers of tests, tools and evidence: nodes, brokers, proxies, ledgers. Imports none of them."""
