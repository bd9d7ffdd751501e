"""Tests in tiers by what must be running: unit (nothing), integration (a broker), acceptance (a broker and workers)."""
