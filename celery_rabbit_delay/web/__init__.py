"""A web page of waiting tasks, and metrics: a thin layer over `operate` and an index of the journal.

Needs the extra `celery-rabbit-delay[web]`: only this package imports its dependencies.
"""
