"""Who a link belongs to, by what was proven on it, and what that peer may do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Final

from callboard.actors.errors import require
from callboard.basp.handshake import SECRET_LIMIT
from callboard.proxies.rights.rights import Rights
from callboard.support.dataclass import dataclass

Secret = str | bytes
#: One secret, or several while one takes the place of another: the first is proved first.
Secrets = Secret | Sequence[Secret]


@dataclass(frozen=True, slots=True)
class Principal:
    """As whom a peer was let in: the name that it has proven, and the rights of that one."""

    identity: str
    rights: Rights


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rights of each identity, by patterns of names; the first that matches holds."""

    table: tuple[tuple[str, Rights], ...]

    def admit(self, secret_name: str, certified: Iterable[str]) -> Principal | None:
        """Return what is permitted to a peer; None when it is not to be linked with.

        Args:
            secret_name: of the secret that it proved; empty without one that has a name.
            certified: names in its certificate: they count where no secret has a name.
        """
        names = (secret_name,) if secret_name else (*certified,) or ("",)
        for pattern, rights in self.table:
            for name in names:
                if fnmatchcase(name, pattern):
                    return Principal(name, rights)
        return None


@dataclass(frozen=True, slots=True)
class LinkAccess:
    """What guards the links of a node, or of one of its ports.

    Attributes:
        keys: the secrets that a peer may prove, with their names; one may have none.
        permissions: what each peer may do; None for everything.
        has_own_keys: whether the secrets are those of one port, not the node's.
        allow_unsealed: whether peers of release 0.1, which do not seal, may prove a secret.
    """

    keys: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    permissions: Permissions | None = None
    allow_unsealed: bool = False
    has_own_keys: bool = False

    @classmethod
    def of(
        cls,
        secret: Secrets | None,
        secrets: Mapping[str, Secrets] | None,
        permissions: Mapping[str, Rights] | None,
        *,
        allow_unsealed: bool = False,
    ) -> "LinkAccess":
        """Check what a user gave; of several secrets in one place the first is proved first.

        Raises:
            TypeError: the maps hold something else than names with secrets, or with rights.
            ValueError: a secret is empty or there twice, there are too many, or a name is odd.
        """
        keys = [("", secret_bytes(each)) for each in _several(secret)]
        for name, each in _items(secrets, "secrets", '{"sensor": "a secret"}'):
            if not name or not name.isprintable():
                msg = f"{name!a} cannot be the name of a secret: give it one that can be read"
                raise ValueError(msg)
            several = _several(each)
            if not several or not all(isinstance(one, str | bytes) for one in several):
                msg = f"secrets[{name!r}] takes a text or bytes, not {type(each).__name__}"
                raise TypeError(msg)
            keys += [(name, secret_bytes(one)) for one in several]
        if len(keys) > SECRET_LIMIT:
            msg = f"{len(keys)} secrets are too many: a node tries {SECRET_LIMIT} at most"
            raise ValueError(msg)
        seen: dict[bytes, str] = {}
        for name, key in keys:
            if key in seen:
                msg = (
                    f"the secrets {seen[key] or 'without a name'!r} and "
                    f"{name or 'without a name'!r} are the same: "
                    "nobody could tell who proves it"
                )
                raise ValueError(msg)
            seen[key] = name
        table = None if permissions is None else _permissions(permissions)
        return cls(tuple(keys), table, allow_unsealed)


#: Nothing is asked of a peer, and everything is permitted.
OPEN: Final = LinkAccess()


def secret_bytes(secret: Secret) -> bytes:
    """Return a shared secret as it is proved.

    Raises:
        ValueError: it is empty.
    """
    require(isinstance(secret, str | bytes), "a secret is a text or bytes", secret)
    if not secret:
        msg = "secret must not be empty; leave it out for no authentication"
        raise ValueError(msg)
    return secret.encode() if isinstance(secret, str) else secret


def _several(given: Any) -> Sequence[Any]:
    """Return one secret or several as several."""
    if given is None:
        return ()
    return given if isinstance(given, list | tuple) else (given,)


def _permissions(given: Mapping[str, Rights]) -> Permissions:
    """Check the permissions that a user gave."""
    table = []
    for pattern, rights in _items(given, "permissions", '{"sensor": Rights(names=["till"])}'):
        if not isinstance(rights, Rights):
            msg = f"permissions[{pattern!r}] takes Rights(…), not {rights!r:.80}"
            raise TypeError(msg)
        table.append((pattern, rights))
    return Permissions(tuple(table))


def _items(given: object, what: str, example: str) -> list[tuple[str, object]]:
    """Return the entries of a map by names."""
    if given is None:
        return []
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        msg = f"{what} takes a map such as {example}: {what}={given!r:.80}"
        raise TypeError(msg)
    return list(given.items())
