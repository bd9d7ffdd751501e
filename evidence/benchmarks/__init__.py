"""Measures the costs of delayed delivery, all alternatives on one private node. Run it with `make bench`."""
