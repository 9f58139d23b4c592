"""RocketMQ's settings of TLS, by its keys (TlsSystemConfig), and what they mean for servers and clients.

Java processes read them from system properties and from the file that `tls.config.file` names, which takes precedence. Ours
read them from `broker.conf`, `namesrv.conf` or flags, and from the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs

from ..world.disk import Disk
from ..world.files import read_file
from ..world.network import Network
from ..world.real import World
from ..world.tls import ClientAuth, ClientTls, ServerMode, ServerTls, TlsAcceptor, TlsNetwork
from .errors import BadProperties, BadTlsSetting
from .java_properties import read_properties

CONFIG_FILE = "/etc/rocketmq/tls.properties"

TEXT: tuple[str, ...] = ()
SWITCH = ("true", "false")

TLS_KEYS: Mapping[str, tuple[str, ...]] = {
    "tls.server.mode": ("disabled", "permissive", "enforcing"),
    "tls.config.file": TEXT,
    "tls.test.mode.enable": SWITCH,
    "tls.server.certPath": TEXT,
    "tls.server.keyPath": TEXT,
    "tls.server.keyPassword": TEXT,
    "tls.server.trustCertPath": TEXT,
    "tls.server.need.client.auth": ("none", "optional", "require"),
    "tls.server.authClient": SWITCH,
    "tls.enable": SWITCH,
    "tls.client.certPath": TEXT,
    "tls.client.keyPath": TEXT,
    "tls.client.keyPassword": TEXT,
    "tls.client.authServer": SWITCH,
    "tls.client.trustCertPath": TEXT,
}
"""Every key and its allowed values; an empty list allows any text."""

SECRET_KEYS = frozenset(("tls.server.keyPassword", "tls.client.keyPassword"))


@attrs.frozen
class TlsSettings:
    """The settings that are given, by key; the others have RocketMQ's defaults."""

    given: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda given: repr(sorted(given)))

    def __attrs_post_init__(self) -> None:
        for key, value in self.given.items():
            allowed = TLS_KEYS[key]
            if allowed and value not in allowed:
                raise BadTlsSetting(key, value, f"{', '.join(allowed[:-1])} or {allowed[-1]}")

    def updated(self, entries: Mapping[str, str]) -> TlsSettings:
        """These settings, overridden by those of `entries`; keys that are not of TLS are ignored.

        Raises:
            BadTlsSetting: a value is not allowed.
        """
        return TlsSettings({**self.given, **{key: value.strip() for key, value in entries.items() if key in TLS_KEYS}})

    def with_file(self, disk: Disk) -> TlsSettings:
        """These settings, overridden by those of the file `tls.config.file` if it exists; if that is empty, no file is read.

        Raises:
            BadTlsSetting: a value in it is not allowed, or the named file does not exist.
            OSError: the file cannot be read.
        """
        path = self.given.get("tls.config.file", CONFIG_FILE)
        if not path:
            return self
        if not disk.exists(path):
            if "tls.config.file" in self.given:
                raise BadTlsSetting("tls.config.file", path, "a file that exists")
            return self
        try:
            return self.updated(read_properties(read_file(disk, path).decode()))
        except (UnicodeDecodeError, BadProperties) as error:
            raise BadTlsSetting("tls.config.file", path, f"a file of properties in UTF-8 ({error})") from error

    def shown(self) -> dict[str, str]:
        """The settings that are given, without the passwords."""
        return {key: value for key, value in self.given.items() if key not in SECRET_KEYS}

    @property
    def is_client(self) -> bool:
        """Whether connections that this process opens are to be encrypted."""
        return self._is_on("tls.enable")

    @property
    def requires_certificates(self) -> bool:
        """Whether a server takes connections of clients with certificates only."""
        return self.given.get("tls.server.need.client.auth") == "require"

    def server(self) -> ServerTls:
        """The settings of a server.

        Raises:
            BadTlsSetting: two settings contradict each other.
        """
        given = self.given
        mode = cast("ServerMode", given.get("tls.server.mode", "permissive"))
        # RocketMQ's test mode is on by default, and then even a configured certificate is not used. Here it is on by default
        # only while no certificate is configured.
        if given.get("tls.test.mode.enable", "false" if "tls.server.certPath" in given else "true") == "true":
            # The test mode does not authenticate clients, so it is not assumed where authentication is wanted.
            wants = self._is_on("tls.server.authClient") or given.get("tls.server.need.client.auth") == "require"
            if wants and mode != "disabled" and "tls.test.mode.enable" not in given:
                raise BadTlsSetting("tls.server.certPath", "", "set where clients are to be authenticated")
            return ServerTls(mode=mode)
        if mode != "disabled" and not given.get("tls.server.certPath"):
            raise BadTlsSetting("tls.server.certPath", "", "set when tls.test.mode.enable is false")
        return ServerTls(
            mode=mode,
            cert_path=given.get("tls.server.certPath", ""),
            key_path=given.get("tls.server.keyPath", ""),
            key_password=given.get("tls.server.keyPassword", ""),
            client_auth=self._client_auth(),
            trust_cert_path=given.get("tls.server.trustCertPath", ""),
        )

    def _client_auth(self) -> ClientAuth:
        asked = cast("ClientAuth", self.given.get("tls.server.need.client.auth", "none"))
        if not self._is_on("tls.server.authClient"):
            # RocketMQ then asks for a certificate and accepts any, which only looks like authentication.
            if asked == "require":
                raise BadTlsSetting("tls.server.authClient", "false", "true where tls.server.need.client.auth is require")
            return "none"
        if asked == "none":
            # No certificate is requested, so there would be nothing to verify.
            raise BadTlsSetting(
                "tls.server.need.client.auth", "none", "require or optional where tls.server.authClient is true"
            )
        if asked == "require" and self.given.get("tls.server.mode", "permissive") == "permissive":
            # A client without a certificate could connect without TLS.
            raise BadTlsSetting("tls.server.mode", "permissive", "enforcing where tls.server.need.client.auth is require")
        if not self.given.get("tls.server.trustCertPath"):
            raise BadTlsSetting("tls.server.trustCertPath", "", "set where tls.server.authClient is true")
        return asked

    def client(self) -> ClientTls:
        """The settings of a client."""
        given = self.given
        if given.get("tls.test.mode.enable") == "true":
            return ClientTls()
        auth = given.get("tls.client.authServer")
        return ClientTls(
            trust_cert_path=given.get("tls.client.trustCertPath", ""),
            auth_server=None if auth is None else auth == "true",
            cert_path=given.get("tls.client.certPath", ""),
            key_path=given.get("tls.client.keyPath", ""),
            key_password=given.get("tls.client.keyPassword", ""),
        )

    def _is_on(self, key: str) -> bool:
        return self.given.get(key) == "true"


async def open_tls(settings: TlsSettings, world: World) -> tuple[TlsAcceptor, Network]:
    """Open TLS for a server process: the acceptor of its server, and the network for its outgoing connections.

    Raises:
        BadTlsSetting: a setting is not allowed, also in the file that `tls.config.file` names.
        TlsFailed: a certificate or key cannot be used.
        OSError: the file cannot be read.
    """
    settings = settings.with_file(world.disk)
    acceptor = TlsAcceptor(settings.server(), world.workers)
    await acceptor.check()
    network = TlsNetwork(world.network, settings.client(), world.workers) if settings.is_client else world.network
    return acceptor, network
