"""From request code to handler, through a server over in-memory connections."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import trio
import trio.testing

from ledgermq.message.errors import JsonError
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import BODY_BYTES_MAX, WAITING_MAX, Postponed
from ledgermq.remoting.errors import RequestRefused
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.logs import capture_logs
from ledgermq.world.clock import Clock
from ledgermq.world.network import Network

from .serving import serving


async def test_requests_of_one_receive_are_handled_as_one_batch(network: Network, clock: Clock) -> None:
    """A run handler sees all successive requests of its codes at once, in order, and answers leave together."""
    async with serving(network, clock) as running:
        runs: list[list[int]] = []

        def take(connection: ServerConnection, requests: list[RemotingCommand]) -> int:
            runs.append([request.opaque for request in requests])
            for request in requests:
                connection.answer(request)
            return len(requests)

        running.dispatcher.register_run((10, 310), take)
        peer = await running.connect()

        await peer.send(*(RemotingCommand(code, opaque=n) for n, code in enumerate((10, 310, 10, 1, 310))))
        answers = [await peer.receive() for _ in range(5)]

    assert runs == [[0, 1, 2], [4]]
    assert [answer.opaque for answer in answers] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("code", [1, 2, 4711])
async def test_a_body_beyond_its_bound_is_refused_unread(network: Network, clock: Clock, code: int) -> None:
    """The connection goes on; a code that is registered with a bound of its own takes as much as that."""
    async with serving(network, clock) as running:
        running.dispatcher.register(7, lambda _, request: request.response(), body_bytes_max=BODY_BYTES_MAX + 1)

        async def wait(_connection: ServerConnection, _request: RemotingCommand) -> None:
            await trio.sleep_forever()

        running.dispatcher.register_waiting(2, wait)
        peer = await running.connect()

        refused = await peer.ask(code, bytes(BODY_BYTES_MAX + 1))
        taken = await peer.ask(7, bytes(BODY_BYTES_MAX + 1))

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert f"may have {BODY_BYTES_MAX}" in (refused.remark or "")
    assert taken.code == ResponseCode.SUCCESS


async def test_an_unknown_code_is_answered_3_and_the_connection_goes_on(network: Network, clock: Clock) -> None:
    """Clients of any generation may ask for what we lack; the remark names the code."""
    async with serving(network, clock) as running:
        peer = await running.connect()

        answer = await peer.ask(4711)

        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert "4711" in answer.remark
        assert (await peer.ask(1)).code == ResponseCode.SUCCESS


async def test_a_oneway_request_gets_no_answer_whatever_happens(network: Network, clock: Clock) -> None:
    """Neither success nor refusal nor an unknown code may answer it: the client would take it for another call's."""
    async with serving(network, clock) as running:
        running.dispatcher.register(2, refuse)
        peer = await running.connect()

        await peer.send(*(RemotingCommand(code, opaque=code, flag=2) for code in (1, 2, 4711)))

        assert (await peer.ask(1)).opaque == 0


def refuse(_: ServerConnection, __: RemotingCommand) -> RemotingCommand:
    raise RequestRefused(ResponseCode.NO_PERMISSION, "not you")


def fail(_: ServerConnection, __: RemotingCommand) -> RemotingCommand:
    raise ZeroDivisionError("a bug")


def misread(_: ServerConnection, __: RemotingCommand) -> RemotingCommand:
    raise JsonError("no value", 7)


@pytest.mark.parametrize(
    ("handler", "code", "remark"),
    [
        (refuse, ResponseCode.NO_PERMISSION, "not you"),
        (fail, ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug"),
        (misread, ResponseCode.SYSTEM_ERROR, "not JSON at 7"),
    ],
)
async def test_a_failing_handler_answers_and_harms_nobody(
    network: Network,
    clock: Clock,
    handler: Callable[[ServerConnection, RemotingCommand], RemotingCommand],
    code: int,
    remark: str,
) -> None:
    """Refusals carry their code, bugs are answered 1 and logged; the connection and the other requests go on."""
    async with serving(network, clock) as running:
        running.dispatcher.register(2, handler)
        peer = await running.connect()

        with capture_logs() as logs:
            await peer.send(RemotingCommand(2, opaque=5), RemotingCommand(1, opaque=6))
            answer, next_answer = await peer.receive(), await peer.receive()

    assert (answer.opaque, answer.code) == (5, code)
    assert answer.remark is not None
    assert remark in answer.remark
    assert (next_answer.opaque, next_answer.code) == (6, ResponseCode.SUCCESS)
    assert [entry["event"] for entry in logs] == (["request_failed"] if handler is fail else [])


async def test_a_request_whose_wait_fails_is_answered_and_harms_nobody(network: Network, clock: Clock) -> None:
    """It waits in a task of its own, whose failure would end the server."""

    async def wait() -> None:
        raise ZeroDivisionError("a bug")

    def postpone(_: ServerConnection, __: RemotingCommand) -> RemotingCommand:
        raise Postponed(wait)

    async with serving(network, clock) as running:
        running.dispatcher.register(2, postpone)
        peer = await running.connect()

        answer = await peer.ask(2)

        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
        assert (await peer.ask(1)).code == ResponseCode.SUCCESS


class Bug(Exception):
    """One of ours, which can be referred to weakly."""


@pytest.mark.parametrize("error", [RequestRefused, Bug])
async def test_a_failure_is_freed_when_it_is_answered(network: Network, clock: Clock, error: type[Exception]) -> None:
    """One that its traceback keeps grows old with the tables of a server, and old objects are not looked at for cycles."""
    raised: list[weakref.ref[Exception]] = []

    def fail() -> RemotingCommand:
        failure = RequestRefused(ResponseCode.SYSTEM_ERROR, "no") if error is RequestRefused else error("no")
        raised.append(weakref.ref(failure))
        try:
            raise failure
        finally:
            del failure

    async def fail_later(_connection: ServerConnection, _request: RemotingCommand) -> RemotingCommand:
        return fail()

    gc.disable()
    try:
        async with serving(network, clock) as running:
            running.dispatcher.register(1, lambda _, __: fail())
            running.dispatcher.register_waiting(2, fail_later)
            peer = await running.connect()
            for code in (1, 2):
                assert (await peer.ask(code)).code == ResponseCode.SYSTEM_ERROR
        assert [failure() for failure in raised] == [None, None]
    finally:
        gc.enable()


async def test_a_failing_run_answers_every_request_of_it(network: Network, clock: Clock) -> None:
    """No request of the run is left without an answer."""
    async with serving(network, clock) as running:

        def take(_: ServerConnection, __: list[RemotingCommand]) -> int:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD] later")

        running.dispatcher.register_run((10,), take)
        peer = await running.connect()

        await peer.send(RemotingCommand(10, opaque=1), RemotingCommand(10, opaque=2))
        answers = [await peer.receive() for _ in range(2)]

    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("bound", "value"), [("waiting_max", 2), ("waiting_per_connection_max", 2), ("waiting_bytes_max", 2010)]
)
async def test_waiting_handlers_are_bounded(network: Network, clock: Clock, bound: str, value: int) -> None:
    """More than that are answered SYSTEM_BUSY at once, in words that RocketMQ clients know."""
    async with serving(network, clock) as running:
        setattr(running.dispatcher, bound, value)
        go_on = trio.Event()

        async def wait(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            await go_on.wait()
            return request.response()

        running.dispatcher.register_waiting(2, wait)
        peer = await running.connect()

        await peer.send(*(RemotingCommand(2, {"name": "x"}, bytes(1000), opaque=n) for n in range(3)))
        busy = await peer.receive()
        go_on.set()
        served = {(await peer.receive()).opaque, (await peer.receive()).opaque}

        assert (busy.opaque, busy.code) == (2, ResponseCode.SYSTEM_BUSY)
        assert busy.remark is not None
        assert busy.remark.startswith("[OVERLOAD]")
        assert served == {0, 1}
        assert (await peer.ask(2)).code == ResponseCode.SUCCESS


async def test_one_connection_cannot_take_the_room_of_all_others(network: Network, clock: Clock) -> None:
    """However many requests it sends that wait, those of others are taken."""
    async with serving(network, clock) as running:
        go_on = trio.Event()

        async def wait(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            await go_on.wait()
            return request.response()

        running.dispatcher.register_waiting(2, wait)
        greedy, other = await running.connect(), await running.connect()

        await greedy.send(*(RemotingCommand(2, opaque=n) for n in range(WAITING_MAX)))
        await trio.testing.wait_all_tasks_blocked()
        await other.send(RemotingCommand(2))
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()

        assert (await other.receive()).code == ResponseCode.SUCCESS


async def test_a_postponed_request_keeps_its_place(network: Network, clock: Clock) -> None:
    """The last one that there is room for is not refused when it has to wait again."""
    handled = 0

    def postpone(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        nonlocal handled
        handled += 1
        if handled < 3:
            raise Postponed(trio.lowlevel.checkpoint)
        return request.response()

    async with serving(network, clock) as running:
        running.dispatcher.waiting_max = 1
        running.dispatcher.register(2, postpone)
        peer = await running.connect()

        assert (await peer.ask(2)).code == ResponseCode.SUCCESS
        handled = 0
        assert (await peer.ask(2)).code == ResponseCode.SUCCESS


async def test_long_requests_are_answered_one_after_the_other(network: Network, clock: Clock) -> None:
    """A second one begins when the first is answered, and nothing is done for a peer that has left meanwhile."""
    async with serving(network, clock) as running:
        began: list[int] = []
        go_on = trio.Semaphore(0)

        async def work(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            began.append(request.opaque)
            await go_on.acquire()
            return request.response()

        running.dispatcher.register_long({2: work, 3: work})
        leaving, staying = await running.connect(), await running.connect()

        for opaque, (peer, code) in enumerate(((leaving, 2), (leaving, 3), (staying, 3), (staying, 2)), 1):
            await peer.send(RemotingCommand(code, opaque=opaque))
            await trio.testing.wait_all_tasks_blocked()
        assert began == [1]
        await leaving.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        go_on.release()
        await trio.testing.wait_all_tasks_blocked()
        assert began == [1, 3]
        go_on.release()
        assert (await staying.receive()).opaque == 3
        go_on.release()
        assert (await staying.receive()).opaque == 4


async def test_closing_notifies_the_handlers_once_and_drops_what_was_queued(network: Network, clock: Clock) -> None:
    """Whatever was kept for a connection can be forgotten, and pushing to it does nothing."""
    async with serving(network, clock) as running:
        seen: list[ServerConnection] = []
        gone: list[ServerConnection] = []

        def answer(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            seen.append(connection)
            return request.response()

        running.dispatcher.register(2, answer)
        running.dispatcher.on_close.append(gone.append)
        peer = await running.connect()
        await peer.ask(2)

        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()

        assert gone == seen
        assert gone[0].closed
        gone[0].push(b"too late")


async def test_who_cannot_forget_a_connection_keeps_no_other_from_it(network: Network, clock: Clock) -> None:
    """The end of a connection is what a peer decides: it must not end the server."""
    async with serving(network, clock) as running:
        forgotten: list[ServerConnection] = []

        def stumble(_: ServerConnection) -> None:
            raise KeyError("a member that nobody knows")

        running.dispatcher.on_close += [stumble, forgotten.append]
        peer, other = await running.connect(), await running.connect()
        await peer.ask(1)
        with capture_logs() as logs:
            await peer.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()

        assert len(forgotten) == 1
        assert [entry["event"] for entry in logs] == ["connection_not_forgotten"]
        assert (await other.ask(1)).code == ResponseCode.SUCCESS
