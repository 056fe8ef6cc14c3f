"""Ports for what tests start."""

from headway.fleet.place import ports

HOST = "127.0.0.1"


def held_port(host=HOST):
    """A port that nobody else gets until it is released; whoever is told its number can listen.

    One that was only found free may be somebody else's by the time it is used.
    """
    return ports.Port(ports._bound(host, 0))
