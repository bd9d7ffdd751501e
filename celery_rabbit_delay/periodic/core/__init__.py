"""Runs and entries. Pure."""
