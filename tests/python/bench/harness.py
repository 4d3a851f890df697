"""What a case is, how it is timed, and the rows that come of it."""

import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Sequence

import numpy as np


class Skip(Exception):
    """A case that cannot be measured here, and why."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a series over another, or by itself. Words in braces are sizes of the run, such as {copies}."""

    what: str
    series: str
    # Without one, the value itself counts.
    against: str | None = None
    at_most: float | None = None
    # The other way round: how many times faster.
    at_least: float | None = None
    # Whether the best times are compared: where the question is to the program, and not to the machine's other work.
    best: bool = False
    unit: str = "s"
    # In a shorter run than the target speaks of, it says nothing.
    target_when: Callable[["Bench"], bool] = lambda _: True


@dataclass(frozen=True)
class Case:
    """run(bench) adds to series, in bench.rounds rounds; rows say what is made of them."""

    name: str
    about: str
    run: Callable[["Bench"], None]
    rows: Sequence[Row]
    rounds: int = 5
    # Only with --full, or if asked for by name.
    full: bool = False


@dataclass
class Bench:
    """One run: the options, the frames, and every figure by series, one for each round."""

    options: object
    data: object
    point: Path
    rounds: range = range(5)
    series: dict = field(default_factory=dict)
    rng: object = field(default_factory=np.random.default_rng)
    # Sizes of the run, for the words of rows.
    sizes: dict = field(default_factory=dict)
    # Why parts of cases were left out: said once each.
    notes: dict = field(default_factory=dict)

    @property
    def cold(self):
        """Whether caches can be dropped."""
        cold = os.geteuid() == 0 and os.access("/proc/sys/vm/drop_caches", os.W_OK)
        if not cold:
            self.note("cold caches", "not measured: this needs root")
        return cold

    def note(self, what, why):
        self.notes.setdefault(what, why)

    def add(self, series, value):
        self.series.setdefault(series, []).append(value)

    def time(self, series, function):
        self.add(series, timed(function))

    def cold_and_warm(self, series, function, fresh=lambda: None):
        """Times a function into `series/cold` and `series/warm`, the second at its better one of two."""
        if self.cold:
            drop_caches()
            self.time(f"{series}/cold", function)
        else:
            function()
        self.add(f"{series}/warm", min(timed(function) for _ in range(2)))


def drop_caches():
    """The page cache, and what is known of names and inodes, of all file systems; the tools that are timed next are read again."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    shell("cat /dev/null; find /dev/null -size +1; ls /dev/null >/dev/null")


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def shell(command, cwd="/"):
    subprocess.run(["sh", "-c", command], cwd=cwd, check=True)


def middle(values):
    return statistics.median(values)


def result(row, bench):
    """A row's figures, for the table and for JSON; without a ratio if it was not measured."""
    found = {"what": row.what.format(**bench.sizes), "series": row.series, "against": row.against, "unit": row.unit}
    applies = row.target_when(bench)
    target = f"<= {row.at_most:g}" if row.at_most is not None else f">= {row.at_least:g}" if row.at_least is not None else None
    found |= {"target": target if applies else None, "met": None, "value": None}
    values = bench.series.get(row.series)
    others = bench.series.get(row.against) if row.against else None
    if not values or row.against and not others:
        return found
    pick = min if row.best else middle
    found |= {"value": pick(values), "spread": [min(values), max(values)]}
    ratios = values
    if row.against:
        # The rounds' own ratios: a slow spell of the machine meets both.
        paired = zip(values, others) if len(values) == len(others) else [(middle(values), middle(others))]
        ratios = [b / a if row.at_least is not None else a / b for a, b in paired]
        found |= {"against value": pick(others), "against spread": [min(others), max(others)]}
        if row.best:
            ratios = [pick(values) / pick(others)]
    found |= {"ratio": middle(ratios), "ratios": [min(ratios), max(ratios)]}
    if found["target"]:
        found["met"] = found["ratio"] <= row.at_most if row.at_most is not None else found["ratio"] >= row.at_least
    return found
