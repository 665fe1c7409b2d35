"""Device presets: the published figures, what a bad file says, and that a look-up opens one file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.presets import device as module
from tfm.presets.device import Device, device_aliases, device_from_yaml, device_names, load_device
from tfm.presets.errors import UnknownNameError, UnreadableError, UsageError

NAMES = device_names(module.FOLDER)  # without `local`, which a developer may have
GOOD = (module.FOLDER / "a100-80gb-sxm.yaml").read_text(encoding="utf-8")
GIB, MIB, GB_S, TB_S, TFLOP_S = 2**30, 2**20, 1e9, 1e12, 1e12

EXPECTED_NAMES = (
    "a100-40gb-pcie a100-40gb-sxm a100-80gb-pcie a100-80gb-sxm b200-180gb-sxm h100-80gb-pcie h100-80gb-sxm h100-94gb-nvl "
    "h200-141gb-nvl h200-141gb-sxm l4 l40s m2-ultra m3-max-30core m3-max-40core mi300x rtx-3090 rtx-4090 rtx-5090 "
    "v100-16gb-sxm v100-32gb-pcie v100-32gb-sxm"
)

# name: capacity in GiB, memory in GB/s, fp32, bf16, fp16, fp8, int8 in TFLOP/s, link in GB/s, cache in MiB, W
FACTS: dict[str, tuple[float | None, ...]] = {
    "a100-40gb-pcie": (40, 1555, 19.5, 312, 312, None, 624, 600, 40, 250),
    "a100-40gb-sxm": (40, 1555, 19.5, 312, 312, None, 624, 600, 40, 400),
    "a100-80gb-pcie": (80, 1935, 19.5, 312, 312, None, 624, 600, 40, 300),
    "a100-80gb-sxm": (80, 2039, 19.5, 312, 312, None, 624, 600, 40, 400),
    "b200-180gb-sxm": (180, 7700, 75, 2250, 2250, 4500, 4500, 1800, 126, 1000),
    "h100-80gb-pcie": (80, 2000, 51.2, 756, 756, 1513, 1513, 600, 50, 350),
    "h100-80gb-sxm": (80, 3350, 66.9, 989.4, 989.4, 1978.9, 1978.9, 900, 50, 700),
    "h100-94gb-nvl": (94, 3900, 60, 835.5, 835.5, 1670.5, 1670.5, 600, None, 400),
    "h200-141gb-nvl": (141, 4800, 60, 835.5, 835.5, 1670.5, 1670.5, 900, None, 600),
    "h200-141gb-sxm": (141, 4800, 67, 989.5, 989.5, 1979, 1979, 900, None, 700),
    "l4": (24, 300, 30.3, 121, 121, 242.5, 242.5, 64, 48, 72),
    "l40s": (48, 864, 91.6, 362.05, 362.05, 733, 733, 64, None, 350),
    "m2-ultra": (192, 800, None, None, None, None, None, None, None, None),
    "m3-max-30core": (96, 300, None, None, None, None, None, None, None, None),
    "m3-max-40core": (128, 400, None, None, None, None, None, None, None, None),
    "mi300x": (192, 5300, 163.4, 1307.4, 1307.4, 2614.9, 2614.9, 896, 256, 750),
    "rtx-3090": (24, 936, 35.6, 71, 71, None, 284, 112.5, 6, 350),
    "rtx-4090": (24, 1008, 82.6, 165.2, 165.2, 330.3, 660.6, None, 72, 450),
    "rtx-5090": (32, 1792, 104.8, 209.5, 209.5, 419, 838, None, 96, 575),
    "v100-16gb-sxm": (16, 900, 15.7, None, 125, None, None, 300, 6, 300),
    "v100-32gb-pcie": (32, 900, 14, None, 112, None, None, 32, 6, 250),
    "v100-32gb-sxm": (32, 900, 15.7, None, 125, None, None, 300, 6, 300),
}


def test_names() -> None:
    assert " ".join(NAMES) == EXPECTED_NAMES
    assert set(FACTS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_published_figures(name: str) -> None:
    device = load_device(name)
    peaks = [device.peak_for(dtype) for dtype in ("fp32", "bf16", "fp16", "fp8", "int8")]
    got = (device.capacity_bytes, device.memory_bytes_per_s, *peaks, device.link_bytes_per_s, device.cache_bytes, device.tdp_w)
    scales = (GIB, GB_S, *[TFLOP_S] * 5, GB_S, MIB, 1)
    for value, fact, scale in zip(got, FACTS[name], scales, strict=True):
        assert value == (None if fact is None else pytest.approx(fact * scale, rel=1e-12))


@pytest.mark.parametrize("name", NAMES)
def test_file_says_where_from(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    assert device.source
    assert all(device.vendor in line for line in device.source)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", device.retrieved)
    assert device.title.startswith(device.vendor)
    assert len(device.notes) > 40
    assert type(device.capacity_bytes) is int
    assert type(device.memory_bytes_per_s) is float


def test_no_two_devices_share_all_numbers() -> None:
    seen: dict[tuple[object, ...], str] = {}
    for name in NAMES:
        device = load_device(name)
        numbers = (device.capacity_bytes, device.memory_bytes_per_s, device.link_bytes_per_s, device.tdp_w)
        key = (*numbers, tuple(sorted(device.peak_flops_per_s.items())))
        assert key not in seen, f"{name} has the numbers of {seen[key]}"
        seen[key] = name


@pytest.mark.parametrize("name", [name for name in NAMES if FACTS[name][3] is not None])
def test_dense_rates_are_in_proportion(name: str) -> None:
    """A figure with sparsity would stand out by a factor of two: halving the width of the format doubles the rate."""
    peaks = {dtype: rate for dtype, rate in load_device(name).peak_flops_per_s.items() if rate is not None}
    assert peaks["bf16"] == peaks["fp16"]
    assert peaks["bf16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2, rel=0.03)
    geforce = name.startswith("rtx-")  # GeForce runs 16 bit at half rate when it accumulates in fp32, int8 at full rate
    assert peaks["int8"] / peaks["bf16"] == pytest.approx(4 if geforce else 2, rel=0.03)


def test_exact_conversion() -> None:
    device = load_device("a100-80gb-sxm")
    assert device.capacity_bytes == 85_899_345_920
    assert device.memory_bytes_per_s == 2_039_000_000_000.0
    assert device.peak_flops_per_s["fp64"] == 9_700_000_000_000.0
    assert load_device("l40s").peak_flops_per_s["bf16"] == 362_050_000_000_000.0
    assert load_device("b200-180gb-sxm").peak_flops_per_s["fp4"] == 9e15


def test_peak_for() -> None:
    device = load_device("h100-80gb-sxm")
    assert device.peak_for("fp32") == 66.9e12  # the ordinary units, not tf32
    assert device.peak_for("bfloat16") == device.peak_for("bf16") == 989.4e12
    assert load_device("v100-16gb-sxm").peak_for("bf16") is None
    assert load_device("m2-ultra").peak_for("bf16") is None
    with pytest.raises(UnknownNameError, match="unknown dtype 'int4'"):
        device.peak_for("int4")


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        load_device("l4").name = "other"  # type: ignore[misc]


# Names


def test_aliases_lead_to_devices() -> None:
    aliases = device_aliases()
    assert aliases["h200"] == "h200-141gb-sxm"
    assert aliases["rtx4090"] == "rtx-4090"
    for alias, target in aliases.items():
        assert alias not in NAMES
        assert load_device(alias).name == target


UNKNOWN = [
    ("a100", "Names that begin so: a100-40gb-pcie, a100-40gb-sxm, a100-80gb-pcie, a100-80gb-sxm."),
    ("h100", "Names that begin so: h100-80gb-pcie, h100-80gb-sxm, h100-94gb-nvl."),
    ("m3-max", "Did you mean m3-max-40core or m3-max-30core?"),
    ("rtx-4091", "Did you mean rtx-4090"),
    ("rtx4091", "rtx4090"),
    ("RTX-4090", "Did you mean rtx-4090?"),
    ("mi300", "Did you mean mi300x?"),
    ("zzzz", "`tfm hardware` lists"),
    ("", "unknown device ''"),
    ("../models/llama-7b", "unknown device"),
    ("_aliases", "unknown device"),
    ("/etc/passwd", "unknown device"),
    ("l4\0", "unknown device"),
    ("x" * 100_000, "..."),
]


@pytest.mark.parametrize(("name", "message"), UNKNOWN, ids=[name[:20] for name, _ in UNKNOWN])
def test_unknown_name(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_device(name)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.exit_code == 2


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and ".yaml" in str(args[0]) else None)
from tfm.presets.device import load_device
load_device(sys.argv[1])
print(*[path.replace("\\\\", "/").rsplit("/", 1)[1] for path in opened])
"""


@pytest.mark.parametrize(
    ("name", "files"),
    [("rtx-4090", "rtx-4090.yaml"), ("h200", "_aliases.yaml h200-141gb-sxm.yaml")],
    ids=["name", "alias"],
)
def test_a_look_up_opens_one_file(name: str, files: str) -> None:
    done = subprocess.run([sys.executable, "-c", OPENED, name], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == files


# Bad files


def changed(old: str, new: str) -> str:
    assert old in GOOD, f"the test's file no longer holds {old!r}"
    return GOOD.replace(old, new, 1)


def with_source(new: str) -> str:
    return re.sub(r"source:\n(  - .*\n)+", new, GOOD)


FIELDS = re.findall(r"^([a-z_]+):", GOOD, flags=re.MULTILINE)

BAD = [
    ("unknown-field", changed("vendor:", "colour: red\nvendor:"), "unknown field `colour`"),
    ("number-for-text", changed("capacity: 80 GiB", "capacity: 80"), "Expected `str`, got `int` - at `$.capacity`"),
    ("bool-for-text", changed("2.039 TB/s", "true"), "got `bool` - at `$.memory_bandwidth`"),
    ("list-for-text", changed("80 GiB", "[80, GiB]"), "got `array` - at `$.capacity`"),
    ("text-for-mapping", re.sub(r"peak:.*\n(  .*\n)+", "peak: 312 TFLOP/s\n", GOOD, count=1), "got `str` - at `$.peak`"),
    ("null-capacity", changed("80 GiB", "null"), "got `null` - at `$.capacity`"),
    ("no-such-kind", changed("kind: gpu", "kind: tpu"), "at `$.kind`, allowed: gpu, soc, cpu"),
    ("no-such-format", changed("fp64:", "fp17:"), "in `$.peak`, allowed: fp64, fp32"),
    ("no-such-unit", changed("80 GiB", "80 GiX"), "capacity: is '80 GiX', expected a number and a unit, one of KiB"),
    ("wrong-kind-of-unit", changed("2.039 TB/s", "2.039 TB"), "memory_bandwidth: is '2.039 TB', expected"),
    ("negative", changed("80 GiB", "-80 GiB"), "capacity: is '-80 GiB'"),
    ("zero", changed("80 GiB", "0 GiB"), "capacity: is '0 GiB', must be above 0"),
    ("nan", changed("2.039 TB/s", "nan TB/s"), "memory_bandwidth: is 'nan TB/s'"),
    ("yaml-nan", changed("2.039 TB/s", ".nan"), "'.nan' is not a finite number"),
    ("exponent", changed("9.7 TFLOP/s", "9.7e30 TFLOP/s"), "peak.fp64: is '9.7e30 TFLOP/s'"),
    ("absurd", changed("9.7 TFLOP/s", "9" * 400 + " TFLOP/s"), "peak.fp64: is '999"),
    ("part-of-a-byte", changed("40 MiB", "0.3 KiB"), "cache: is '0.3 KiB', not a whole number of bytes"),
    ("no-source", with_source(""), "missing required field `source`"),
    ("empty-source", with_source("source: []\n"), "source: is empty, a number needs a source"),
    ("blank-source", with_source("source: [' ']\n"), "source: is empty"),
    ("source-not-a-list", with_source("source: a book\n"), "got `str` - at `$.source`"),
    ("no-date", changed('"2026-11-30"', "lately"), "retrieved: is 'lately', expected a day such as"),
    ("no-such-day", changed('"2026-11-30"', "2026-02-30"), "retrieved: is '2026-02-30'"),
    ("blank-name", changed("name: a100-80gb-sxm", "name: ' '"), "name: is empty"),
    ("duplicate-key", changed("form: SXM", "form: SXM\nform: PCIe"), "the key 'form' is written twice"),
    ("anchor", changed("80 GiB", "&a 80 GiB"), "anchors and aliases"),
    ("key-with-line-break", GOOD + '"a\\nb": 1\n', "unknown field"),
    ("long-key", GOOD + f"{'k' * 900}: 1\n", "unknown field"),
    ("list", "- 1\n", "holds list, expected a mapping"),
    ("number", "5\n", "holds int, expected a mapping"),
    ("empty", "", "holds nothing, expected a mapping"),
    ("invalid-yaml", "name: [1", "invalid YAML"),
]


def one_line(error: UnreadableError, origin: str) -> str:
    line = str(error)
    assert line.startswith(origin)
    assert "\n" not in line
    assert len(line) < len(origin) + 250
    assert error.exit_code == 1
    return line


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_file(text: str, message: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        device_from_yaml(text, "mine.yaml")
    assert message in one_line(caught.value, "mine.yaml")


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_must_be_there(field: str) -> None:
    text = re.sub(rf"^{field}:.*\n(  .*\n)*", "", GOOD, count=1, flags=re.MULTILINE)
    with pytest.raises(UnreadableError, match=f"missing required field `{field}`"):
        device_from_yaml(text, "mine.yaml")


def test_files_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(changed("name: a100-80gb-sxm", "name: mine"), encoding="utf-8")
    (tmp_path / "other.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "broken.yaml").symlink_to(tmp_path / "gone.yaml")
    assert load_device("mine", tmp_path).capacity_bytes == 80 * GIB
    assert device_names(tmp_path) == ("broken", "folder", "mine", "other")
    for name, message in [
        ("other", "name: is 'a100-80gb-sxm', expected 'other'"),
        ("folder", "is a folder, expected a YAML file"),
        ("broken", "cannot be read"),
    ]:
        with pytest.raises(UnreadableError) as caught:
            load_device(name, tmp_path)
        assert message in one_line(caught.value, str(tmp_path / f"{name}.yaml"))
    with pytest.raises(UnknownNameError, match="Did you mean mine"):
        load_device("mime", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b: ../../etc/passwd\n", "b'?: '../../etc/passwd' is not a device name"),
        ("b: gone\n", "gone.yaml: cannot be read"),
        ("b: 5\n", "Expected `str`, got `int`"),
        ("- b\n", "Expected `object`, got `array`"),
    ],
    ids=["path", "no-such-device", "number", "list"],
)
def test_bad_aliases(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "_aliases.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableError, match=message):
        load_device("b", tmp_path)


def test_no_folder_means_no_names(tmp_path: Path) -> None:
    assert device_names(tmp_path / "none") == ()
    with pytest.raises(UnknownNameError):
        load_device("l4", tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableError, match="cannot be listed"):
        device_names(tmp_path / "file")


# The type itself


def build(**changes: object) -> Device:
    fields: dict[str, object] = {
        "name": "mine", "title": "My device", "vendor": "Me", "kind": "cpu", "form": None,
        "capacity_bytes": 7 * GIB, "memory_bytes_per_s": 5e10, "peak_flops_per_s": {"fp32": 1e12},
        "link_bytes_per_s": None, "cache_bytes": None, "tdp_w": None, "source": ("a book, table 3",), "retrieved": "2026-11-30",
    }  # fmt: skip
    return Device(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity_bytes": 0},
        {"capacity_bytes": -1},
        {"memory_bytes_per_s": float("nan")},
        {"memory_bytes_per_s": float("inf")},
        {"peak_flops_per_s": {"bf16": -1.0}},
        {"link_bytes_per_s": 0.0},
        {"cache_bytes": -4},
        {"tdp_w": float("nan")},
        {"source": ()},
        {"source": ("",)},
        {"retrieved": ""},
        {"title": ""},
    ],
    ids=str,
)
def test_a_device_that_makes_no_sense(changes: dict[str, object]) -> None:
    build()
    with pytest.raises(UsageError, match=next(iter(changes))):
        build(**changes)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 12), st.text(alphabet=":-[]{}&*!|>'\"#% \n\t019.eGT/", max_size=6))
def test_mutated_file_gives_a_device_or_one_line(start: int, length: int, insert: str) -> None:
    text = GOOD[:start] + insert + GOOD[start + length :]
    try:
        device = device_from_yaml(text, "mine.yaml")
    except UnreadableError as error:
        one_line(error, "mine.yaml")
    else:
        assert device.capacity_bytes > 0
        assert device.source
