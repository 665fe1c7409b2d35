"""What a CI system takes from `tfm check`: JUnit XML, Markdown for a job summary, GitHub's annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from ..presets.errors import UnreadableError
from .checking import Checked, Line, counted, said, told
from .quantities import clean

MOST_ANNOTATIONS = 10  # a step shows ten of a kind, further ones are dropped without a word
MOST_ROWS = 200  # of a job summary, which may not be larger than 1 MiB
STATES = {"not run": "error", "not compared": "skipped"}  # of a JUnit test case; a finding is a failure


# --- JUnit ----------------------------------------------------------------------------------------------------------


def junit(checked: Checked) -> str:
    """One suite a kind of gate, one test case a gate; well-formed whatever stands in a name."""
    root = ET.Element("testsuites", name="tfm check")
    for kind in dict.fromkeys(line.kind for line in checked.lines):
        lines = [line for line in checked.lines if line.kind == kind]
        suite = ET.SubElement(root, "testsuite", {"name": f"tfm check, {kind}", **tallies(lines)})
        for line in lines:
            add_case(suite, line)
    for name, count in tallies(checked.lines).items():
        root.set(name, count)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def add_case(suite: ET.Element, line: Line) -> None:
    """A gate; what is not printable was spelt out, since XML has no form for it."""
    case = ET.SubElement(suite, "testcase", classname=f"tfm.check.{line.kind}", name=xml_text(line.id), time="0")
    state = "failure" if line.found else STATES.get(line.verdict)
    text = xml_text(told(line))
    if state:
        ET.SubElement(case, state, type=line.verdict, message=text).text = text
    elif text:
        ET.SubElement(case, "system-out").text = text


def xml_text(text: str) -> str:
    """`text` in characters that XML 1.0 allows (section 2.2): no control characters, no surrogates."""
    return clean(text)


def tallies(lines: Sequence[Line]) -> dict[str, str]:
    """The counts that a suite carries."""
    return {
        "tests": str(len(lines)),
        "failures": str(sum(line.found for line in lines)),
        "errors": str(sum(line.verdict == "not run" for line in lines)),
        "skipped": str(sum(line.verdict == "not compared" for line in lines)),
        "time": "0",
    }


# --- Markdown ---------------------------------------------------------------------------------------------------------


def summary(checked: Checked, name: str) -> str:
    """A heading, how many of what, and a row for each gate that is not ok."""
    from .quantities import Kind
    from .tables import Column, Table

    text = f"### tfm check: {markdown_words(checked.verdict)}\n\n{markdown_words(name)}: {counted(checked.lines)}\n"
    rows = [line for line in checked.lines if line.verdict != "ok" or line.kind != "exact"]
    if not rows:
        return text
    from .output import markdown_table

    columns = tuple(Column(heading, Kind.TEXT) for heading in ("gate", "baseline", "now", "verdict", "what"))
    shown = rows[:MOST_ROWS]
    cells = tuple((one.id, said_of(one, one.baseline), said_of(one, one.now), one.verdict, told(one, numbers=False)) for one in shown)
    more = f"\nand {len(rows) - MOST_ROWS} more\n" if len(rows) > MOST_ROWS else ""
    return f"{text}\n{markdown_table(Table('', columns, cells))}{more}"


def said_of(line: Line, value: float | None) -> str:
    """A number of a gate as text."""
    if value is None:
        return "-"
    return f"{value:.3f}" if line.quantity == "efficiency" else said(line.quantity, value)


def markdown_words(text: str) -> str:
    """Words of a name without the marks of Markdown."""
    from .output import markdown_text

    return markdown_text(text)


# --- GitHub -----------------------------------------------------------------------------------------------------------


def github_lines(
    checked: Checked, file: str | None, places: Mapping[str, int], environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Workflow commands: an error a finding (at its line of the baseline), a warning for what could not be compared, notices.

    https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
    """
    if not environment.get("GITHUB_ACTIONS"):
        return
    levels = {"not run": "error", "not compared": "warning", "faster": "notice", "noisy": "notice"}
    shown: dict[str, int] = {}
    for line in checked.lines:
        level = "error" if line.found else levels.get(line.verdict)
        if level is None:
            continue
        shown[level] = shown.get(level, 0) + 1
        if shown[level] < MOST_ANNOTATIONS:
            yield annotation(level, line, file, places)
    for level, count in shown.items():
        if count >= MOST_ANNOTATIONS:
            yield f"::{level} title=tfm check::and {count - MOST_ANNOTATIONS + 1} more; the log of the step has all"


def annotation(level: str, line: Line, file: str | None, places: Mapping[str, int]) -> str:
    """One workflow command."""
    properties = {"file": file, "line": str(places[line.id]) if file and line.id in places else None}
    properties["title"] = f"tfm check: {line.verdict}"
    said = ",".join(f"{name}={escaped(value, property_too=True)}" for name, value in properties.items() if value)
    return f"::{level} {said}::{escaped(f'{line.id}: {told(line)}')}"


def escaped(text: str, *, property_too: bool = False) -> str:
    """Percent signs and ends of lines, in a property also what separates properties, as GitHub's own toolkit escapes them."""
    text = clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_too else text


# --- files ------------------------------------------------------------------------------------------------------------


def write_reports(checked: Checked, name: str, *, junit_file: str | None, summary_file: str | None) -> None:
    """Write what was asked for; a job summary of GitHub's is appended to, as all steps share it.

    Raises UnreadableError, after the other report was written too.
    """
    step = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if junit_file:
            write_text(junit_file, junit(checked), mode="w")
    finally:
        if summary_file or step:
            target = summary_file or str(step)
            write_text(target, summary(checked, name), mode="a" if target == step else "w")


def write_text(file: str, text: str, *, mode: str) -> None:
    """Write or append UTF-8."""
    try:
        with Path(file).open(mode, encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            stream.write(text)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{file}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
