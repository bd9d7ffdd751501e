"""The integration into Celery: `install`, `batch`, the workers' consumers, signals."""
