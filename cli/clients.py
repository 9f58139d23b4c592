"""The common part of all commands that talk to a cluster: options, time formats, signals, and explanations of errors."""

from __future__ import annotations

import functools
import re
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
import trio

from ..client.errors import (
    ClientError,
    InvalidArgument,
    NoAnswer,
    NoPermission,
    NoRoute,
    NoRouteReason,
    NotFound,
    NotOnline,
    NotSupported,
    Unreachable,
)
from ..client.name_servers import parse_name_servers
from ..remoting.errors import BadTlsSetting
from ..remoting.tls import TlsSettings
from ..world.tls import ClientTls
from .logs import log_to_stderr
from .serving import first_of, properties_of

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"
LATEST_MS, EARLIEST_MS = -1, 0
MS_DIGITS = 13
"""The digits of a time in ms between 2001 and 2286. Other numbers are seconds, or dates without hyphens."""
_TLS = "ledgermq.tls"

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType  # in older versions of click the class is not generic

_OTHER_SERVERS = "Give others with --namesrv or $LEDGERMQ_NAMESRV, or start a cluster on this machine with `ledgermq up`."

_SIGNED_BY = (
    "Set $LEDGERMQ_ACCESS_KEY to an enabled user of the broker, and $LEDGERMQ_SECRET_KEY or the file "
    "$LEDGERMQ_SECRET_KEY_FILE to its password."
)
_UNKNOWN_SIGNER = re.compile(
    r"username cannot be null|No accessKey is configured|User:.* is (?:not found|disabled)|signature failed", re.IGNORECASE
)
"""The refusals of both kinds of access control, in RocketMQ's words."""

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def tls_options(function: Callable[P, T]) -> Callable[P, T]:
    """Add the options for TLS, which the command reads by `chosen_tls`."""
    tls_config = click.option(
        "--tls-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="LEDGERMQ_TLS_CONFIG",
        expose_value=False,
        callback=_remember_tls,
        help="Speak TLS as RocketMQ's tls.properties says (tls.client.…). Also $LEDGERMQ_TLS_CONFIG.",
    )
    tls = click.option(
        "--tls", is_flag=True, expose_value=False, callback=_remember_tls, help="Speak TLS, whatever certificate is shown."
    )
    return tls(tls_config(function))


def namesrv_option(function: Callable[P, T]) -> Callable[P, T]:
    """Add the options for the name servers and for TLS."""
    namesrv = click.option(
        "--namesrv",
        "-n",
        envvar="LEDGERMQ_NAMESRV",
        default=DEFAULT_NAMESRV,
        show_default=True,
        help="Name servers, HOST:PORT;HOST:PORT. Also $LEDGERMQ_NAMESRV.",
    )
    return namesrv(tls_options(function))


def _remember_tls(context: click.Context, _parameter: click.Parameter, value: Path | bool | None) -> None:
    if isinstance(value, Path):
        try:
            context.meta[_TLS] = TlsSettings().updated(properties_of(value)).client()
        except BadTlsSetting as error:
            raise click.BadParameter(f"{value}: {error}", param_hint="--tls-config") from error
    elif value:
        context.meta.setdefault(_TLS, True)


def chosen_tls() -> bool | ClientTls:
    """The TLS settings from the options of the running command."""
    context = click.get_current_context(silent=True)
    chosen: bool | ClientTls = context.meta.get(_TLS, False) if context is not None else False
    return chosen


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def talks_to_cluster(function: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async function as the body of a command that has the option `--namesrv`, and explain its errors."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        log_to_stderr("error")
        namesrv = str(kwargs["namesrv"])
        try:
            run_interruptibly(functools.partial(function, *args, **kwargs))
        except BaseException as error:
            reason = first_of(error)
            if isinstance(reason, InvalidArgument):
                raise click.UsageError(str(reason)) from error
            if isinstance(reason, ClientError):
                notes: list[str] = getattr(reason, "__notes__", [])
                raise click.ClickException("\n".join((explain(reason, namesrv), *notes))) from error
            if isinstance(error, BaseExceptionGroup):
                # click handles its own errors, Ctrl-C and a broken pipe.
                raise reason from error
            raise

    return command


def watchable(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let the body of a command that has `watch_option` run again and again; what it finds missing does not end it then."""

    @functools.wraps(function)
    async def run(*args: Any, watch_seconds: float | None, **kwargs: Any) -> None:
        if watch_seconds is None:
            await function(*args, **kwargs)
            return
        while True:
            click.clear()
            try:
                await function(*args, **kwargs)
            except click.exceptions.Exit:
                pass
            except ClientError as error:
                click.echo(explain(error, str(kwargs["namesrv"])), err=True)
            await trio.sleep(watch_seconds)

    return run


async def _interruptible(function: Callable[[], Awaitable[None]], with_sigint: bool) -> None:
    """Handle SIGTERM as Ctrl-C, so that a terminated consumer still commits what it has printed."""
    interrupt = signal.getsignal(signal.SIGINT)  # trio's handler, which raises KeyboardInterrupt only where that is safe
    assert callable(interrupt)
    before = signal.signal(signal.SIGTERM, lambda _, frame: interrupt(signal.SIGINT, frame))
    if not with_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await function()
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, before)


def run_interruptibly(function: Callable[[], Awaitable[None]]) -> None:
    """Run a command to its end. If SIGINT is ignored, as in the background of a script, only SIGTERM interrupts it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        trio.run(_interruptible, function, True)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise trio would install no handler
    try:
        trio.run(_interruptible, function, False)
    finally:
        signal.signal(signal.SIGINT, before)


def explain(error: ClientError, namesrv: str) -> str:
    """The text of an error, with a suggestion of what may help."""
    servers = [str(address) for address in parse_name_servers(namesrv)]
    if isinstance(error, NoRoute) and error.reason is NoRouteReason.NAME_SERVER_UNREACHABLE:
        return f"{error}\n{_tls_hint(error)}Asked: {'; '.join(servers)}. {_OTHER_SERVERS}"
    if isinstance(error, Unreachable | NoAnswer) and error.address in servers:
        return f"{error}\n{_tls_hint(error)}No name server answers (asked: {'; '.join(servers)}). {_OTHER_SERVERS}"
    if isinstance(error, NotSupported) and error.address in servers:
        return f"{error}\nThat is no name server; brokers have another port than theirs. {_OTHER_SERVERS}"
    if isinstance(error, NoRoute) and error.reason is NoRouteReason.TOPIC_UNKNOWN:
        return f"{error}\nCreate it with `ledgermq topic create {error.topic}`."
    if isinstance(error, NoRoute) and error.reason is NoRouteReason.NO_PERMISSION:
        return f"{error}\nChange it with `ledgermq topic update {error.topic} --perm rw`."
    if isinstance(error, Unreachable):
        return (
            f"{error}\nThe broker may have died a moment ago, a firewall may stand between, or, if the name server gave this "
            "address, the broker's brokerIP1 names one of another network."
        )
    if isinstance(error, NotFound):
        return error.remark
    if isinstance(error, NoPermission) and (hint := credentials_hint(str(error))):
        return f"{error}\n{hint}"
    if isinstance(error, NotOnline):
        return f"{error}\nNo member of the group is connected now."
    return f"{error}\n{_tls_hint(error)}".rstrip()


def credentials_hint(text: str) -> str:
    """How requests are signed, if a broker refused one because it knows no such user or signature; otherwise empty."""
    return _SIGNED_BY if _UNKNOWN_SIGNER.search(text) else ""


def _tls_hint(error: ClientError) -> str:
    """A hint if the server closed a plain connection, as one that requires TLS does; otherwise empty."""
    closed = "closed by the server" in str(error) and not chosen_tls()
    return (
        "A server that takes TLS alone closes plain connections: for such a one give --tls or --tls-config.\n" if closed else ""
    )


def moment(text: str) -> int:
    """The time in ms for `earliest`, `latest`, `10m` (ago), an ISO date or a number of ms.

    Raises:
        click.BadParameter: `text` is none of these.
    """
    if text in ("earliest", "latest", "0"):
        return LATEST_MS if text == "latest" else EARLIEST_MS
    if text.isdigit() and len(text) != MS_DIGITS:
        raise click.BadParameter(
            f"milliseconds since 1970 have {MS_DIGITS} digits; a date is written as 2026-01-31 (got {text!r})"
        )
    try:
        if re.fullmatch(r"\d+[smhd]", text):
            found = time.time_ns() // 1_000_000 - int(text[:-1]) * _UNITS_MS[text[-1]]
        else:
            found = int(text) if text.isdigit() else round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        found = LATEST_MS
    if not 0 <= found < 1 << 63:  # the protocol uses negative numbers as markers
        raise click.BadParameter(
            f"a time is earliest, latest, 10m (or s, h, d) for so long ago, 2026-01-31T12:00, or milliseconds (got {text!r})"
        )
    return found


class Moment(_ParamType):
    """A point in time on the command line; see `moment`. `has_latest` says whether `latest` is one."""

    name = "time"

    def __init__(self, *, has_latest: bool = True) -> None:
        self._has_latest = has_latest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "latest" and not self._has_latest:
            self.fail("nothing is newer than latest; give an earlier time, such as 10m (ago)", param, ctx)
        return value if isinstance(value, int) else moment(value)


class Seconds(click.FloatRange):
    """A number of seconds, above 0 and at most a day."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=24 * 3600)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if seconds != seconds:  # noqa: PLR0124 - NaN, which click accepts in every range
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


watch_option = click.option("--watch", "watch_seconds", type=Seconds(), help="Show it again at this interval, until Ctrl-C.")


def pairs(items: tuple[str, ...], option: str) -> dict[str, str]:
    """Read NAME=VALUE options.

    Raises:
        click.BadParameter: an item has no `=` or no name.
    """
    entries: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=option)
        entries[name] = value
    return entries
