"""Held ports: nobody gets them but those they are held for."""

import os
import socket
import threading

import pytest

from headway.fleet.errors import FleetError
from headway.fleet.place import ports

HOST = "127.0.0.1"
QUIET = 20_000 + os.getpid() % 10_000
"""Nobody asks for ports from here on, so that one that was let go of is still free then."""
ADDRESS, PORT = socket.SO_REUSEADDR, socket.SO_REUSEPORT


def bound(number, *options):
    made = socket.socket()
    for option in options:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    made.bind((HOST, number))
    return made


@pytest.fixture
def held():
    with ports.reserve(HOST) as port:
        yield port.number


def test_no_two_reservations_are_the_same():
    taken = [ports.reserve(HOST) for _ in range(20)]
    assert len({port.number for port in taken}) == 20
    for port in taken:
        port.release()


def test_reservations_at_the_same_time_differ():
    taken = []
    threads = [threading.Thread(target=lambda: taken.append(ports.reserve(HOST))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({port.number for port in taken}) == 8
    for port in taken:
        port.release()


def test_a_thief_is_refused(held):
    with pytest.raises(OSError, match="in use"):
        bound(held)


@pytest.mark.parametrize(
    "options", [(ADDRESS,), (ADDRESS, PORT)], ids=["zmq and asyncio", "vLLM with many servers"]
)
def test_the_engine_listens_again_and_again(held, options):
    for _ in range(3):
        with bound(held, *options) as listener:
            listener.listen()
            with socket.create_connection((HOST, held), 5), listener.accept()[0]:
                pass


@pytest.mark.parametrize("options", [(ADDRESS,), (ADDRESS, PORT)])
def test_while_the_engine_listens_a_thief_who_reuses_addresses_is_refused_too(held, options):
    with bound(held, *options) as listener:
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            bound(held, ADDRESS)


def test_zeromq_binds_it(held):
    zmq = pytest.importorskip("zmq")
    for _ in range(2):
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind(f"tcp://{HOST}:{held}")


def test_a_port_that_somebody_has_is_passed_over():
    with ports.reserve(HOST, QUIET) as first:
        number = first.number
    for options in [(), (ADDRESS,), (PORT,), (ADDRESS, PORT)]:
        with bound(number, *options), ports.reserve(HOST, number) as other:
            assert other.number > number
        with bound(number, *options) as listener:
            listener.listen()
            with ports.reserve(HOST, number) as other:
                assert other.number > number


def test_a_port_by_number_is_refused_while_somebody_listens(held):
    with bound(held, ADDRESS) as listener:
        listener.listen()
        with pytest.raises(FleetError, match=rf"127.0.0.1:{held}: another process has the port"):
            ports.claim(HOST, held)


def test_connections_that_have_ended_do_not_keep_a_port(held):
    with ports.reserve(HOST, QUIET) as port:
        number = port.number
    with bound(number, ADDRESS) as listener:
        listener.listen()
        client = socket.create_connection((HOST, number), 5)
        server, _ = listener.accept()
        server.close()  # first: this side keeps the connection's state for a minute
        client.close()
    ports.claim(HOST, number).release()


def test_zero_is_any_port():
    with ports.claim(HOST, 0) as port:
        assert port.number >= ports.FIRST
