"""mqadmin and the Java and Go clients, unmodified, at a broker of ours with users and rights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from . import peers
from .conftest import mqadmin, obtain, start_java
from .driver import CONSUME_SECONDS, Driver, DriverError, bodies, expected
from .servers import NO_TLS, Cluster, Maker, running

pytestmark = pytest.mark.interop
ADMIN = {"username": "admin", "password": "swordfish"}


@attrs.define
class Secured:
    """A broker with users, an administrator, and clients that sign."""

    cluster: Cluster
    admin: Driver
    folder: Path

    @contextmanager
    def java(self, user: str, password: str) -> Generator[Driver]:
        """A Java client that signs as this user."""
        folder = self.folder / f"{user}-{password}"
        folder.mkdir()
        driver = start_java("5.5.0", self.cluster.namesrv, folder, interop_user=user, interop_password=password)
        try:
            yield driver
        finally:
            driver.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("access")
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(ADMIN, separators=(",", ":")),
    }
    tools = folder / "admin" / "home" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True)
    tools.write_text(f"accessKey: {ADMIN['username']}\nsecretKey: {ADMIN['password']}\n")
    with running(Maker.OURS, folder, NO_TLS, **settings) as cluster:
        admin = start_java("5.5.0", cluster.namesrv, folder / "admin")
        yield Secured(cluster, admin, folder)
        admin.close()


@pytest.fixture(scope="module")
def alice(secured: Secured) -> str:
    """A user who may send to the topic A and consume it with groups that begin with a; returns the name."""
    run = command(secured)
    run("createUser", "-u", "alice", "-p", "hush")
    run("createAcl", "-s", "User:alice", "-r", "Topic:A,Group:a*", "-a", "Pub,Sub", "-d", "Allow")
    run("updateTopic", "-t", "A", "-r", "4", "-w", "4")
    run("updateTopic", "-t", "B", "-r", "4", "-w", "4")
    return "alice"


def command(secured: Secured) -> Callable[..., str]:
    """Runs commands of mqadmin at the broker."""

    def run(name: str, *words: str) -> str:
        return mqadmin(secured.admin, name, "-b", secured.cluster.broker, *words)

    return run


def test_mqadmin_creates_changes_lists_and_deletes_users(secured: Secured) -> None:
    run = command(secured)

    assert "success" in run("createUser", "-u", "bob", "-p", "one")
    assert "Normal" in run("getUser", "-u", "bob")
    assert "success" in run("updateUser", "-u", "bob", "-p", "two")
    assert "success" in run("updateUser", "-u", "bob", "-s", "disable")
    listed = run("listUser")
    assert "success" in run("deleteUser", "-u", "bob")

    rows = [line.split() for line in listed.splitlines() if line.startswith(("bob", "admin"))]
    assert ["bob", "two", "Normal", "disable"] in rows
    assert ["admin", "swordfish", "Super", "enable"] in rows
    assert "bob" not in run("listUser")


def test_mqadmin_gives_lists_and_takes_away_rights(secured: Secured) -> None:
    run = command(secured)
    run("createUser", "-u", "carol", "-p", "x")

    assert "success" in run("createAcl", "-s", "User:carol", "-r", "Topic:C", "-a", "Pub", "-i", "10.0.0.0/8", "-d", "Allow")
    assert "success" in run("updateAcl", "-s", "User:carol", "-r", "Topic:C*", "-a", "Sub", "-d", "Deny")
    shown, listed = run("getAcl", "-s", "User:carol"), run("listAcl", "-r", "Topic:C")
    assert "success" in run("deleteAcl", "-s", "User:carol", "-r", "Topic:C")
    after = run("getAcl", "-s", "User:carol")

    assert "Topic:C" in shown
    assert "10.0.0.0/8" in shown
    assert "Deny" in shown
    assert "User:carol" in listed
    assert "10.0.0.0/8" not in after
    assert "Topic:C*" in after


def test_a_java_client_with_the_hook_does_what_its_rights_allow(secured: Secured, alice: str) -> None:
    """The broker's reason is in the exception of the others."""
    with secured.java(alice, "hush") as java:
        sent = java.send(topic="A", count=20)
        with java.consuming("push", topic="A", group="a1") as consumer:
            consumer.wait(20)
            received = consumer.stop()
        with pytest.raises(DriverError, match="no permission to access Topic:B"):
            java.send(topic="B", count=1)
    with secured.java(alice, "guess") as java, pytest.raises(DriverError, match="check signature failed"):
        java.send(topic="A", count=1)

    assert {each.status for each in sent} == {"SEND_OK"}
    assert bodies(received) == expected(20)


def test_a_go_client_with_credentials_does_what_its_rights_allow(secured: Secured, alice: str) -> None:
    program = obtain(peers.go_driver)
    folder = secured.folder / "go"
    folder.mkdir()
    environment = {**os.environ, "HOME": str(folder), "INTEROP_USER": alice, "INTEROP_PASSWORD": "hush"}
    go = Driver.start("Go client", [str(program), secured.cluster.namesrv], folder, environment)
    try:
        sent = go.send(topic="A", count=20)
        wanted = {each.offset_msg_id for each in sent}
        with go.consuming("push", topic="A", group="a-go") as consumer:  # others have sent to the topic, too
            go.wait_until(
                lambda: wanted <= {each.offset_msg_id for each in consumer.received()},
                CONSUME_SECONDS,
                lambda: f"only {len(consumer.received())} messages came",
            )
        with pytest.raises(DriverError, match="no permission"):
            go.send(topic="B", count=1)
    finally:
        go.close()

    assert {each.status for each in sent} == {"SEND_OK"}
