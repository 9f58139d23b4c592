"""The pairing of answers with calls."""

from __future__ import annotations

from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.connection import Connection


def test_both_directions_may_use_the_same_opaque() -> None:
    """A request of the peer with the opaque of our own call is a request, not the answer."""
    ours: Connection[str] = Connection()
    opaque = ours.next_opaque()
    ours.calls[opaque] = "caller"
    theirs = RemotingCommand(40, opaque=opaque)

    requests, answers = ours.receive(encode_frame(theirs) + encode_frame(theirs.response(body=b"ours")))

    assert [request.code for request in requests] == [40]
    assert [(waiter, answer.body) for waiter, answer in answers] == [("caller", b"ours")]
    assert ours.calls == {}


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    """Late and repeated answers are facts of life."""
    connection: Connection[str] = Connection()
    connection.calls[1] = "caller"
    answer = encode_frame(RemotingCommand(105, opaque=1).response())
    unknown = encode_frame(RemotingCommand(105, opaque=2).response())

    requests, answers = connection.receive(answer + answer + unknown)

    assert requests == []
    assert [waiter for waiter, _ in answers] == ["caller"]


def test_answers_may_come_in_any_order() -> None:
    """Each goes to whoever asked."""
    connection: Connection[int] = Connection()
    opaques = [connection.next_opaque() for _ in range(3)]
    connection.calls |= {opaque: opaque for opaque in opaques}

    _, answers = connection.receive(
        b"".join(encode_frame(RemotingCommand(1, opaque=opaque).response()) for opaque in reversed(opaques))
    )

    assert [(waiter, answer.opaque) for waiter, answer in answers] == [(opaque, opaque) for opaque in reversed(opaques)]


def test_opaques_wrap_around_and_skip_calls_that_are_out() -> None:
    """After two thousand million calls the count starts again, without touching a long poll that is still out."""
    connection = Connection[str](opaque=0x7FFFFFFE)  # pyright: ignore[reportCallIssue] - attrs strips the underscore
    assert connection.next_opaque() == 0x7FFFFFFF
    connection.calls |= {0: "long poll", 1: "another"}

    assert connection.next_opaque() == 2
