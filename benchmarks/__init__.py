"""What delayed delivery costs, measured side by side on one private node. Run it with `make bench`."""
