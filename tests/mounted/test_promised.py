"""Promises of docs/SEMANTICS.md that no other test shows, each on a real mount."""

from __future__ import annotations

import collections
import csv
import errno
import hashlib
import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from deepiofs.order.plan import Membership, Plan
from tests.conftest import MountFactory, MpiMountFactory
from tests.launchers import Launcher
from tests.mounts import (
    DEADLINE_S,
    DEEPIOFS,
    HERE,
    Journal,
    Mount,
    Namespace,
    Place,
    is_running,
    mounted,
    reachable_by_all,
    wait_until,
)

pytestmark = pytest.mark.mounted

FILES = ("a/one.jpg", "a/two.jpg", "b/three.txt")
BLOCK = 128 << 10
# A user without rights, as the name `nobody` usually has.
USER = 65534
# MPICH then takes each rank for a node, and reaches its memory by the network only.
APART = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}


def read_all(view: Mount, names: Iterable[str]) -> None:
    """Open and read names, each once, in a process of its own."""
    for name in names:
        HERE.output("cat", f"{view.point}/{name}")


def in_a_thread(work: Callable[[], object]) -> None:
    """Do something as another thread than this one, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# --- Names and the tree ----------------------------------------------------------------------------------------------


def test_the_view_stays_as_it_was_when_the_source_changes(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    (small / "a/new.jpg").touch()
    (small / "a/two.jpg").unlink()
    assert sorted(os.listdir(view.point / "a")) == ["one.jpg", "two.jpg"]
    assert not (view.point / "a/new.jpg").exists()
    assert (view.point / "a/two.jpg").read_text() == "the bytes of a/two.jpg"


def test_a_listing_is_sorted_and_has_no_dots(mount: MountFactory, small: Path) -> None:
    names = ["Z", "a", "b.c", ".x", "ä", "B", "10", "9"]
    for name in names:
        (small / "a" / name).touch()
    view = mount(small)
    listed = HERE.output("ls", "-aU", f"{view.point}/a").splitlines()
    assert listed == sorted([*names, "one.jpg", "two.jpg"], key=os.fsencode)
    assert os.path.samefile(view.point / "a/./..", view.point / ".")


@pytest.mark.mpi
def test_the_root_is_inode_1_and_ranks_agree_on_all(mpi_mount: MpiMountFactory, small: Path) -> None:
    ranks = mpi_mount(2, small)
    numbers = [[(point / name).stat().st_ino for name in ("", *FILES)] for point in ranks.mountpoints]
    assert numbers[0] == numbers[1]
    assert numbers[0][0] == 1


def test_links_are_what_they_lead_to(mount: MountFactory, small: Path) -> None:
    (small / "link.jpg").symlink_to("a/one.jpg")
    os.link(small / "a/two.jpg", small / "b/hard.jpg")
    (small / "link-to-hard.jpg").symlink_to("b/hard.jpg")
    view = mount(small)
    with pytest.raises(OSError, match="Invalid argument"):
        os.readlink(view.point / "link.jpg")
    own, linked, hard, link_to_hard = (
        os.lstat(view.point / name) for name in ("a/one.jpg", "link.jpg", "b/hard.jpg", "link-to-hard.jpg")
    )
    assert stat.S_ISREG(linked.st_mode)
    assert own.st_ino != linked.st_ino
    assert own.st_nlink == linked.st_nlink == 1
    assert hard.st_ino == link_to_hard.st_ino
    assert hard.st_nlink == link_to_hard.st_nlink == 2
    # Five names and links of three contents.
    assert view.stats()["resident_bytes"] == sum((small / name).stat().st_size for name in FILES)


# --- Attributes ------------------------------------------------------------------------------------------------------


def test_times_and_blocks_follow_from_modification_time_and_size(mount: MountFactory, small: Path) -> None:
    (small / "odd").write_bytes(b"x" * 1025)
    found = (mount(small).point / "odd").stat()
    assert found.st_atime_ns == found.st_ctime_ns == found.st_mtime_ns == (small / "odd").stat().st_mtime_ns
    assert (found.st_blocks, found.st_blksize) == (3, BLOCK)


def test_a_given_owner_and_mask_are_those_of_directories_too(mount: MountFactory, small: Path) -> None:
    view = mount(small, "uid=12", "gid=34", "umask=027")
    for name in ("", "a", "a/one.jpg"):
        found = (view.point / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12, 34, 0o750)


def test_statvfs_counts_names_and_blocks(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    said = os.statvfs(view.point)
    assert (said.f_bsize, said.f_frsize, said.f_blocks) == (BLOCK, BLOCK, 1)
    # Three files, two directories and the root.
    assert (said.f_files, said.f_ffree, said.f_bavail) == (6, 0, 0)


# --- Reading ---------------------------------------------------------------------------------------------------------


def test_direct_reads_at_any_offset_and_length(nasty: Mount) -> None:
    expected = (nasty.source / "plain/131073").read_bytes()
    descriptor = os.open(nasty.point / "plain/131073", os.O_RDONLY | os.O_DIRECT)
    try:
        for at, size in ((0, 1), (1, 4096), (4095, 3), (511, 70_001), (131_070, 4096), (131_073, 1)):
            buffer = bytearray(size)
            assert bytes(buffer[: os.preadv(descriptor, [buffer], at)]) == expected[at : at + size]
    finally:
        os.close(descriptor)


def test_processes_share_a_descriptor(nasty: Mount) -> None:
    program = "import os, sys; print(hash(os.pread(0, 70000, int(sys.argv[1]))))"
    with (nasty.point / "plain/1048576").open("rb") as view, (nasty.source / "plain/1048576").open("rb") as source:
        said = []
        for file in (view, source):
            children = [
                HERE.start([sys.executable, "-c", program, str(at)], stdin=file, stdout=subprocess.PIPE,
                           env={**os.environ, "PYTHONHASHSEED": "0"})
                for at in range(0, 800_000, 200_001)
            ]  # fmt: skip
            said.append([child.communicate(timeout=DEADLINE_S)[0] for child in children])
    assert said[0] == said[1]
    assert len(set(said[0])) == len(said[0])


def test_a_second_read_does_not_reach_the_mount(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    (view.point / FILES[0]).read_bytes()
    before = view.stats()["reads"]
    assert (view.point / FILES[0]).read_bytes() == (small / FILES[0]).read_bytes()
    assert view.stats()["reads"] == before == 1


# --- Extended attributes and control files ---------------------------------------------------------------------------


def test_all_hard_links_name_the_first_as_their_sample(mount: MountFactory, small: Path) -> None:
    os.link(small / "a/one.jpg", small / "b/another.jpg")
    view = mount(small)
    for name in ("a/one.jpg", "b/another.jpg"):
        assert os.getxattr(view.point / name, "user.deepiofs.sample") == b"a/one.jpg"


def test_control_files_have_no_attributes(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    for name in (".deepiofs", ".deepiofs/stats", ".deepiofs/exact"):
        with pytest.raises(OSError, match="No data available") as caught:
            os.getxattr(view.point / name, "user.deepiofs.sample")
        assert caught.value.errno == errno.ENODATA


def test_a_control_directory_of_the_source_is_hidden_but_below_exact(mount: MountFactory, small: Path) -> None:
    (small / ".deepiofs").mkdir()
    (small / ".deepiofs/mine").write_text("the source's own")
    view = mount(small)
    assert sorted(os.listdir(view.point)) == ["a", "b"]
    assert not (view.point / ".deepiofs/mine").exists()
    assert view.control("health") == "ok\n"
    assert (view.point / ".deepiofs/exact/.deepiofs/mine").read_text() == "the source's own"
    assert not (view.point / ".deepiofs/exact/.deepiofs/health").exists()


def test_the_control_directory_lists_its_files_which_belong_to_who_mounted(mount: MountFactory, small: Path) -> None:
    small.chmod(0o750)
    view = mount(small, "uid=12")
    names = ["config", "epoch", "exact", "health", "metrics", "stats", "stream", "version"]
    assert sorted(os.listdir(view.point / ".deepiofs")) == names
    found = (view.point / ".deepiofs/stats").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (os.getuid(), os.getgid(), 0o440)
    assert stat.S_IMODE((view.point / ".deepiofs/epoch").stat().st_mode) == 0o640


def test_a_control_file_keeps_its_text_for_a_handle(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    with (view.point / ".deepiofs/stats").open("rb", buffering=0) as file:
        first = file.read(10)
        (view.point / FILES[0]).read_bytes()
        opened = json.loads(first + (file.read() or b""))
    assert opened["opens"] == 0
    assert view.stats()["opens"] == 1


def test_reads_and_bytes_by_origin_add_up(nasty: Mount) -> None:
    (nasty.point / ".deepiofs/exact/plain/4097").read_bytes()
    stats = nasty.stats()
    assert sum(stats["served"].values()) == stats["reads"] > 0
    assert sum(stats["served_bytes"].values()) == stats["bytes_served"] > 0


def test_on_demand_a_mount_is_warm_when_all_was_asked_for(mount: MountFactory, small: Path) -> None:
    view = mount(small, "warm=demand", until="mounted")
    for name in FILES:
        assert view.stats()["state"] == "loading"
        (view.point / name).read_bytes()
    view.wait("warm")
    assert view.stats()["state"] == "warm"


def test_config_has_all_options_and_what_sizes_came_to(mount: MountFactory, small: Path) -> None:
    config = json.loads(mount(small, "cache=1%").control("config"))
    assert {"shuffle", "entropy", "seed", "warm", "order_log", "umask", "max_background"} <= config.keys()
    total = sum((small / name).stat().st_size for name in FILES)
    assert config["staging_bytes"] == 32 << 20
    assert total < config["store_bytes"] < config["cache_bytes"]


def test_health_tells_of_files_that_could_not_be_loaded(mount: MountFactory, small: Path, journal: Journal) -> None:
    journal.expect("a/one.jpg: .*No such file or directory")
    view = mount(small, "warm=demand", until="mounted")
    (small / "a/one.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        (view.point / "a/one.jpg").read_bytes()
    assert view.control("health").endswith("units could not be loaded from the source; see the log\n")
    assert view.stats()["errors"].keys() == {"ENOENT"}
    assert (view.point / "a/two.jpg").read_text() == "the bytes of a/two.jpg"


# --- Permissions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def consenting(namespaces: None) -> Iterator[Namespace]:
    """A namespace whose administrator lets users share their mounts."""
    if not Path("/etc/fuse.conf").exists():
        pytest.skip("there is no /etc/fuse.conf to put another in the place of")
    script = "echo user_allow_other >/mnt/fuse.conf\nmount --bind /mnt/fuse.conf /etc/fuse.conf"
    with Namespace(f"{reachable_by_all()}\n{script}") as namespace:
        yield namespace


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder of `USER`, where all may go, with a dataset and a mount point."""
    with tempfile.TemporaryDirectory(prefix="mounts-of-a-user-") as name:
        folder = Path(name)
        for path in (folder / "source", folder / "mount"):
            path.mkdir()
            os.chown(path, USER, USER)
        (folder / "source/file").write_text("to be seen")
        folder.chmod(0o755)
        yield folder


def test_with_allow_root_root_gets_in_and_others_do_not(consenting: Namespace, public: Path) -> None:
    owner, root, other = consenting.place(USER, HOME="/"), consenting.place(), consenting.place(1, HOME="/")
    with mounted(public / "source", public / "mount", "allow_root", place=owner) as view:
        assert root.output("cat", f"{view.point}/file") == "to be seen"
        assert "Permission denied" in other.run("cat", f"{view.point}/file").stderr


# --- Failures --------------------------------------------------------------------------------------------------------


def test_a_late_engine_costs_one_wait_and_is_told_of(mount: MountFactory, small: Path, journal: Journal) -> None:
    journal.expect("the engine does not answer; reading from the source for 5 s")
    view = mount(small, "warm=demand", "timeout=0.5", until="mounted")
    os.kill(view.processes[1], signal.SIGSTOP)
    try:
        begin = time.monotonic()
        for name in FILES:
            assert (view.point / name).read_bytes() == (small / name).read_bytes()
        assert time.monotonic() - begin < 3
    finally:
        os.kill(view.processes[1], signal.SIGCONT)
    assert view.stats()["served"]["source"] == 3
    assert "requests were not answered by the engine" in view.control("health")


@pytest.mark.mpi
def test_a_silent_peer_is_not_waited_for(
    mpi_mount: MpiMountFactory, launcher: Launcher, tmp_path: Path, journal: Journal
) -> None:
    if launcher.name != "mpich":
        pytest.skip("other MPIs have no setting that makes ranks of one host peers")
    journal.expect("rank 1 did not answer")
    source = tmp_path / "many"
    source.mkdir()
    for number in range(20):
        (source / f"{number:02}").write_bytes(os.urandom(1000))
    ranks = mpi_mount(2, source, "timeout=0.5", "linger=1", environment=APART)
    assert ranks.stats(0)["nodes"] == 2
    silent = ranks.stats(1)["engine_pid"]
    os.kill(silent, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        for file in source.iterdir():
            assert (ranks.mountpoints[0] / file.name).read_bytes() == file.read_bytes()
        assert time.monotonic() - begin < 4
        stats, health = ranks.stats(0), ranks.control(0, "health")
    finally:
        os.kill(silent, signal.SIGCONT)
    assert stats["served"]["source"] == 10
    assert stats["peer_timeouts"] >= stats["peers_suspect"] == 1
    assert "1 peers do not answer" in health
    assert stats["errors"] == {}


# --- Mounting, leaving, processes ------------------------------------------------------------------------------------


def complaints(launcher: Launcher, source: Path, folder: Path, options: str) -> str:
    """What two ranks say who do not get to mount at `folder`/point0 and point1."""
    line = [DEEPIOFS, "mount", str(source), f"{folder}/point%r", "-o", options]
    done = subprocess.run(
        launcher.command(2, line), env=launcher.environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return done.stderr


@pytest.mark.mpi
def test_what_hinders_one_rank_is_told_with_its_number_and_host(
    launcher: Launcher, small: Path, tmp_path: Path
) -> None:
    (tmp_path / "point0").mkdir()
    told = f"deepiofs: rank 1 on {socket.gethostname()}: mount point {tmp_path}/point1 does not exist; create it first"
    said = complaints(launcher, small, tmp_path, "cache=64M")
    assert (said.count(told), said.count("deepiofs: ")) == (1, 1)


@pytest.mark.mpi
def test_wrong_options_are_told_by_each_rank(launcher: Launcher, small: Path, tmp_path: Path) -> None:
    # A launcher may put what two ranks say on one line.
    said = complaints(launcher, small, tmp_path, "cahce=64M")
    assert said.count("deepiofs: unknown option 'cahce'; the nearest is 'cache'") == 2


@pytest.mark.mpi
def test_one_rank_under_a_launcher_stays_in_the_foreground(mpi_mount: MpiMountFactory, small: Path) -> None:
    ranks = mpi_mount(1, small)
    assert os.getsid(ranks.stats(0)["pid"]) != ranks.stats(0)["pid"]
    assert ranks.process.poll() is None
    ranks.umount()
    assert ranks.ended() == 0


def test_under_a_launcher_mpi_off_loads_no_mpi_and_goes_to_the_background(mount: MountFactory, small: Path) -> None:
    view = mount(small, "mpi=off", place=Place(environment={"PMI_RANK": "0", "PMI_SIZE": "1"}))
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in view.processes)
    assert "libmpi" not in maps
    assert "mpi4py" not in maps


def test_waiting_for_a_mount_that_cannot_become_warm_ends_with_1(
    mount: MountFactory, small: Path, journal: Journal
) -> None:
    journal.expect("the engine is lost")
    view = mount(small, "warm=demand", until="mounted")
    os.kill(view.processes[1], signal.SIGKILL)
    done = HERE.deepiofs("wait", str(view.point), "--for", "warm", "--timeout", "20")
    assert done.returncode == 1
    assert done.stderr == f"deepiofs: {view.point} will not become warm: its engine is lost\n"


def test_a_mount_leaves_the_source_as_it_was(mount: MountFactory, small: Path) -> None:
    def state() -> list[tuple[Path, int, int, bytes]]:
        return [
            (path, path.stat().st_mtime_ns, path.stat().st_ctime_ns, path.read_bytes() if path.is_file() else b"")
            for path in (small, *sorted(small.rglob("*")))
        ]

    before = state()
    view = mount(small)
    read_all(view, FILES)
    view.umount()
    assert state() == before


def test_sigusr1_and_signals_to_the_engine_are_ignored(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    os.kill(view.processes[0], signal.SIGUSR1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(view.processes[1], number)
    assert (view.point / FILES[0]).read_bytes() == (small / FILES[0]).read_bytes()
    assert view.stats()["engine"] == "running"
    assert all(map(is_running, view.processes))


def test_a_traceback_is_shown_at_debug_only(small: Path, tmp_path: Path) -> None:
    command = ["mount", str(small), str(tmp_path / "nowhere"), "-o"]
    plain = HERE.deepiofs(*command, "mpi=off").stderr
    assert plain == f"deepiofs: mount point {tmp_path}/nowhere does not exist; create it first\n"
    loud = HERE.deepiofs(*command, "loglevel=debug").stderr
    assert "Traceback" in loud
    assert loud.endswith(plain)


def test_check_finds_other_times_and_modes(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    (small / "a/one.jpg").chmod(0o600)
    os.utime(small / "a/two.jpg", ns=(1, 1))
    done = HERE.deepiofs("check", str(view.point))
    assert done.returncode == 1
    assert "a/one.jpg: modes differ" in done.stdout
    assert "a/two.jpg: modification times differ" in done.stdout


# --- Names and passes ------------------------------------------------------------------------------------------------

TOKENS = [f"c/{i:02}.bin" for i in range(12)]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Twelve interchangeable files, told apart by their sizes, modes and times."""
    source = tmp_path / "tokens"
    (source / "c").mkdir(parents=True)
    for i, name in enumerate(TOKENS):
        (source / name).write_bytes(bytes([65 + i]) * (1000 * i + 1))
        (source / name).chmod(0o600 + i)
        os.utime(source / name, ns=(i, 10**9 + i))
    return source


def order(log: Path) -> list[dict[str, str]]:
    """The lines of an order log."""
    with log.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def by_pass(*logs: Path) -> dict[int, list[str]]:
    """The samples drawn in each pass, sorted."""
    passes: dict[int, list[str]] = collections.defaultdict(list)
    for log in logs:
        for line in order(log):
            passes[int(line["pass"])].append(line["sample"])
    return {number: sorted(samples) for number, samples in sorted(passes.items())}


def test_a_shuffled_name_has_attributes_of_its_own_and_another_s_size(mount: MountFactory, tokens: Path) -> None:
    os.link(tokens / TOKENS[3], tokens / "c/hard.bin")
    view = mount(tokens, "shuffle=dir", "shuffle_only=c/*")
    sizes = []
    for name in TOKENS:
        own, seen = (tokens / name).stat(), (view.point / name).stat()
        assert (seen.st_mode, seen.st_mtime_ns, seen.st_uid) == (own.st_mode, own.st_mtime_ns, own.st_uid)
        assert seen.st_nlink == 1
        assert len((view.point / name).read_bytes()) == seen.st_size
        sizes.append((own.st_size, seen.st_size))
    assert any(own != seen for own, seen in sizes)
    assert not os.path.samefile(view.point / TOKENS[3], view.point / "c/hard.bin")
    assert os.path.samefile(view.point / ".deepiofs/exact" / TOKENS[3], view.point / ".deepiofs/exact/c/hard.bin")


def test_listings_are_the_source_s_whatever_was_drawn(mount: MountFactory, tokens: Path) -> None:
    view = mount(tokens, "shuffle=dir")
    before = os.listdir(view.point / "c")
    read_all(view, TOKENS[:5])
    assert os.listdir(view.point / "c") == before == [os.path.basename(name) for name in TOKENS]
    assert view.stats()["draws"] == 5


def test_pages_are_kept_only_while_the_name_stands_for_the_same(mount: MountFactory, tokens: Path) -> None:
    view = mount(tokens, "shuffle=dir")
    path = view.point / TOKENS[0]
    first = path.read_bytes()
    reads = view.stats()["reads"]
    assert path.read_bytes() == first
    assert view.stats()["reads"] == reads
    seen = {hashlib.md5(first).digest()}
    for _ in TOKENS[1:]:
        in_a_thread(lambda: seen.add(hashlib.md5(path.read_bytes()).digest()))
    assert seen == {hashlib.md5((tokens / name).read_bytes()).digest() for name in TOKENS}


def test_threads_that_look_a_name_up_share_its_sample(mount: MountFactory, tokens: Path) -> None:
    view = mount(tokens, "shuffle=dir")
    path = view.point / TOKENS[0]
    size = path.stat().st_size
    sizes: list[int] = []
    in_a_thread(lambda: sizes.append(path.stat().st_size))
    in_a_thread(lambda: sizes.append(len(path.read_bytes())))
    # That thread has read it to its end: for this one the name is free again.
    assert sizes == [size, size]
    assert len(path.read_bytes()) != size
    assert view.stats()["draws"] == 2


def test_another_thread_s_lookup_decides_for_all(mount: MountFactory, tokens: Path) -> None:
    view = mount(tokens, "shuffle=dir")
    path = view.point / TOKENS[0]
    first = path.read_bytes()
    sizes: list[int] = []
    in_a_thread(lambda: sizes.append(path.stat().st_size))
    again = path.read_bytes()
    assert again != first
    assert len(again) == sizes[0]


def test_a_sample_taken_back_before_the_open_is_told_with_its_new_size(mount: MountFactory, tokens: Path) -> None:
    view = mount(tokens, "shuffle=dir")
    known = {hashlib.md5((tokens / name).read_bytes()).digest() for name in TOKENS}
    for name, other in zip(TOKENS, reversed(TOKENS), strict=True):
        place = os.open(view.point / name, os.O_PATH)
        os.stat(view.point / other)  # gives back what the lookup of `name` reserved
        with open(f"/proc/self/fd/{place}", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read()
            assert len(data) == size
            assert hashlib.md5(data).digest() in known
            if size:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == data
        os.close(place)


def test_what_was_looked_up_and_not_opened_is_drawn_by_others_after_a_while(
    mount: MountFactory, tokens: Path, tmp_path: Path
) -> None:
    view = mount(tokens, "shuffle=dir", f"order_log={tmp_path}/order")
    os.stat(view.point / TOKENS[0])  # this thread lives on, and never opens it
    begin = time.monotonic()
    read_all(view, TOKENS[1:] + TOKENS[1:2])
    assert by_pass(tmp_path / "order") == {0: TOKENS}
    assert time.monotonic() - begin < 10


def test_epoch_means_nothing_to_names_that_are_not_shuffled(mount: MountFactory, small: Path) -> None:
    view = mount(small)
    epoch = view.point / ".deepiofs/epoch"
    epoch.write_text("7\n")
    assert epoch.read_text() == "0\n"
    assert (view.point / FILES[0]).read_bytes() == (small / FILES[0]).read_bytes()


def test_a_pass_has_31_bits_and_may_be_begun_again(mount: MountFactory, tokens: Path, tmp_path: Path) -> None:
    view = mount(tokens, "shuffle=dir", f"order_log={tmp_path}/order")
    epoch = view.point / ".deepiofs/epoch"
    for text in ("2147483648", "-1", "1.5", "one"):
        with pytest.raises(OSError, match="Invalid argument"):
            epoch.write_text(text)
    read_all(view, TOKENS[:4])
    epoch.write_text("0")
    read_all(view, TOKENS)
    assert [line["sample"] for line in order(tmp_path / "order")][:4] == [
        line["sample"] for line in order(tmp_path / "order")
    ][4:8]
    assert sorted(line["sample"] for line in order(tmp_path / "order")[4:]) == TOKENS
    epoch.write_text("2147483647")
    read_all(view, TOKENS)
    assert by_pass(tmp_path / "order")[2147483647] == TOKENS


def test_one_mount_draws_a_group_in_the_order_of_its_plan(mount: MountFactory, tokens: Path, tmp_path: Path) -> None:
    view = mount(tokens, "shuffle=dir", "seed=5", f"order_log={tmp_path}/order")
    read_all(view, [*TOKENS, *TOKENS])
    nobody_else = np.zeros(len(TOKENS), np.int32)
    plan = Plan(Membership(group=nobody_else, owner=nobody_else, node=np.zeros(1, np.int32)), 5, 0.9)
    expected = [(str(number), TOKENS[sample]) for number in range(2) for sample in plan.queue(0, 0, number)]
    assert [(line["pass"], line["sample"]) for line in order(tmp_path / "order")] == expected


def test_an_order_log_is_csv_whatever_the_names(mount: MountFactory, tmp_path: Path) -> None:
    source = tmp_path / "odd"
    (source / "c").mkdir(parents=True)
    names = [b"comma,name", b'a "quoted" name', b"new\nline", b"\xff\xfe", "größe".encode()]
    for i, name in enumerate(names):
        (source / "c" / os.fsdecode(name)).write_bytes(bytes([65 + i]))
    log = tmp_path / "order"
    log.write_text("what was here before\n")
    view = mount(source, "shuffle=dir", f"order_log={log}")
    expected = []
    for i, name in enumerate(names):
        data = (view.point / "c" / os.fsdecode(name)).read_bytes()
        # Written when it is drawn: nothing is held back.
        line = order(log)[-1]
        sample = os.fsencode(line["sample"]).removeprefix(b"c/")
        assert (line["pass"], line["position"], line["origin"]) == ("0", str(i), "local")
        assert os.fsencode(line["name"]) == b"c/" + name
        assert data == bytes([65 + names.index(sample)])
        expected.append(sample)
    assert log.read_bytes().startswith(b"pass,position,name,sample,origin\n")
    assert sorted(expected) == sorted(names)


@pytest.mark.mpi
def test_what_a_mount_that_left_has_not_drawn_is_missing_once_and_nothing_is_repeated(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.expect("out of the passes: rank 1 from 1 on")
    ranks = mpi_mount(2, tokens, "shuffle=dir", f"order_log={tmp_path}/order-%r", "linger=20")
    for name in TOKENS[:2]:
        HERE.output("cat", f"{ranks.mountpoints[1]}/{name}")
    HERE.output(DEEPIOFS, "umount", str(ranks.mountpoints[1]))
    # Its own six, and then all of the next pass.
    for name in TOKENS + TOKENS[:6]:
        HERE.output("cat", f"{ranks.mountpoints[0]}/{name}")
    passes = by_pass(tmp_path / "order-0", tmp_path / "order-1")
    assert [len(samples) for samples in passes.values()] == [8, 12]
    assert all(len(set(samples)) == len(samples) for samples in passes.values())
    assert "source" not in {line["origin"] for line in order(tmp_path / "order-0")}


@pytest.mark.mpi
def test_without_its_engine_a_mount_draws_its_own_queues_pass_after_pass(
    mpi_mount: MpiMountFactory, tokens: Path, tmp_path: Path, journal: Journal
) -> None:
    journal.expect("the engine is lost")
    journal.allow("did not answer|MPI failed|does not answer")
    log = f"order_log={tmp_path}/order-%r"
    ranks = mpi_mount(2, tokens, "shuffle=dir", log, "timeout=0.5", "linger=1")
    os.kill(ranks.stats(1)["engine_pid"], signal.SIGKILL)
    wait_until(lambda: ranks.stats(1)["engine"] == "lost", "the loss was noticed")
    for point in ranks.mountpoints:
        for name in TOKENS:
            HERE.output("cat", f"{point}/{name}")
    # Each has served its own half of two passes, which are whole together.
    assert by_pass(tmp_path / "order-0", tmp_path / "order-1") == {0: TOKENS, 1: TOKENS}
    assert ranks.stats(0)["steals"] == ranks.stats(1)["steals"] == 0
    assert "engine lost" in ranks.control(1, "health")


@pytest.mark.mpi
def test_stats_tell_the_entropy_and_what_it_asks_for(
    mpi_mount: MpiMountFactory, launcher: Launcher, tokens: Path
) -> None:
    if launcher.name != "mpich":
        pytest.skip("other MPIs have no setting that makes ranks of one host nodes")
    ranks = mpi_mount(2, tokens, "shuffle=dir", "entropy=0.9", environment=APART)
    stats = ranks.stats(0)
    assert stats["entropy"]["bound"] == 0.9
    assert 0.9 <= stats["entropy"]["planned"] < 0.91
    assert 0 < stats["exchange_fraction"] < 0.5
    HERE.output("cat", *(f"{ranks.mountpoints[0]}/{name}" for name in TOKENS))
    stats = ranks.stats(0)
    assert (stats["draws"], stats["steals"]) == (12, 6)
