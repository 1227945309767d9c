"""The arguments of ready-made modules: checked as the configuration around them is."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from callboard.gateway.errors import GatewayError

__all__ = ["Arguments", "InvalidArguments"]


class InvalidArguments(GatewayError, ValueError):
    """The arguments of a module cannot be used."""


class Arguments(BaseModel):
    """What a ready-made module may be told; a subclass has a field for each."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Self:
        """Check arguments.

        Raises:
            InvalidArguments: with all mistakes.
        """
        try:
            return cls.model_validate(dict(args))
        except ValidationError as error:
            found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            there = ", ".join(cls.model_fields)
            msg = f"args: {'; '.join(found)} (there are {there})"
            raise InvalidArguments(msg) from error
