"""The identity that a peer has proven, and the rights of that identity."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Final

from callboard.arguments import require
from callboard.basp.handshake import SECRET_LIMIT
from callboard.proxies.rights.rights import Rights
from callboard.support.dataclass import dataclass

Secret = str | bytes
#: One secret, or several during a change of secrets: the first is proved first.
Secrets = Secret | Sequence[Secret]


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated identity of a peer, and its rights."""

    identity: str
    rights: Rights


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rights of each identity, by patterns of names; the first matching pattern applies."""

    table: tuple[tuple[str, Rights], ...]

    def admit(self, secret_name: str, certified: Iterable[str]) -> Principal | None:
        """Return the identity and rights of a peer; None if it may not be linked.

        Args:
            secret_name: name of the proven secret; empty for one without a name.
            certified: the names in the peer's certificate, which count if the secret has no
                name.
        """
        names = (secret_name,) if secret_name else (*certified,) or ("",)
        for pattern, rights in self.table:
            for name in names:
                if fnmatchcase(name, pattern):
                    return Principal(name, rights)
        return None


@dataclass(frozen=True, slots=True)
class LinkAccess:
    """Authentication of the links of a node, or of one of its ports.

    Attributes:
        keys: the secrets that a peer may prove, with their names, which may be empty.
        permissions: rights of each peer; None for all rights.
        has_own_keys: whether the secrets belong to one port, not to the node.
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
        """Check the secrets and permissions of a user.

        If several secrets are given under one name, a dialing node proves the first one first.

        Raises:
            TypeError: a map holds something other than names with secrets, or with rights.
            ValueError: a secret is empty or repeated, there are too many, or a name is invalid.
        """
        keys = [("", secret_bytes(value)) for value in _several(secret)]
        for name, value in _items(secrets, "secrets", '{"sensor": "a secret"}'):
            if not name or not name.isprintable():
                msg = f"{name!a} cannot be the name of a secret: use a printable name"
                raise ValueError(msg)
            several = _several(value)
            if not several or not all(isinstance(single, str | bytes) for single in several):
                msg = f"secrets[{name!r}] takes a text or bytes, not {type(value).__name__}"
                raise TypeError(msg)
            keys += [(name, secret_bytes(single)) for single in several]
        if len(keys) > SECRET_LIMIT:
            msg = f"{len(keys)} secrets are too many; the limit is {SECRET_LIMIT}"
            raise ValueError(msg)
        names: dict[bytes, str] = {}
        for name, key in keys:
            if key in names:
                msg = (
                    f"the secrets {names[key] or 'without a name'!r} and "
                    f"{name or 'without a name'!r} are the same, so they identify no peer; "
                    "use different ones"
                )
                raise ValueError(msg)
            names[key] = name
        table = None if permissions is None else _permissions(permissions)
        return cls(tuple(keys), table, allow_unsealed)

    @property
    def limits_rights(self) -> bool:
        """Whether peers have the rights of a table; without one they have all rights."""
        return self.permissions is not None

    def rights_of(self, name: str) -> Rights | None:
        """Return the rights in the table for a name; None without an entry, or a table."""
        principal = None if self.permissions is None else self.permissions.admit(name, ())
        return None if principal is None else principal.rights


#: No authentication, and all rights.
OPEN: Final = LinkAccess()


def secret_bytes(secret: Secret) -> bytes:
    """Return a shared secret as bytes.

    Raises:
        ValueError: the secret is empty.
    """
    require(isinstance(secret, str | bytes), "a secret must be a text or bytes", secret)
    if not secret:
        msg = "secret must not be empty; omit it for no authentication"
        raise ValueError(msg)
    return secret.encode() if isinstance(secret, str) else secret


def _several(value: Any) -> Sequence[Any]:
    """Return one secret or several as a sequence."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _permissions(entries: Mapping[str, Rights]) -> Permissions:
    """Check the permissions that a user has passed."""
    table = []
    for pattern, rights in _items(entries, "permissions", '{"sensor": Rights(names=["till"])}'):
        if not isinstance(rights, Rights):
            msg = f"permissions[{pattern!r}] takes Rights(…), not {rights!r:.80}"
            raise TypeError(msg)
        table.append((pattern, rights))
    return Permissions(tuple(table))


def _items(value: object, label: str, example: str) -> list[tuple[str, object]]:
    """Return the entries of a map whose keys are names; none for None."""
    if value is None:
        return []
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        msg = f"{label} takes a map such as {example}: {label}={value!r:.80}"
        raise TypeError(msg)
    return list(value.items())
