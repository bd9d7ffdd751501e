"""The schedule: an add-on that lists, cancels, moves and pauses what waits, by streams beside the cascade."""
