"""The integration into Celery: `batch`, the workers' consumers, signals."""
