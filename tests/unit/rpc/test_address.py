import pytest
from pydantic import TypeAdapter, ValidationError

from pdd.rpc.address import Address, AddressOrEmpty


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:8000", "prefill:50051"])
def test_an_address_stays_as_it_is_written(address: str) -> None:
    assert TypeAdapter(Address).validate_python(address) == address
    assert TypeAdapter(AddressOrEmpty).validate_python(address) == address


@pytest.mark.parametrize("unfit", ["foo", "127.0.0.1", ":0", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:http"])
def test_what_is_no_address_is_told_with_what_one_is(unfit: str) -> None:
    for kind in (Address, AddressOrEmpty):
        with pytest.raises(ValidationError, match="is no address: give host:port"):
            TypeAdapter(kind).validate_python(unfit)


def test_only_what_may_be_left_out_may_be_empty() -> None:
    assert TypeAdapter(AddressOrEmpty).validate_python("") == ""
    with pytest.raises(ValidationError, match="is no address"):
        TypeAdapter(Address).validate_python("")
