"""What a Celery app sees: `install`, `batch`, its consumers and its signals."""
