"""A page to look at what waits, and metrics of it: thin, over `operate` and an index of the journal.

Needs the extra `celery-rabbit-delay[web]`: this package imports what that brings.
"""
