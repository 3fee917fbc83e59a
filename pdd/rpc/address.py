"""host:port as a setting: one that is none is told by its variable's name, before anything is started.

Used by the settings of every process.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from pdd.rpc.errors import ListenError
from pdd.rpc.server import split_address


def _checked(address: str) -> str:
    try:
        split_address(address)
    except ListenError as error:
        raise ValueError(str(error)) from error
    return address


def _checked_or_empty(address: str) -> str:
    return address and _checked(address)


Address = Annotated[str, AfterValidator(_checked)]
AddressOrEmpty = Annotated[str, AfterValidator(_checked_or_empty)]
