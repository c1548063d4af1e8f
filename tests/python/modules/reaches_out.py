"""Does what a module has no business with, at import, in its constructor and in its call, and fails
by itself where something of it works."""

import os
import socket
import subprocess
from pathlib import Path

from attune.examples.module import Model as Plain

SECRET = os.path.join(os.path.dirname(os.path.dirname(__file__)), "conftest.py")


def read():
    Path("/etc/passwd").read_text()


def read_a_file_of_the_user():
    Path(SECRET).read_text()


def look_around():
    os.listdir("/etc")


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"secret", ("127.0.0.1", 9))


def tcp():
    socket.create_connection(("127.0.0.1", 9), 1)


def local_socket():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def no_more_than_a_pair():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.send(b"this is fine")
        one.sendto(b"this is not", "/dev/log")


def start():
    subprocess.run(["id"], check=True)


def fork():
    if os.fork() == 0:
        os._exit(0)


TRIES = [read, read_a_file_of_the_user, look_around, udp, tcp, local_socket, no_more_than_a_pair]
TRIES += [start, fork]


def everything():
    for attempt in TRIES:
        try:
            attempt()
        except PermissionError:
            continue
        raise RuntimeError(attempt.__name__)


everything()


class Model(Plain):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        everything()

    def forward(self, x):
        everything()
        return super().forward(x)
