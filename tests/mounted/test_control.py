"""What a mount says of itself, and the extended attributes."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import xxhash

from deepiofs import __version__
from tests.conftest import MountFactory
from tests.mounted import trees
from tests.mounts import DEEPIOFS, HERE, Mount

pytestmark = pytest.mark.mounted

STATS = (
    "rank size node nodes state samples files bytes resident_bytes staged_bytes pass draws opens reads bytes_served "
    "served fetch_ms steals stalls stall_ms verify_failures peer_timeouts peers_suspect entropy exchange_fraction "
    "errors rss_bytes engine uptime_s left_out"
)
CONTROL_FILES = {"stats", "metrics", "config", "version", "health", "exact", "stream"}
# https://prometheus.io/docs/instrumenting/exposition_formats/
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")


def test_control_files_are_reachable_but_not_listed(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    assert sorted(os.listdir(view.point)) == ["a", "b"]
    assert set(os.listdir(view.point / ".deepiofs")) >= CONTROL_FILES
    assert not (view.point / "a/.deepiofs").exists()
    assert not (view.point / ".deepiofs/exact/.deepiofs").exists()
    assert HERE.output("find", str(view.point), "-name", ".deepiofs") == ""


def test_stats_have_every_field(mount: MountFactory, small: Path) -> None:
    stats = mount(small).stats()
    assert not set(STATS.split()) - stats.keys()
    assert set(stats["served"]) == {"local", "node", "peer", "source"}
    assert set(stats["fetch_ms"]) == {"p50", "p99"}
    assert set(stats["entropy"]) == {"bound", "planned", "served", "batch"}
    assert (stats["rank"], stats["size"], stats["node"], stats["nodes"]) == (0, 1, 0, 1)
    assert (stats["state"], stats["engine"]) == ("warm", "running")


def test_stats_count_what_was_read(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    total = sum((view.point / name).stat().st_size for name in ("a/one.jpg", "a/two.jpg", "b/three.txt"))
    before = view.stats()
    for name in ("a/one.jpg", "a/two.jpg"):
        (view.point / name).read_bytes()
    after = view.stats()
    assert (before["opens"], before["reads"], before["bytes_served"]) == (0, 0, 0)
    assert (after["opens"], after["served"]["local"]) == (2, 2)
    assert after["bytes_served"] == 2 * len("the bytes of a/one.jpg")
    assert (after["files"], after["samples"], after["bytes"], after["resident_bytes"]) == (3, 3, total, total)
    assert after["errors"] == {}


def test_metrics_are_prometheus_text_and_agree_with_stats(nasty: Mount) -> None:
    families = parse_prometheus(nasty.control("metrics"))
    stats = nasty.stats()
    assert set(families) == {f"deepiofs_{name}" for name in stats}
    assert families["deepiofs_files"].samples == {"": stats["files"]}
    assert families["deepiofs_state"].samples == {'value="warm"': 1}
    assert families["deepiofs_served"].type == "counter"
    assert {f'origin="{origin}"' for origin in stats["served"]} == families["deepiofs_served"].samples.keys()
    assert families["deepiofs_left_out"].samples['reason="special"'] == 2


def test_config_shows_what_is_in_force(mount: MountFactory, small: Path) -> None:
    view = mount(small, "timeout=2.5", "verify=always", "exclude=*.txt:x/**", "umask=027")
    config = json.loads(view.control("config"))
    assert (config["source"], config["mountpoint"]) == (str(small), str(view.point))
    assert (config["timeout"], config["verify"], config["exclude"]) == (2.5, "always", ["*.txt", "x/**"])
    assert (config["warm"], config["linger"], config["links"]) == ("background", 30, "follow")
    assert config["umask"] == 0o027
    assert config["cache_bytes"] == 64 << 20


def test_a_percentage_of_memory_is_shown_in_bytes(mount: MountFactory, small: Path) -> None:
    config = json.loads(mount(small, "cache=1%").control("config"))
    assert config["cache"] == "1%"
    assert 1 << 20 < config["cache_bytes"] < 1 << 40


def test_version_and_health(nasty: Mount) -> None:
    assert nasty.control("version") == f"{__version__}\n"
    assert nasty.control("health") == "ok\n"


def test_a_control_file_can_be_read_piecemeal_and_has_its_size(nasty: Mount) -> None:
    with (nasty.point / ".deepiofs/config").open("rb", buffering=0) as file:
        assert os.fstat(file.fileno()).st_size == len(nasty.control("config"))
        pieces = iter(lambda: file.read(7), b"")
        assert json.loads(b"".join(pieces)) == json.loads(nasty.control("config"))


def test_status_shows_it_to_people_and_to_programs(nasty: Mount) -> None:
    assert json.loads(HERE.output(DEEPIOFS, "status", str(nasty.point), "--json"))["engine"] == "running"
    shown = HERE.output(DEEPIOFS, "status", str(nasty.point))
    assert "ok" in shown
    assert f"{nasty.stats()['files']} files" in shown


@pytest.mark.parametrize("below", ["", ".deepiofs/exact"])
def test_extended_attributes(nasty: Mount, below: str) -> None:
    nasty.wait()
    # Not all of it fits in memory.
    names = [f"plain/{size}" for size in (511, 4095, 4096, 4097, 131_071, 131_073, 1 << 20)]
    origins = {name: os.getxattr(nasty.point / below / name, "user.deepiofs.origin") for name in names}
    assert set(origins.values()) <= {b"local", b"source"}
    name = next(name for name, origin in origins.items() if origin == b"local")
    path = nasty.point / below / name
    assert os.getxattr(path, "user.deepiofs.sample") == name.encode()
    expected = xxhash.xxh3_64_hexdigest((nasty.source / name).read_bytes())
    assert os.getxattr(path, "user.deepiofs.xxh3") == expected.encode()


def test_the_digest_of_a_file_that_is_partly_in_memory(nasty: Mount) -> None:
    expected = xxhash.xxh3_64_hexdigest((nasty.source / trees.BIG).read_bytes())
    assert os.getxattr(nasty.point / trees.BIG, "user.deepiofs.xxh3") == expected.encode()


def test_other_attributes_do_not_exist(nasty: Mount) -> None:
    for path, name in (
        ("plain/1", "user.deepiofs.nothing"),
        ("plain/1", "user.other"),
        ("plain", "user.deepiofs.sample"),
    ):
        with pytest.raises(OSError, match="No data available") as caught:
            os.getxattr(nasty.point / path, name)
        assert caught.value.errno == errno.ENODATA
    assert os.listxattr(nasty.point / "plain/1") == []


def test_statvfs_shows_a_full_file_system_of_the_dataset_s_size(nasty: Mount) -> None:
    said = os.statvfs(nasty.point)
    assert said.f_bfree == said.f_bavail == 0
    assert 0 <= said.f_blocks * said.f_frsize - nasty.stats()["bytes"] < said.f_frsize
    assert said.f_files >= nasty.stats()["files"]
    assert said.f_namemax == 255
    assert HERE.run("df", str(nasty.point)).returncode == 0


@dataclass
class Family:
    """A metric: its type, and its values by labels as written."""

    type: str = ""
    help: str = ""
    samples: dict[str, float] = field(default_factory=dict)


def parse_prometheus(text: str) -> dict[str, Family]:
    """The families of an exposition; AssertionError where it is not one."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, name, value = line.split(" ", 3)
            assert what in ("HELP", "TYPE")
            assert re.fullmatch(NAME, name)
            family = families.setdefault(name, Family())
            assert not family.samples, "TYPE and HELP come before the samples"
            if what == "TYPE":
                assert value in ("counter", "gauge")
                assert not family.type
                family.type = value
            else:
                family.help = value
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert families[match[1]].type
            assert (match[2] or "") not in families[match[1]].samples
            families[match[1]].samples[match[2] or ""] = float(match[3])
    return families
