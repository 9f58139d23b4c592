"""Commands and their headers in both encodings."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import (
    FRAME_SIZE_MAX,
    LANGUAGES,
    RESPONSE_FLAG,
    RemotingCommand,
    Wire,
    decode_command,
    encode_frame,
    wire_fields,
)
from ledgermq.remoting.errors import LocalProtocolError, RemoteProtocolError, RequestRefused
from ledgermq.remoting.frame import FrameReader

ROUTE_REQUEST_JSON = bytes.fromhex(
    "000000820000007e7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a225431227d2c22666c6167223a302c"
    "226c616e6775616765223a22505954484f4e222c226f7061717565223a372c2273657269616c697a655479706543757272656e7452504322"
    "3a224a534f4e222c2276657273696f6e223a3430397d"
)
ROUTE_REQUEST_BINARY = bytes.fromhex(
    "0000002601000022006903019900000007000000000000 00000000000d0005746f706963000000025431".replace(" ", "")
)

texts = st.text(max_size=30)
words = st.text(min_size=1, max_size=30)
ints = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    ext=st.dictionaries(words, words, max_size=5),
    body=st.binary(max_size=100),
    opaque=ints,
    flag=ints,
    remark=st.none() | words,
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 2**15 - 1),
    wire=st.sampled_from(Wire),
)


def decode(frame: bytes) -> RemotingCommand:
    (parts,) = FrameReader().feed(frame)
    return decode_command(*parts)


def fields_of(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.ext,
        command.body,
        command.opaque,
        command.flag,
        command.remark,
        command.language,
        command.version,
        command.wire,
    )


@pytest.mark.parametrize(("wire", "frame"), [(Wire.JSON, ROUTE_REQUEST_JSON), (Wire.BINARY, ROUTE_REQUEST_BINARY)])
def test_a_route_request_is_the_known_frame(wire: Wire, frame: bytes) -> None:
    """The vectors of both encodings are written and read byte for byte."""
    command = RemotingCommand(105, {"topic": "T1"}, opaque=7, wire=wire)

    assert encode_frame(command) == frame
    assert fields_of(decode(frame)) == fields_of(command)


@given(commands)
def test_a_command_is_read_back(command: RemotingCommand) -> None:
    """Every field survives both encodings."""
    assert fields_of(decode(encode_frame(command))) == fields_of(command)


@given(commands)
def test_a_json_header_is_strict_json_with_texts_for_values(command: RemotingCommand) -> None:
    """Go's reader is strict: texts in extFields, whole numbers outside."""
    command.wire = Wire.JSON
    header = FrameReader().feed(encode_frame(command))[0][1]

    value = json.loads(header)
    assert all(isinstance(text, str) for text in value["extFields"].values())
    assert value["serializeTypeCurrentRPC"] == "JSON"
    assert ("remark" in value) == (command.remark is not None)


def test_an_answer_mirrors_opaque_and_encoding_of_its_request() -> None:
    """Clients pair answers by opaque and direction, and read the encoding they speak."""
    request = RemotingCommand(34, opaque=99, wire=Wire.BINARY)

    answer = request.response(ResponseCode.SUCCESS, {"version": 409, "on": True, "absent": None}, b"x", "fine")

    assert (answer.opaque, answer.flag, answer.wire) == (99, RESPONSE_FLAG, Wire.BINARY)
    assert answer.ext == {"version": "409", "on": "true"}


def test_an_answer_always_has_its_fields_key() -> None:
    """A send answer without extFields crashes the Java client, so even an empty one is written."""
    header = FrameReader().feed(encode_frame(RemotingCommand(0, flag=RESPONSE_FLAG)))[0][1]

    assert json.loads(header)["extFields"] == {}


@pytest.mark.parametrize(
    ("header", "ext"),
    [
        (b'{"code":10,"extFields":{"n":5,"b":true,"s":"x","none":null}}', {"n": "5", "b": "true", "s": "x"}),
        (b'{"code":10,"extFields":null}', {}),
        (b'{"code":10}', {}),
        (b'{"code":10,"unknown":[1],"extFields":{}}', {}),
    ],
)
def test_what_fastjson_forgives_in_a_header_is_forgiven(header: bytes, ext: dict[str, str]) -> None:
    """Numbers and booleans become text, nulls and unknown keys are skipped."""
    assert decode_command(Wire.JSON, header, b"").ext == ext


@pytest.mark.parametrize(
    ("wire", "header"),
    [
        (0, b""),
        (0, b"{"),
        (0, b"[]"),
        (0, b'"text"'),
        (0, b'{"code":"10"}'),
        (0, b'{"code":1.5}'),
        (0, b'{"opaque":null}'),
        (0, b'{"flag":true}'),
        (0, b'{"extFields":[]}'),
        (0, b'{"extFields":{"a":{}}}'),
        (0, b"\xff\xfe"),
        (0, b'{"opaque":%d}' % (1 << 70)),
        (0, b'{"opaque":%d}' % (1 << 31)),
        (0, b'{"code":-%d,"extFields":{"n":5}}' % ((1 << 31) + 1)),
        (0, b"[" * 50_000),
        (0, b'{"unknown":' + b"[" * 50_000),
        (0, b'{"extFields":' + b'{"a":' * 50_000),
        (1, b""),
        (1, bytes(20)),
        (1, bytes(12) + b"\x7f\xff\xff\xff" + bytes(5)),
        (1, bytes(12) + b"\xff\xff\xff\xff" + bytes(4)),
        (1, bytes(16) + b"\x00\x00\x00\x03" + b"\x00\x05a"),
        (2, b"{}"),
        (255, b"{}"),
    ],
)
def test_what_is_no_header_is_the_peer_s_mistake(wire: int, header: bytes) -> None:
    """The connection that sent it is closed; nothing else happens."""
    with pytest.raises(RemoteProtocolError):
        decode_command(wire, header, b"")


@given(st.integers(0, 255), st.binary(max_size=100))
def test_any_header_bytes_are_refused_or_read_but_nothing_else(wire: int, header: bytes) -> None:
    """No bytes make a decoder fail in another way."""
    with contextlib.suppress(RemoteProtocolError):
        decode_command(wire, header, b"")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "extFields", "flag", "language", "opaque", "remark", "version"]), json_values, max_size=7
    )
)
def test_any_json_header_is_refused_or_gives_a_command_that_can_be_answered(value: dict[str, object]) -> None:
    """Whatever types a peer puts into its header, what is taken has the types we promise, and can be answered."""
    try:
        command = decode_command(Wire.JSON, json.dumps(value).encode(), b"")
    except RemoteProtocolError:
        return

    assert all(isinstance(text, str) for text in command.ext.values())
    assert command.remark is None or isinstance(command.remark, str)
    assert command.language is None or isinstance(command.language, str)
    encode_frame(command.response(remark="done"))


def test_a_code_beyond_16_bits_does_not_fit_a_binary_header() -> None:
    """The pop codes cannot be asked for in that encoding; we say so instead of cutting them."""
    with pytest.raises(LocalProtocolError, match="200050"):
        encode_frame(RemotingCommand(200050, wire=Wire.BINARY))


def test_a_frame_beyond_the_limit_is_not_sent() -> None:
    """The peer would close the connection on it, and every other call of it would fail too."""
    with pytest.raises(LocalProtocolError, match=str(FRAME_SIZE_MAX)):
        encode_frame(RemotingCommand(11, body=bytes(FRAME_SIZE_MAX)))


def test_fields_are_read_by_their_type() -> None:
    """Numbers and booleans are parsed as Java parses them, a missing or broken field names itself."""
    command = RemotingCommand(11, {"n": "5", "yes": "TRUE", "no": "1", "bad": "x"})

    assert (command.integer("n"), command.integer("absent", 7), command.text("absent", "d")) == (5, 7, "d")
    assert (command.boolean("yes"), command.boolean("no"), command.boolean("absent", default=True)) == (True, False, True)
    for ask in (lambda: command.text("absent"), lambda: command.integer("absent"), lambda: command.integer("bad")):
        with pytest.raises(RequestRefused, match=r"'(absent|bad)'") as refusal:
            ask()
        assert refusal.value.code is ResponseCode.SYSTEM_ERROR


def test_python_values_become_the_texts_that_java_reads() -> None:
    """Booleans in lower case, numbers in decimal, None left out."""
    assert wire_fields({"a": True, "b": 0, "c": "x", "d": None}) == {"a": "true", "b": "0", "c": "x"}
