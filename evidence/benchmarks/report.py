"""Draws `results.json` and `schedule.json` into docs/benchmarks.md, its charts, and docs/contributing/benchmarks.md.

A test checks that the pages are current.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from celery_rabbit_delay import Options
from celery_rabbit_delay.core.topology import LAYOUT
from tests.kit.page import fill, machine, markdown

from . import schedule
from .contenders import (
    Contender,
    HurriedQueuePerDelayAndHeader,
    HurriedQueuePerDelayAndOutbox,
    Native,
    Ours,
    OursWithoutOutbox,
    QueuePerDelay,
    QueuePerDelayAndOutbox,
)
from .rows import HORIZONS, LATENESS, OUTBOXES, ROUTES, ROWS, WHOLE_SECONDS, WORKERS

RESULTS, SCHEDULE = (Path(__file__).with_name(name) for name in ("results.json", "schedule.json"))
_DOCS = Path(__file__).parents[2] / "docs"
#: For users, and for contributors.
PAGE, NOTES = _DOCS / "benchmarks.md", _DOCS / "contributing" / "benchmarks.md"

#: A message with one of the delays that are measured visits so many queues: its levels, its outbox and its queue.
TRANSITS = 2 + sum(len(Options().route(Options().cascade, n * 8).levels) for n in WHOLE_SECONDS) / len(WHOLE_SECONDS)

Rows = dict[str, dict[str, Any]]

NOT_YET = "not measured yet"

#: The layout of results that do not name theirs.
EARLIER = 2


class Goal(NamedTuple):
    """What is to be reached: `figure` of a broker's rows, compared with `limit` for each broker."""

    what: str
    figure: Callable[[Rows], float]
    limits: dict[str, float]
    at_least: bool = False
    form: str = "{:.2f}"

    def reached(self, broker: str, rows: Rows) -> bool:
        value, limit = float(self.form.format(self.figure(rows))), self.limits[broker]
        return value >= limit if self.at_least else value <= limit


def ratio(row: str, numerator: str, denominator: str, times: float = 1.0) -> Callable[[Rows], float]:
    def figure(rows: Rows) -> float:
        found = rows[row]
        return float(found[numerator]["median"] / (times * found[denominator]["median"]))

    return figure


def in_turns(row: str, name: str) -> Callable[[Rows], float]:
    """Return a figure: the median of a contender's ratios to no delay in the same turn."""
    return lambda rows: float(rows[row][name]["ratio"])


def added_bytes(name: str) -> Callable[[Rows], float]:
    """Return a figure: bytes of memory of a waiting message, beyond those of one without a delay."""
    return lambda rows: float(rows["memory"][name]["median"] - rows["memory"][NONE]["median"])


def mean_levels(delays: str) -> Callable[[Rows], float]:
    """Return a figure: the mean number of levels of such delays, with the default options, besides the outbox."""
    return lambda rows: float(rows["hops"][f"default, {delays}"]["mean"])


def both(limit: float) -> dict[str, float]:
    return {"3.10": limit, "4.3": limit}


US, NATIVE, NONE = Ours.name, Native.name, Contender.name
ONE = "one by one"

GOALS = [
    Goal(
        "Hops of everyday delays, 1 s to 30 days, the outbox included",
        lambda rows: 1 + mean_levels("everyday")(rows),
        both(1.0),
    ),
    *(
        Goal(
            f"Mean levels, evenly spread up to {horizon}, besides the outbox",
            mean_levels(horizon),
            both(limit),
            form="{:.1f}",
        )
        for horizon, limit in {"15 s": 2.4, "a minute": 3.1, "an hour": 4.0, "a day": 6.0}.items()
    ),
    Goal(
        "Broker CPU against native, 1–15 s, confirmed one by one",
        ratio("broker_cpu_confirmed", US, NATIVE),
        {"3.10": 0.28, "4.3": 0.48},
    ),
    Goal(
        "The same, burst without confirms",
        ratio("broker_cpu", f"{US}, quorum", f"{NATIVE}, quorum"),
        {"3.10": 0.08, "4.3": 0.17},
    ),
    Goal(
        "Broker CPU, everyday delays, burst, against one queue per delay without an outbox",
        in_turns("everyday_cpu", US),
        both(1.3),
    ),
    Goal(
        "Due in the same second, messages per second, against a cascade without outboxes",
        ratio("due_at_once", US, OursWithoutOutbox.name),
        both(0.9),
        at_least=True,
    ),
    Goal(
        "Broker CPU of delays up to an hour, against native of 1–15 s: what it was with layout 2",
        lambda rows: float(rows["hops_cpu"]["default"]["median"] / rows["broker_cpu_confirmed"][NATIVE]["median"]),
        {"3.10": 0.84, "4.3": 1.46},
    ),
    Goal(
        "Seconds to declare everything",
        lambda rows: float(rows["declaring"]["default"]["median"]),
        both(0.25),
    ),
    Goal(
        "Queues of a cascade",
        lambda rows: float(rows["queues"]["cascade"]),
        both(31),
        form="{:.0f}",
    ),
    Goal(
        "Queues of a destination that gets delays of 60 s and 300 s",
        lambda rows: float(rows["queues"]["destination"]),
        both(3),
        form="{:.0f}",
    ),
    Goal(
        "Seconds that the last message is late after a kill: what it was with layout 2",
        lambda rows: float(rows["after_a_kill"]["default"]["most"]),
        {"3.10": 181.6, "4.3": 3.6},
        form="{:.1f}",
    ),
    Goal(
        "Milliseconds that 99 % are late by at most at 200/s: what it was with layout 2",
        lambda rows: float(rows["lateness"][US]["p99"]),
        {"3.10": 133, "4.3": 132},
        form="{:.0f}",
    ),
    Goal(
        "Lateness at 2,000/s, delays of 1–60 s, p99, ticks",
        lambda rows: float(rows["lateness_fast"][US]["p99"] / 125),
        both(2),
        form="{:.1f}",
    ),
    Goal("Early at 200/s", lambda rows: float(rows["lateness"][US]["early"]), both(0), form="{:.0f}"),
    Goal(
        "CPU of `apply_async(countdown=…)`, each confirmed, against `apply_async()` without confirms",
        in_turns("client_cpu", US),
        both(1.35),
    ),
    Goal(
        "Worker CPU per task received, against undelayed",
        in_turns("worker", US),
        both(1.15),
    ),
    Goal(
        "Prefetch counts that a worker sends per task",
        lambda rows: float(rows["prefetch"][US]),
        both(0.1),
    ),
    Goal(
        "Round trips for declaring when cascade and outbox exist",
        lambda rows: float(rows["declare"]["declaring"]),
        both(1),
        form="{:.0f}",
    ),
    Goal(
        "Broker memory per waiting message of 1 KiB, quorum, against native",
        ratio("memory", US, NATIVE),
        both(1.15),
    ),
]


def headline(results: dict[str, Any]) -> str:
    def percent(figure: Callable[[Rows], float]) -> str:
        each = [f"{100 * figure(found['rows']):.0f} % on RabbitMQ {broker}" for broker, found in results.items()]
        return " and ".join(each)

    return (
        "Of the broker's CPU that Celery's native delayed delivery takes, a delayed task takes "
        f"{percent(ratio('broker_cpu_confirmed', US, NATIVE))} if each is confirmed, which is the default, "
        f"{percent(ratio('everyday_cpu_confirmed', US, NATIVE))} if its delay is an everyday one, and "
        f"{percent(ratio('broker_cpu', f'{US}, quorum', f'{NATIVE}, quorum'))} in a burst without confirms:"
    )


def answers(results: dict[str, Any]) -> str:
    """Return what a reader wants to know first, on each RabbitMQ."""

    def on_each(figure: Callable[[Rows], str]) -> str:
        return ", ".join(f"{figure(found['rows'])} on RabbitMQ {broker}" for broker, found in results.items())

    def times(figure: Callable[[Rows], float]) -> str:
        return on_each(lambda rows: f"{figure(rows):.2f} times")

    def late(rows: Rows) -> str:
        found = rows["lateness"][US]
        return f"half by less than {found['p50']:,.0f} ms, 99 % by less than {found['p99']:,.0f} ms"

    def rates(rows: Rows) -> str:
        row = rows["batch_rate"]
        return f"{row['one by one']['median']:,.0f} tasks/s one by one and {row['batch']['median']:,.0f} in a batch"

    early = sum(found["rows"]["lateness"][US]["early"] for found in results.values())
    levels = mean_levels("an hour")(next(iter(results.values()))["rows"])
    confirmed = "broker_cpu_confirmed"
    lines = [
        f"**The broker's CPU**, against native delayed delivery, every task confirmed: "
        f"{times(ratio(confirmed, US, NATIVE))}; for everyday delays "
        f"{times(ratio('everyday_cpu_confirmed', US, NATIVE))}. Against a message without a delay: "
        f"{times(ratio(confirmed, US, NONE))}.",
        "**Lateness** at 200 messages a second, rounding up to the tick of 125 ms included: "
        f"{on_each(late)}. Early: {early}.",
        f"**Publishing** from one process: {on_each(rates)}.",
        f"**The worker's CPU** for a delayed task, against one without a delay: {times(in_turns('worker', US))}. "
        f"Native delayed delivery: {times(in_turns('worker', NATIVE))}.",
        f"**Hops**: one for everyday delays such as a minute or an hour, {levels + 1:.1f} on average for delays "
        "spread evenly up to an hour.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def recorded(row: str, kind: str) -> Callable[[Rows], float]:
    return lambda rows: float(rows[row][kind]["with"]["ratio"])


def more(what: str, unit: float, kind: str = "100,000 ids", than: str = "no id") -> Callable[[Rows], float]:
    """Return a figure: how much more a worker's start takes with cancelled ids than without any."""

    def figure(rows: Rows) -> float:
        row = rows["cancelled"]
        return float((row[kind][what]["median"] - row[than][what]["median"]) / unit)

    return figure


SCHEDULE_GOALS = [
    Goal("Broker CPU of a recorded task, against one that is not", recorded("journal_broker_cpu", ONE), both(1.1)),
    Goal("The same, in a batch", recorded("journal_broker_cpu", "batch"), both(1.1)),
    Goal(
        "Publisher's CPU of a recorded task, against one that is not", recorded("journal_client_cpu", ONE), both(1.15)
    ),
    Goal("The same, in a batch", recorded("journal_client_cpu", "batch"), both(1.15)),
    Goal(
        "`list` of 100,000 tasks, seconds",
        lambda rows: float(rows["schedule_list"]["100,000"]["all seconds"]),
        both(10),
        form="{:.1f}",
    ),
    Goal(
        "Memory of `list --limit 10` of a million, against 100,000",
        lambda rows: float(
            rows["schedule_list"]["1,000,000"]["limit bytes"] / rows["schedule_list"]["100,000"]["limit bytes"]
        ),
        both(1.1),
    ),
    Goal("A worker's start with 100,000 cancelled ids, seconds more", more("seconds", 1), both(5), form="{:.1f}"),
    Goal("Its memory, MB more", more("bytes", 1e6), both(30), form="{:.0f}"),
    Goal(
        "Its start without a cancelled id, seconds more than without this package",
        more("seconds", 1, "no id", "without install"),
        both(0.1),
        form="{:.1f}",
    ),
    Goal("Round trips of a cancel", lambda rows: float(rows["cancel"]["answers"]), both(1), form="{:.0f}"),
]


def current(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with only those rows that were measured with the present layout."""
    return {
        broker: {"rows": {row: figures for row, figures in found["rows"].items() if layout_of(found, row) == LAYOUT}}
        for broker, found in results.items()
    }


def layout_of(found: dict[str, Any], row: str) -> int:
    return int(found["about"][row].get("layout", EARLIER))


def goals(results: dict[str, Any], chosen: Iterable[Goal] = GOALS) -> str:
    lines = []
    for goal in chosen:
        sign = "≥" if goal.at_least else "≤"
        limits = dict.fromkeys(f"{sign} {goal.limits[broker]:g}" for broker in results)
        cells = []
        for broker, found in results.items():
            try:
                text = goal.form.format(goal.figure(found["rows"]))
                cells.append(f"**{text}**" if goal.reached(broker, found["rows"]) else f"{text} (missed)")
            except KeyError:  # of results that are older
                cells.append(NOT_YET)
        lines.append([goal.what, ", ".join(limits), *cells])
    return markdown(["what", "goal", *titles(results)], lines)


#: What the goals that are missed are compared with: what is known to be the least, and what a part costs.
FLOORS: list[tuple[str, Callable[[Rows], float], str]] = [
    (
        "Confirmed one by one: one queue per delay and an outbox, against native",
        ratio("broker_cpu_confirmed", QueuePerDelayAndOutbox.name, NATIVE),
        "{:.2f}",
    ),
    ("The same without the outbox", ratio("broker_cpu_confirmed", QueuePerDelay.name, NATIVE), "{:.2f}"),
    (
        "Everyday delays: one queue per delay and an outbox, against the same without the outbox",
        in_turns("everyday_cpu", HurriedQueuePerDelayAndOutbox.name),
        "{:.2f}",
    ),
    (
        "One queue per delay and our header, against the same without the header",
        in_turns("everyday_cpu", HurriedQueuePerDelayAndHeader.name),
        "{:.2f}",
    ),
    ("`apply_async()`, confirmed, against unconfirmed", in_turns("client_cpu", "no delay, confirmed"), "{:.2f}"),
    ("`apply_async()` of plain Celery with an eta, against without", in_turns("client_cpu", "plain eta"), "{:.2f}"),
    ("Bytes that a message takes in memory, more than one without a delay: native", added_bytes(NATIVE), "{:.0f}"),
    ("The same: this package, one hop", added_bytes(f"{US}, an hour"), "{:.0f}"),
    ("The same: this package, one to two hours", added_bytes(US), "{:.0f}"),
]


def floors(results: dict[str, Any]) -> str:
    def cell(rows: Rows, figure: Callable[[Rows], float], form: str) -> str:
        try:
            return form.format(figure(rows))
        except KeyError:  # of results that are older
            return NOT_YET

    lines = [
        [what, *(cell(found["rows"], figure, form) for found in results.values())] for what, figure, form in FLOORS
    ]
    return markdown(["what", *titles(results)], lines)


def medians(results: dict[str, Any], row: str, form: str = "{:,.0f}") -> str:
    """Return a table of a row's medians, with the lowest and the highest of the runs."""
    names = dict.fromkeys(name for found in results.values() for name in found["rows"][row])
    return table(results, names, lambda rows, name: median(rows[row][name], form))


def median(found: dict[str, float], form: str = "{:,.0f}") -> str:
    low, high = form.format(found["low"]), form.format(found["high"])
    against = f": {found['ratio']:.2f}" if "ratio" in found else ""
    return f"{form.format(found['median'])} ({low}–{high}){against}"


def table(results: dict[str, Any], names: Iterable[str], cell: Callable[[Rows, str], str]) -> str:
    lines = [[name, *(cell(found["rows"], name) for found in results.values())] for name in names]
    return markdown(["", *titles(results)], lines)


def titles(results: dict[str, Any]) -> list[str]:
    return [f"RabbitMQ {broker}" for broker in results]


def lateness(results: dict[str, Any], row: str, names: Iterable[str]) -> str:
    def cell(rows: Rows, name: str) -> str:
        found = rows[row][name]
        return f"{found['p50']:,.0f} / {found['p99']:,.0f} / {found['most']:,.0f}, {found['early']} early"

    return table(results, names, cell)


def hops(results: dict[str, Any]) -> str:
    found = next(iter(results.values()))["rows"]["hops"]
    lines = []
    for name in ROUTES:
        means = [f"{found[f'{name}, {horizon}']['mean']:.1f}" for horizon in ("everyday", *HORIZONS)]
        most = max(found[f"{name}, {horizon}"]["most"] for horizon in HORIZONS)
        lines.append([name, *means, str(most)])
    return markdown(["options", "everyday", *HORIZONS, "most"], lines)


def queues(results: dict[str, Any]) -> str:
    names = next(iter(results.values()))["rows"]["queues"]
    return table(results, names, lambda rows, name: str(rows["queues"][name]))


def per_hop(results: dict[str, Any]) -> str:
    """Return a table of the broker's CPU microseconds for each hop: what a message costs more than without a delay."""

    def cell(rows: Rows, name: str) -> str:
        row = rows["broker_cpu"]
        more = row[name]["median"] - row[f"{NONE}, {name.split(', ')[1]}"]["median"]
        return f"{more / (TRANSITS - 1 if name.startswith(US) else 1):,.0f}"

    return table(results, [f"{US}, quorum", f"{QueuePerDelay.name}, quorum"], cell)


def journal(results: dict[str, Any], row: str) -> str:
    """Return a table of microseconds without and with a record, and the median of the ratios of neighbouring runs."""

    def cell(rows: Rows, name: str) -> str:
        kind, which = name.split(", ")
        return median(rows[row][kind][which])

    names = [f"{kind}, {which}" for kind in (ONE, "batch") for which in ("without", "with")]
    return table(results, names, cell)


def schedule_list(results: dict[str, Any]) -> str:
    def cell(rows: Rows, name: str) -> str:
        amount, kind = name.split(" tasks, ")
        found = rows["schedule_list"][amount]
        key = "limit" if kind.startswith("`") else "all"
        return (
            f"{found[f'{key} seconds']:.1f} s, {found[f'{key} cpu']:.1f} s of CPU, {found[f'{key} bytes'] / 1e6:.0f} MB"
        )

    limited = "`--limit 10`"
    return table(results, ["100,000 tasks, all", f"100,000 tasks, {limited}", f"1,000,000 tasks, {limited}"], cell)


def cancelled(results: dict[str, Any]) -> str:
    def cell(rows: Rows, name: str) -> str:
        found = {what: spread["median"] for what, spread in rows["cancelled"][name].items()}
        return f"{found['seconds']:.1f} s, {found['cpu']:.2f} s of CPU, {found['bytes'] / 1e6:.1f} MB"

    return table(results, ["without install", "no id", "100,000 ids"], cell)


def kills(results: dict[str, Any]) -> str:
    def cell(rows: Rows, name: str) -> str:
        found = rows["after_a_kill"][name]
        share = f"{100 * found['share']:.1f} %" if "share" in found else "not counted"
        return f"{found['p50']:.1f} s, {found['most']:.1f} s, {share}"

    return table(results, OUTBOXES, cell)


def at_once(results: dict[str, Any], row: str) -> str:
    """Return a table of rates, of the broker's CPU for a message, and of how many CPUs it used."""

    def cell(rows: Rows, name: str) -> str:
        found = rows[row][name]
        return f"{median(found)}; {found['cpu']['median']:,.0f} µs; {found['busy']['median']:.1f} CPUs"

    return table(results, dict.fromkeys(name for found in results.values() for name in found["rows"][row]), cell)


def measured(results: dict[str, Any], rows: Iterable[str]) -> str:
    """Return when and with what the rows were measured, and a table of how each was."""
    known = {row for found in results.values() for row in found["rows"]}
    rows = [row for row in rows if row in known and row != "hops"]  # which is computed
    every = [found["about"][row] for found in results.values() for row in rows if row in found["rows"]]
    same = all((one["date"], one["cpus"]) == (every[0]["date"], every[0]["cpus"]) for one in every)

    def cell(found: dict[str, Any], row: str) -> str:
        about, parts = found["about"][row], []
        runs = min(runs_of(found["rows"][row]), default=None)
        if runs is not None:
            parts.append(f"{runs} run{'s' * (runs > 1)}")
        if "messages" in about:
            parts.append(f"{about['messages']:,} messages")
        else:
            parts.append("scale not recorded" if about["scale"] is None else f"scale {about['scale']:g}")
        if not same:
            parts += [about["date"], f"{about['cpus']} CPUs"]
        if (layout := layout_of(found, row)) != LAYOUT:
            parts.append(f"layout {layout}")
        return ", ".join(filter(None, [*parts, about.get("note")]))

    text = machine("Measured", every)
    if all("seconds" in one for one in every):
        text += f" It took {sum(one['seconds'] for one in every) / 60:.0f} minutes."
    lines = [
        [f"`{row}`", *(cell(found, row) if row in found["rows"] else NOT_YET for found in results.values())]
        for row in rows
    ]
    return f"{text}\n\n{markdown(['row', *titles(results)], lines)}"


def runs_of(row: Any) -> Iterator[int]:
    """Yield of how many runs the figures of a row are medians, as far as they say so."""
    if isinstance(row, dict):
        if "runs" in row:
            yield row["runs"]
        for part in row.values():
            yield from runs_of(part)


def earlier(results: dict[str, Any]) -> str:
    """Return a warning about rows that were measured with an earlier layout; nothing if there are none."""
    rows = [
        row
        for row in (*ROWS, *schedule.ROWS)
        if any(row in found["rows"] and layout_of(found, row) != LAYOUT for found in results.values())
    ]
    if not rows:
        return f"All figures are those of layout {LAYOUT} of the queues on the broker."
    names = ", ".join(f"`{row}`" for row in rows)
    return (
        "**Some figures are not those of this release.** These were measured with an earlier layout of the queues on "
        f"the broker, which was not published: {names}. Figures of the present layout will replace them."
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "earlier": earlier,
    "headline": headline,
    "measured": lambda results: measured(results, ROWS),
    "answers": answers,
    "goals": lambda results: goals(current(results)),
    "floors": lambda results: floors(current(results)),
    "broker_cpu": lambda results: medians(results, "broker_cpu"),
    "broker_cpu_confirmed": lambda results: medians(results, "broker_cpu_confirmed"),
    "everyday_cpu": lambda results: medians(results, "everyday_cpu"),
    "everyday_cpu_confirmed": lambda results: medians(results, "everyday_cpu_confirmed"),
    "per_hop": lambda results: per_hop(current(results)),  # by the number of hops as it is now
    "hops": hops,
    "hops_cpu": lambda results: medians(results, "hops_cpu"),
    "publish_rate": lambda results: medians(results, "publish_rate"),
    "client_cpu": lambda results: medians(results, "client_cpu"),
    "batch_rate": lambda results: medians(results, "batch_rate"),
    "declaring": lambda results: medians(results, "declaring", "{:.2f}"),
    "queues": queues,
    "after_a_kill": kills,
    "due_at_once": lambda results: at_once(results, "due_at_once"),
    "due_at_once_in_a_cluster": lambda results: at_once(results, "due_at_once_in_a_cluster"),
    "lateness": lambda results: lateness(results, "lateness", LATENESS),
    "worker": lambda results: medians(results, "worker"),
    "prefetch": lambda results: table(results, WORKERS, lambda rows, name: f"{rows['prefetch'][name]:.2f}"),
    "lateness_fast": lambda results: lateness(results, "lateness_fast", (US,)),
    "memory": lambda results: medians(results, "memory"),
}

#: Of the results in `SCHEDULE`.
SCHEDULE_SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "schedule_measured": lambda results: f"{earlier(results)}\n\n{measured(results, schedule.ROWS)}",
    "schedule_goals": lambda results: goals(results, SCHEDULE_GOALS),
    "journal_broker_cpu": lambda results: journal(results, "journal_broker_cpu"),
    "journal_client_cpu": lambda results: journal(results, "journal_client_cpu"),
    "schedule_list": schedule_list,
    "cancelled": cancelled,
}


def read() -> dict[str, Any]:
    """Return the results of each broker."""
    results = json.loads(RESULTS.read_text())
    return {broker: results[broker] for broker in sorted(results)}


def drawn_from(section: Callable[[dict[str, Any]], str], results: dict[str, Any]) -> str:
    """Return a section, or that its rows are missing."""
    try:
        return section(results)
    except KeyError:
        return f"{NOT_YET.capitalize()}."


def page(text: str, results: dict[str, Any]) -> str:
    of_schedule = json.loads(SCHEDULE.read_text())
    sections = {name: partial(drawn_from, section, results) for name, section in SECTIONS.items()}
    sections |= {name: partial(drawn_from, section, of_schedule) for name, section in SCHEDULE_SECTIONS.items()}
    return fill(text, sections)


def main() -> None:
    results = read()
    for path in (PAGE, NOTES):
        path.write_text(page(path.read_text(), results))


if __name__ == "__main__":
    main()
