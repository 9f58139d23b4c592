"""The files with the accounts of ACL 1.0: `plain_acl.yml` and those in `acl/`, read at the start and again when they change."""

from __future__ import annotations

from typing import Any

import attrs

from ...world.disk import Disk
from ...world.events import get_logger
from ...world.files import read_file
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..errors import BadAccountFile
from .plain_acl import Accounts, BadAccounts, PlainAccessControl

log = get_logger(__name__)

RELOAD_SECONDS = 1.0
"""How often the files are compared with what was read last."""
FILES_BYTES_MAX = 1 << 20
"""The most bytes of all files together."""


@attrs.define(eq=False, repr=False)
class AccountFiles:
    """The files in one directory."""

    disk: Disk
    directory: str
    _contents: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    """What was read last, by path."""

    def load(self) -> Accounts:
        """Read the files.

        Raises:
            BadAccountFile: one is missing, too large or not what it should be.
            OSError: one cannot be read.
        """
        self._contents = self._read()
        return self._accounts(self._contents)

    def _read(self) -> dict[str, bytes]:
        main, more = f"{self.directory}/plain_acl.yml", f"{self.directory}/acl"
        if not self.disk.exists(main):
            raise BadAccountFile(main, "with aclEnable=true the accounts are there, and the file is missing")
        names = sorted(self.disk.list_directory(more)) if self.disk.exists(more) else []
        paths = [main, *(f"{more}/{name}" for name in names if name.endswith((".yml", ".yaml")))]
        if sum(map(self.disk.size, paths)) > FILES_BYTES_MAX:
            raise BadAccountFile(main, f"the files of accounts have more than {FILES_BYTES_MAX} bytes together")
        return {path: read_file(self.disk, path) for path in paths}

    def _accounts(self, contents: dict[str, bytes]) -> Accounts:
        values: list[Any] = []
        for path, content in contents.items():
            try:
                values.append(_yaml_of(content))
                Accounts.of(values[-1:])
            except BadAccounts as error:
                raise BadAccountFile(path, str(error)) from error
        try:
            return Accounts.of(values)
        except BadAccounts as error:
            raise BadAccountFile(self.directory, str(error)) from error

    async def watch(self, control: PlainAccessControl, workers: Workers) -> None:
        """Let the control have the accounts of changed files, until cancelled; accounts that cannot be read change nothing."""
        while True:
            await next_tick(RELOAD_SECONDS)
            try:
                contents = await workers.run(self._read)
                if contents == self._contents:
                    continue
                self._contents = contents
                control.accounts = await workers.run(self._accounts, contents)
            except (BadAccountFile, OSError) as error:
                log.error("accounts_not_reloaded", directory=self.directory, reason=str(error))
            else:
                log.info("accounts_reloaded", directory=self.directory, accounts=len(control.accounts.by_key))


def _yaml_of(content: bytes) -> Any:
    import yaml  # noqa: PLC0415 - only brokers with such files wait for it

    try:
        found = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadAccounts(f"it is not YAML{where}") from error
    except Exception as error:  # noqa: BLE001 - PyYAML lets out what its conversions raise; the text may contain a secret
        raise BadAccounts(f"it has a value that YAML cannot hold, or is nested too deeply ({type(error).__name__})") from None
    if found is None:  # an editor that is about to write has emptied it, or a full disk has
        raise BadAccounts("it is blank; a file without accounts says `accounts: []`")
    return found
