"""The express lane: replies at the device, waiting that hinders nobody, and what a request costs in counted work."""

from __future__ import annotations

import errno
import os
import struct

import pytest
import trio
import trio.testing

from deepiofs.fs.counts import Origin
from deepiofs.fuse import protocol
from deepiofs.fuse.express import Express
from deepiofs.fuse.protocol import Opcode
from deepiofs.memory.placement import NOWHERE
from deepiofs.memory.wire import Missed
from tests.doubles import Gate, in_trio
from tests.unit.lanes import Lane, counted_bytecodes, read_body

_FILES = {b"d/%d.bin" % i: bytes([i + 1]) * (1000 + i) for i in range(8)}
# Bytecodes of Python per lookup, open, read and close of a file in memory: what was counted, and a tenth. The count is
# the same on each machine and at each time; a change that adds to it should be worth it.
_MOST_EXACT, _MOST_SHUFFLED = 1600, 2950


def test_a_file_is_looked_up_opened_read_and_closed() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            for path, data in _FILES.items():
                handle = await lane.open(await lane.node(path))
                assert await lane.read(handle) == data
                assert await lane.read(handle, 990, 5) == data[990:995]
                await lane.release(handle)
        assert lane.filesystem.open_handles == 0

    main()


def test_errors_are_answered_by_their_number() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            for expected, opcode, body in (
                (errno.ENOENT, Opcode.LOOKUP, b"nothing\0"),
                (errno.ENAMETOOLONG, Opcode.LOOKUP, b"x" * 300 + b"\0"),
                (errno.EROFS, Opcode.OPEN, struct.pack("=II", os.O_WRONLY, 0)),
                (errno.EROFS, Opcode.SETATTR, struct.pack("=I", protocol.SET_MODE)),
            ):
                with pytest.raises(OSError, match=os.strerror(expected)):
                    await lane.ask(opcode, 1, body)

    main()


def test_what_is_wrong_in_the_program_is_an_error_of_one_request(caplog: pytest.LogCaptureFixture) -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await lane.read(4711)
            assert await lane.node(b"d/0.bin")

    main()
    assert "_read failed" in caplog.text


def test_a_request_that_waits_hinders_no_other() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES, home=lambda unit: NOWHERE if unit == 0 else 0)
        with Gate() as gate:
            lane.mounted.source.read_gates[b"d/0.bin"] = gate
            async with lane.running():
                slow = await lane.open(await lane.node(b"d/0.bin"))
                waiting = lane.send(Opcode.READ, 0, read_body(slow, 0, 100))
                await gate.reached()
                quick = await lane.open(await lane.node(b"d/1.bin"))
                assert await lane.read(quick) == _FILES[b"d/1.bin"]
                gate.open()
                assert await lane.reply() == (waiting, 0, _FILES[b"d/0.bin"][:100])

    main()


def test_a_read_that_a_peer_answers_costs_no_task_and_hinders_no_other() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES, home=lambda unit: 2 if unit == 0 else 0)
        lane.mounted.engine.mute = True
        async with lane.running():
            far, near = [await lane.open(await lane.node(path)) for path in (b"d/0.bin", b"d/1.bin")]
            tasks = trio.lowlevel.current_statistics().tasks_living
            waiting = [lane.send(Opcode.READ, 0, read_body(far, at, 100)) for at in (0, 950)]
            assert await lane.read(near) == _FILES[b"d/1.bin"]
            assert trio.lowlevel.current_statistics().tasks_living == tasks
            await lane.mounted.engine.answer(0)
            replies = [await lane.reply() for _ in waiting]
        assert replies == [
            (waiting[0], 0, _FILES[b"d/0.bin"][:100]),
            (waiting[1], 0, _FILES[b"d/0.bin"][950:]),
        ]
        assert lane.mounted.engine.fetches == [0]
        assert lane.mounted.counts.served[Origin.PEER] == 2

    main()


@pytest.mark.parametrize("end", ["missed", "killed"])
def test_a_read_that_no_peer_answers_is_answered_from_the_source(end: str) -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES, home=lambda unit: 2)
        lane.mounted.engine.mute = True
        async with lane.running():
            far = await lane.open(await lane.node(b"d/0.bin"))
            waiting = lane.send(Opcode.READ, 0, read_body(far, 0, 100))
            with trio.fail_after(10):
                while not lane.mounted.engine.fetches:
                    await trio.sleep(0.001)
            if end == "missed":
                await lane.mounted.engine.channel.send(Missed(0))
            else:
                lane.mounted.kill_engine()
            assert await lane.reply() == (waiting, 0, _FILES[b"d/0.bin"][:100])
        assert lane.mounted.counts.served[Origin.SOURCE] == 1

    main()


def test_the_error_of_the_source_is_that_of_a_read_that_no_peer_answers() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES, home=lambda unit: 2)
        lane.mounted.engine.missing = {0}
        lane.mounted.source.read_errors[b"d/0.bin"] = errno.EREMOTEIO
        async with lane.running():
            far = await lane.open(await lane.node(b"d/0.bin"))
            with pytest.raises(OSError, match=os.strerror(errno.EREMOTEIO)):
                await lane.read(far)

    main()


def test_what_comes_after_the_session_is_not_written_to_whatever_has_its_descriptor_by_then() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES, home=lambda unit: 2)
        lane.mounted.engine.mute = True
        async with lane.mounted.running() as nursery:
            session = trio.CancelScope()
            nursery.start_soon(_run_within, session, lane.express)
            far = await lane.open(await lane.node(b"d/0.bin"))
            lane.send(Opcode.READ, 0, read_body(far, 0, 100))
            await lane.node(b"d/1.bin")  # by its answer the read has been begun
            session.cancel()
            await trio.testing.wait_all_tasks_blocked()
            await lane.mounted.engine.answer(0)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(BlockingIOError):
                lane.kernel.recv(1)
            nursery.cancel_scope.cancel()

    main()


async def _run_within(scope: trio.CancelScope, express: Express) -> None:
    with scope:
        await express.run()


def test_a_thread_that_is_done_is_heard_at_once_while_the_device_is_idle() -> None:
    # Kept from running until the device has something, a task would wait for a second each time.
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            await lane.node(b"d")
            with trio.fail_after(30):
                for _ in range(200):
                    await trio.to_thread.run_sync(int)
                    done = trio.Event()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(trio.lowlevel.checkpoint)
                        nursery.start_soon(done.wait)
                        done.set()

    main()


def test_a_deadline_is_kept_while_the_device_is_idle() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            await lane.node(b"d")
            with trio.fail_after(30):
                for _ in range(100):
                    with trio.move_on_after(0.001):
                        await trio.sleep_forever()

    main()


def test_what_is_not_answered_here_goes_on_to_pyfuse3_and_back() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        statfs = 17
        async with lane.running():
            sent = lane.send(statfs, 1, b"")
            await trio.lowlevel.wait_readable(lane.express.there)
            request = lane.express.there.recv(1000)
            assert protocol.IN_HEADER.unpack(request)[1:3] == (statfs, sent)
            lane.express.there.send(protocol.OUT_HEADER.pack(protocol.OUT_HEADER.size, -errno.ENOSYS, sent))
            assert await lane.reply() == (sent, errno.ENOSYS, b"")

    main()


def test_a_listing_goes_on_behind_a_position() -> None:
    @in_trio
    async def main() -> None:
        lane = Lane(_FILES)
        async with lane.running():
            node = await lane.node(b"d")
            one = 128 + 24 + 8
            found, position = [], 0
            while listed := await lane.ask(Opcode.READDIRPLUS, node, read_body(node, position, 3 * one)):
                assert len(listed) <= 3 * one
                for at in range(0, len(listed), one):
                    position, length = struct.unpack_from("=QI", listed, at + 136)
                    found.append(listed[at + 152 : at + 152 + length])
            assert found == [path.rpartition(b"/")[2] for path in sorted(_FILES)]

    main()


@pytest.mark.parametrize(("shuffled", "most"), [(False, _MOST_EXACT), (True, _MOST_SHUFFLED)])
def test_an_open_a_read_and_a_close_take_no_more_work_than_they_did(shuffled: bool, most: int) -> None:
    files = {b"d/%06d.bin" % i: bytes(100) for i in range(300)}
    n = 100

    @in_trio
    async def main() -> None:
        lane = Lane(files, shuffled=shuffled)
        async with lane.running():
            directory = await lane.node(b"d")

            async def read_one(name: bytes) -> None:
                node = struct.unpack_from("=Q", await lane.ask(Opcode.LOOKUP, directory, name + b"\0"))[0]
                handle = await lane.open(node)
                assert len(await lane.read(handle)) == 100
                await lane.release(handle)

            names = [path.rpartition(b"/")[2] for path in files]
            for name in names[:n]:
                await read_one(name)
            with counted_bytecodes() as count:
                for name in names[n : 2 * n]:
                    await read_one(name)
            assert count[0] / n < most

    main()
