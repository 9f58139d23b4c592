"""The comparison of both paths for plain sends finds a compiled path that is wrong."""

from __future__ import annotations

import pytest

from harness.fuzz.sends import compare, seeds
from ledgermq import native

pytestmark = pytest.mark.skipif(native.scan_sends is None, reason="the compiled path is not built")


def test_what_clients_send_is_read_alike() -> None:
    """In both encodings, alone and together."""
    for data in seeds():
        compare(data)


@pytest.mark.parametrize(
    ("sent", "read"),
    [(b"body", b"b0dy"), (b"paid", b"unpd"), (b"k1 k2", b"k1_k2"), (b'opaque":2', b'opaque":9')],
    ids=["body", "tag", "keys", "opaque"],
)
def test_a_field_that_is_read_wrongly_is_found(sent: bytes, read: bytes) -> None:
    """Whether it goes into the record, the index or the answer."""

    def scan(data: bytes) -> native.SendRun | None:
        assert native.scan_sends is not None
        return native.scan_sends(data.replace(sent, read))

    with pytest.raises(AssertionError):
        compare(seeds()[4], scan)
