"""Whether a peer, or the host name that it used, belongs to this machine. Resolves no name."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def is_loopback(peer: str | None) -> bool:
    """Whether `peer`, an IP address as text, is this machine itself."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1 on a dual-stack socket
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def is_loopback_host(host: str) -> bool:
    """Whether `host`, of a URL or of a setting, is `localhost` or an address of this machine itself."""
    return host == "localhost" or is_loopback(host.strip("[]"))


def is_local_name(host: str, allowed: Collection[str] = ()) -> bool:
    """Whether the header `host` is an address, a name without a dot such as localhost, or one of `allowed`.

    The owner of any other name can make it resolve to this machine, even while a browser shows that owner's
    page. A name without a dot has no owner: it belongs to this machine or its network, like a service's name.
    """
    name = (host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host).lower()
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." not in name or name in allowed
    return True
