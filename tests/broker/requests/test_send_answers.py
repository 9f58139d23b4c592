"""Answers made from templates against those encoded field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.requests.send_answers import SendAnswers
from ledgermq.remoting.command import RemotingCommand, Wire, decode_command
from ledgermq.remoting.frame import FrameReader

ANSWERS = SendAnswers('Region "50%"', True, "7F00000100002A9F")


@pytest.mark.parametrize("wire", Wire)
@given(
    code=st.sampled_from([0, 10, 11, 12]),
    opaque=st.integers(0, 2**31 - 1),
    physical=st.integers(0, 2**63 - 1),
    queue_id=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
)
def test_a_template_writes_what_the_encoder_would(
    wire: Wire, code: int, opaque: int, physical: int, queue_id: int, offset: int
) -> None:
    """In both encodings the frame reads back as the answer to its request, whatever the numbers."""
    request = RemotingCommand(310, opaque=opaque, wire=wire)

    (frame,) = FrameReader().feed(ANSWERS.frame(request, code, physical, queue_id, offset))

    answer = decode_command(*frame)
    expected = request.response(code, ANSWERS.fields(ANSWERS.message_id(physical), queue_id, offset))
    assert (answer.code, answer.ext, answer.opaque, answer.flag) == (code, expected.ext, opaque, 1)
    assert (answer.language, answer.version, answer.wire, answer.body) == ("PYTHON", 409, wire, b"")
