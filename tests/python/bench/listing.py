"""Names and lengths: `ls -f`, `ls -l` and `find -size`, at ten thousand to a million chunks."""

from functools import partial

from .harness import Case, Row, shell
from .sides import native, views

COMMANDS = {"ls-f": "ls -f >/dev/null", "ls-l": "ls -l >/dev/null", "find-size": "find . -size +100k >/dev/null"}


def listing(bench, count):
    sides = [native("native", bench.data.tiny_names(count).sframe), *views(bench, bench.data.tiny(count).cframe)]
    for _ in bench.rounds:
        for name, command in COMMANDS.items():
            for side in sides:
                # A mount for each command: what one has listed is forgotten in the time of the next.
                with side.open() as path:
                    bench.cold_and_warm(f"{name}/{count}/{side.name}", lambda: shell(command, path))


def rows(count):
    targets = {"ls-f": 1.5, "find-size": 3} if count == 1_000_000 else {}
    return [
        Row(f"{name}, {count:,}, {long}, {state}", f"{name}/{count}/{side}/{state}", f"{name}/{count}/native/{state}", at_most=targets.get(name))
        for name in COMMANDS
        for side, long in (("ro", "read-only"), ("rw", "read-write"))
        for state in ("cold", "warm")
    ]  # fmt: skip


CASES = [
    Case("list", "ten thousand names and lengths", partial(listing, count=10_000), rows(10_000)),
    Case("list-100k", "a hundred thousand", partial(listing, count=100_000), rows(100_000), rounds=3),
    Case("list-1m", "a million", partial(listing, count=1_000_000), rows(1_000_000), rounds=3, full=True),
]
