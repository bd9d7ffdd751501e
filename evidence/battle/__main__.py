"""Runs battles and prints their verdicts; exits with 1 if ours lost a confirmed task, or ran an early or cancelled one.

python -m evidence.battle                         the short one, on RabbitMQ 3.10 and 4.3
python -m evidence.battle --long                  every scenario against every contender, for README.md
python -m evidence.battle --rabbitmq 4.3 --scenario "broker killed" --rounds 6

Ledgers and logs are left in .battle/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.kit.node import find_server

from .app import CONTENDERS, OURS
from .arena import PLACE
from .report import RESULTS, TITLES, add, cells
from .scenarios import SCENARIOS, fight
from .verdict import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence.battle", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--contender", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--scenario", nargs="+", choices=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="how often faults are repeated")
    parser.add_argument("--long", action="store_true", help="all scenarios and contenders, into what the docs show")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="battles at a time")
    arguments = parser.parse_args()
    contenders = arguments.contender or (list(CONTENDERS) if arguments.long else [OURS])
    scenarios = arguments.scenario or (list(SCENARIOS) if arguments.long else ["everything", "tasks cancelled"])
    results = RESULTS if arguments.long else PLACE / "results.json"
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()

    def run(battle: tuple[str, str, str]) -> tuple[Verdict, dict[str, Any]]:
        broker, scenario, contender = battle
        directory = PLACE.absolute() / broker / scenario.replace(" ", "-") / contender.replace(" ", "-")
        directory.mkdir(parents=True)
        verdict, about = fight(scenario, contender, servers[broker], directory, arguments.rounds)
        figures = {**verdict.figures(), **about}
        print(" | ".join([*battle, *cells(figures)]), file=sys.stderr, flush=True)
        return verdict, figures

    servers = {name: find_server(name) for name in arguments.rabbitmq}
    battles = list(product(arguments.rabbitmq, scenarios, contenders))
    table = Table("RabbitMQ", "scenario", "contender", *TITLES)
    good = True
    with ThreadPoolExecutor(arguments.jobs) as pool:
        fights = {pool.submit(run, battle): battle for battle in battles}
        for fought in as_completed(fights):
            verdict, figures = fought.result()
            battle = fights[fought]
            add(results, *battle, figures)
            table.add_row(*battle, *cells(figures))
            # A battle in which nobody could cancel shows nothing.
            has_cancelled = bool(figures["cancelled"]) or not battle[1].startswith("tasks cancelled")
            good &= (verdict.good and has_cancelled) or battle[-1] != OURS
    Console(width=160).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
