import socket

import pytest

from pdd.cli.ports import claim
from pdd.rpc.errors import ListenError


def test_port_0_becomes_a_port_that_can_be_listened_on() -> None:
    host, _, port = claim("127.0.0.1:0").rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        assert listener.getsockname()[1] == int(port) > 0


def test_a_port_in_use_is_refused_by_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError, match=address):
            claim(address)


@pytest.mark.parametrize("address", ["8000", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ListenError, match="host:port"):
        claim(address)
