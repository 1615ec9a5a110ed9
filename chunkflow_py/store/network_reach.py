"""Classify IP addresses, and decide to which addresses a server may redirect a client.

An untrusted server could redirect a client to an address that only the client can reach: a service
on the client's machine or network, or the metadata service that returns the machine's credentials
(169.254.169.254).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

Reach = Literal["public", "private", "link-local", "loopback"]

_NAT64 = ip_network("64:ff9b::/96")


def reach_of(address: str) -> Reach:
    """Return which clients can reach an IP address.

    The result is ``loopback`` (only this machine), ``link-local`` (machines on the same link),
    ``private`` (machines in the same network) or ``public`` (all machines). Multicast and reserved
    addresses count as ``private``.

    Raises:
        ValueError: *address* is not a numeric IP address.
    """
    found = _inner(ip_address(address))
    if found.is_loopback or found.is_unspecified:  # a call to 0.0.0.0 arrives at 127.0.0.1
        return "loopback"
    if found.is_link_local:
        return "link-local"
    return "public" if found.is_global and not found.is_multicast else "private"


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address inside an IPv6 address; if there is none, return *address*."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def may_send_on(origin: Reach | None, target: Reach) -> bool:
    """Return whether a server may redirect a client to another address.

    A redirect is allowed to a public address, or to an address for which `reach_of` returns the
    same as for the server.

    Args:
        origin: result of `reach_of` for the server; ``None`` if unknown.
        target: result of `reach_of` for the other address.
    """
    return target in ("public", origin)


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback IP address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def asks_loopback(header: str) -> bool:
    """Return whether a Host header names this machine; this check prevents DNS rebinding.

    In DNS rebinding, another site lets its host name resolve to 127.0.0.1, so that its web page can
    send requests to a server on this machine. The Host header of such a request contains the host
    name of the site.
    """
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False
