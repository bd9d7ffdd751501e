"""Reads and writes the streams."""
