"""Where this host can be reached: the addresses of its network interfaces, without asking a name service."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # netdevice(7)
_ADDRESS_AT = 20  # of struct ifreq: the name, a sockaddr's family and port
_GLOBAL_SCOPE = "00"


def host_addresses() -> list[str]:
    """IPv4 and global IPv6 addresses, the loopback's not; sorted."""
    return sorted({*_ipv4(), *_ipv6()})


def _ipv4() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without one
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4]))
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def _ipv6() -> list[str]:
    try:
        lines = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return []
    return [str(ipaddress.IPv6Address(bytes.fromhex(line[0]))) for line in lines if line[3] == _GLOBAL_SCOPE]
