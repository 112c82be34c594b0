"""The unit for one machine: systemd finds nothing wrong with it, and its lines, run in order, do what they say."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mounts import DEEPIOFS, HERE, ending, wait_until

FOLDER = Path(__file__).parents[2] / "mount-scripts/systemd"
UNIT = (FOLDER / "deepiofs@.service").read_text()


def command(key: str, settings: dict[str, str]) -> list[str]:
    """The command of a line of the unit, its variables replaced as systemd does: each is one word."""
    (line,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    words = [re.sub(r"\$\{(\w+)\}", lambda found: settings[found[1]], word) for word in line.split()]
    assert words[0] == "/usr/local/bin/deepiofs"
    return [DEEPIOFS, *words[1:]]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    unit = tmp_path / "deepiofs@imagenet.service"
    unit.write_text(UNIT.replace("/usr/local/bin/deepiofs", DEEPIOFS))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "deepiofs" not in done.stderr


@pytest.mark.mounted
def test_the_lines_of_the_unit_mount_wait_and_unmount(small: Path, tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    example = dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / "NAME.conf").read_text(), re.MULTILINE))
    assert example.keys() == {"SOURCE", "MOUNTPOINT", "OPTIONS"}
    options = example["OPTIONS"].replace("cache=50%", "cache=64M,staging=32M")
    settings = {"SOURCE": str(small), "MOUNTPOINT": str(point), "OPTIONS": options}
    for end in (signal.SIGTERM, signal.SIGKILL):
        HERE.output(*command("ExecStartPre", settings))
        with ending(HERE.start(command("ExecStart", settings))) as service:
            HERE.output(*command("ExecStartPost", settings))
            assert (point / "a/one.jpg").read_text() == "the bytes of a/one.jpg"
            service.send_signal(end)
            assert service.wait(20) == (0 if end == signal.SIGTERM else -end)
    wait_until(lambda: str(point) in HERE.mountpoints(), "the killed mount has left its mount point")
    HERE.output(*command("ExecStopPost", settings))
    assert str(point) not in HERE.mountpoints()
