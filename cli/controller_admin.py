"""`ledgermq controller status`, `elect` and `forget`: the controllers of a group, and what they have decided."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import click
import trio

from ..ha.classic.table_proofs import node_credentials
from ..ha.controller.protocol import (
    ANY_BROKER,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ElectMasterRequest,
    GetMetadataResponse,
    Header,
    Mastership,
)
from ..remoting.channel import connected
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import RemotingError
from ..world.address import Address
from ..world.network import Network
from ..world.real import real_world
from ..world.tls import ClientTls, TlsNetwork
from .clients import chosen_tls, json_option, run_interruptibly, tls_options
from .logs import log_to_stderr
from .output import fail_if_missing, print_json, print_rows
from .serving import first_of

DEFAULT_PORT = 19876
CALL_SECONDS = 5.0
"""How long a controller may take to answer."""
_COLUMNS = ("broker", "id", "role", "alive", "address", "epoch", "set_epoch")


class Refused(Exception):
    """A controller answered with a code other than success."""

    def __init__(self, address: Address, answer: RemotingCommand) -> None:
        super().__init__(f"{address}: {answer.remark or f'code {answer.code}'}")
        self.code = answer.code


@attrs.frozen
class Asked:
    """What one controller has said of its group."""

    address: Address
    metadata: GetMetadataResponse | None
    failure: str | None


def _addresses(_context: click.Context, _parameter: click.Parameter, text: str) -> list[Address]:
    try:
        return [Address.parse(part) for part in text.replace(",", ";").split(";") if part.strip()] or [Address.parse(text)]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def asks_controllers(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async function as the body of a command that has the option `--controller`, and explain its errors."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        log_to_stderr("error")
        try:
            run_interruptibly(functools.partial(function, *args, **kwargs))
        except BaseException as error:
            reason = first_of(error)
            if isinstance(reason, Refused | RemotingError | OSError):
                raise click.ClickException(str(reason)) from error
            if isinstance(error, BaseExceptionGroup):
                raise reason from error
            raise

    option = click.option(
        "--controller",
        "controllers",
        envvar="LEDGERMQ_CONTROLLER",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        show_default=True,
        callback=_addresses,
        help="Controllers, HOST:PORT;HOST:PORT. Also $LEDGERMQ_CONTROLLER.",
    )
    return option(tls_options(command))


@click.command("status")
@json_option
@asks_controllers
async def status(controllers: Sequence[Address], as_json: bool) -> None:
    """Show the controllers, and every replica with its role as the leader sees it.

    Ends with status 1 if no controller leads, one does not answer, a broker name has no master that is alive or no replica in
    sync with it, or a replica is not alive, and names them on standard error.
    """
    asked = await ask_all(controllers)
    leader = leader_of(asked)
    replicas = await replicas_of(leader) if leader is not None else []
    if as_json:
        print_json({"controllers": [_shown(one) for one in asked], "replicas": replicas})
    else:
        print_rows([_shown(one) for one in asked], ("address", "id", "role", "group", "note"), as_json=False)
        if replicas:
            click.echo()
        print_rows(replicas, _COLUMNS, as_json=False, nothing="no broker is registered" if leader is not None else "")
    fail_if_missing(missing_of(asked, leader, replicas))


@click.command("elect")
@click.argument("broker")
@click.argument("broker_id", type=click.IntRange(min=1), required=False, metavar="[ID]")
@asks_controllers
async def elect(controllers: Sequence[Address], broker: str, broker_id: int | None) -> None:
    """Make the replica ID the master of BROKER; without an ID, elect one if there is no master.

    The replica must be alive and in sync, so that no acknowledged message is lost, unless enableElectUncleanMaster is on.
    """
    request = ElectMasterRequest(
        broker_name=broker, broker_id=ANY_BROKER if broker_id is None else broker_id, designate_elect=broker_id is not None
    )
    answer = await ask_leader(
        controllers, RequestCode.CONTROLLER_ELECT_MASTER, request, also=ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    )
    elected = Mastership.of(answer)
    stays = " already" if answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST else ""
    click.echo(f"{elected.master_broker_id} is master of {broker}{stays}, in epoch {elected.master_epoch}")


@click.command("forget")
@click.argument("broker")
@click.argument("broker_ids", type=click.IntRange(min=1), nargs=-1, metavar="[ID]...")
@click.option("--living", is_flag=True, help="Forget them even if they may be alive.")
@asks_controllers
async def forget(controllers: Sequence[Address], broker: str, broker_ids: tuple[int, ...], living: bool) -> None:
    """Remove replicas of BROKER that do not come back, all of them unless some are named.

    Ids are not given out again. If the master is among them, another member of the SyncStateSet is elected.
    """
    ids = ";".join(map(str, broker_ids)) or None
    request = CleanBrokerDataRequest(broker_name=broker, broker_controller_ids_to_clean=ids, is_clean_living_broker=living)
    await ask_leader(controllers, RequestCode.CLEAN_BROKER_DATA, request)
    click.echo(f"{', '.join(map(str, broker_ids)) or 'all replicas'} of {broker} forgotten")


# ----------------------------------------------------------------------------------------------------------- asking controllers


def _network() -> Network:
    world, tls = real_world(), chosen_tls()
    if not tls:
        return world.network
    return TlsNetwork(world.network, ClientTls() if tls is True else tls, world.workers)


async def ask(address: Address, code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Send a request to one controller.

    Raises:
        RemotingError: there was no answer; what was asked for may have been done.
    """
    credentials = node_credentials(os.environ.get("LEDGERMQ_HA_SECRET", "").encode())
    async with connected(address, network=_network(), credentials=credentials) as channel:
        return await channel.call(RemotingCommand(code, header.ext() if header is not None else {}, body), CALL_SECONDS)


async def ask_all(addresses: Sequence[Address]) -> list[Asked]:
    """Ask controllers who leads, and the others that they name too, all at once."""
    found: dict[Address, Asked] = {}

    async def ask_one(address: Address) -> None:
        try:
            answer = await ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            if answer.code == ResponseCode.SUCCESS:
                found[address] = Asked(address, GetMetadataResponse.of(answer), None)
            else:
                failure = answer.remark or str(answer.code)
                if answer.code != ResponseCode.NO_PERMISSION:
                    failure = f"this is no controller, which listens on port {DEFAULT_PORT} by default: {failure}"
                found[address] = Asked(address, None, failure)
        except RemotingError as error:
            found[address] = Asked(address, None, str(error))

    for _ in range(2):
        wanted = {*addresses, *(peer for one in found.values() for peer in _peers_of(one).values())} - found.keys()
        async with trio.open_nursery() as nursery:
            for address in wanted:
                nursery.start_soon(ask_one, address)
    return sorted(found.values(), key=lambda one: str(one.address))


def _peers_of(asked: Asked) -> dict[str, Address]:
    """The controllers of a group by id, as one of them names them."""
    peers: dict[str, Address] = {}
    for part in filter(None, (asked.metadata.peers if asked.metadata is not None else "").split(";")):
        name, _, address = part.partition(":")
        peers[name] = Address.parse(address)
    return peers


def leader_of(asked: Sequence[Asked]) -> Address | None:
    """The controller that says that it leads; None if there is none."""
    return next((one.address for one in asked if one.metadata is not None and one.metadata.is_leader), None)


async def ask_leader(
    addresses: Sequence[Address], code: RequestCode, header: Header, *, also: ResponseCode = ResponseCode.SUCCESS
) -> RemotingCommand:
    """Send a request to the leader, and return an answer of success or with the code `also`.

    Raises:
        click.ClickException: no controller leads. Nothing was done.
        Refused: the leader has refused the request.
    """
    asked = await ask_all(addresses)
    leader = leader_of(asked)
    if leader is None:
        reasons = "; ".join(f"{one.address}: {one.failure or 'knows no leader'}" for one in asked)
        raise click.ClickException(f"no controller leads ({reasons}); nothing was changed")
    answer = await ask(leader, code, header)
    if answer.code not in (ResponseCode.SUCCESS, also):
        raise Refused(leader, answer)
    return answer


async def replicas_of(leader: Address) -> list[dict[str, Any]]:
    """One row for each replica that the leader knows."""
    answer = await ask(leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]")
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(leader, answer)
    rows: list[dict[str, Any]] = []
    for name, one in sorted(BrokerReplicasInfo.of(answer.body).replicas_info_table.items()):
        members = [(True, replica) for replica in one.in_sync_replicas] + [(False, each) for each in one.not_in_sync_replicas]
        for in_sync, replica in sorted(members, key=lambda member: member[1].broker_id):
            role = "master" if replica.broker_id == one.master_broker_id else "in sync" if in_sync else "behind"
            rows.append(
                {
                    "broker": name,
                    "id": replica.broker_id,
                    "role": role,
                    "alive": replica.alive,
                    "address": replica.broker_address,
                    "epoch": one.master_epoch,
                    "set_epoch": one.sync_state_set_epoch,
                }
            )
    return rows


def _shown(asked: Asked) -> dict[str, Any]:
    metadata = asked.metadata
    if metadata is None:
        return {"address": str(asked.address), "id": None, "role": None, "group": None, "note": asked.failure}
    own = next((name for name, address in _peers_of(asked).items() if address == asked.address), None)
    note = None if metadata.controller_leader_id is not None else "knows no leader"
    role = "leader" if metadata.is_leader else "follower"
    return {"address": str(asked.address), "id": own, "role": role, "group": metadata.group, "note": note}


def missing_of(asked: Sequence[Asked], leader: Address | None, replicas: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong: controllers that do not answer, broker names without a master or a second copy, and replicas that died."""
    missing = [f"{one.address}: {one.failure}" for one in asked if one.failure is not None]
    if leader is None:
        return [*missing, "no controller leads, so no master is elected"]
    names = {row["broker"] for row in replicas}
    served = {row["broker"] for row in replicas if row["role"] == "master" and row["alive"]}
    doubled = {row["broker"] for row in replicas if row["role"] == "in sync" and row["alive"]}
    return [
        *missing,
        *(f"{name}: no master is alive" for name in sorted(names - served)),
        *(f"{name}: no replica is in sync with its master" for name in sorted(served - doubled)),
        *(
            f"{row['broker']}: replica {row['id']} at {row['address']} is not alive"
            for row in replicas
            if not row["alive"] and row["role"] != "master"
        ),
    ]
