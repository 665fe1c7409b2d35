"""How long `tfm params llama-7b` takes from start to end, beside a bare Typer + Rich program that prints one table.

python benchmarks/startup.py [RUNS]     20 pairs unless said; exit 1 where the median ratio is above 1.3

Whole processes, taken in pairs (A B A B ...) so that what the machine does meanwhile hits both; the ratio is that of
each pair. Both run the same Python, print to a pipe and are run once before to warm the file cache and the byte code.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 1.3
BARE = '''
import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer()


@app.command()
def params(model: str) -> None:
    """Print one table."""
    table = Table("name", "params")
    for index in range(10):
        table.add_row(f"{model}/{index}", f"{index * 1_000_000:,}")
    Console().print(table)


app()
'''


def seconds(command: list[str]) -> float:
    """Wall-clock time of one run."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return time.perf_counter() - start


def spread(name: str, values: list[float], unit: str) -> None:
    """Print median, p20 and p80."""
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    print(f"{name:24} median {statistics.median(values):7.3f}   p20 {fifths[0]:7.3f}   p80 {fifths[-1]:7.3f}   {unit}")


def main(runs: int) -> int:
    """Time the pairs and print; 1 if `tfm` is slower than LIMIT times the bare program."""
    with tempfile.TemporaryDirectory() as scratch:
        bare_file = Path(scratch, "bare.py")
        bare_file.write_text(BARE, encoding="utf-8")
        ours = [sys.executable, "-P", "-m", "tfm", "params", "llama-7b"]
        bare = [sys.executable, "-P", str(bare_file), "llama-7b"]
        seconds(ours)
        seconds(bare)
        pairs = [(seconds(ours), seconds(bare)) for _ in range(runs)]
    ratios = [a / b for a, b in pairs]
    spread("tfm params llama-7b", [1e3 * a for a, _ in pairs], "ms")
    spread("bare Typer + Rich", [1e3 * b for _, b in pairs], "ms")
    spread("ratio, pair by pair", ratios, "")
    median = statistics.median(ratios)
    print(f"{median:.3f} {'<=' if median <= LIMIT else '>'} {LIMIT} ({runs} pairs)")
    return int(median > LIMIT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
