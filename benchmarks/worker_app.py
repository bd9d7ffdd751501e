"""The worker that `benchmarks.rows.worker` measures."""

import os

import kombu

from benchmarks.rows import WORKERS, make_app

options, native, _ = WORKERS[os.environ["BENCH_KIND"]]
app = make_app(os.environ["BENCH_BROKER"], options, native)


@app.task(name="bench.nothing")
def nothing() -> None:
    pass


@app.task(name="bench.last")
def last() -> None:
    with kombu.Connection(os.environ["BENCH_BROKER"]) as connection:
        connection.Producer().publish("done", routing_key="done")
