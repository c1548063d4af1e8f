"""Has a thread that waits in the kernel for a process that never starts its program.

It says torch.compile, as it may start processes only then.
"""

import ctypes
import os
import tempfile
import threading
import time

from attune.examples.module import Model as Plain

PIPE = tempfile.mktemp().encode()
os.mkfifo(PIPE)
STARTED = PIPE + b"-started"


def wait():
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(512)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, STARTED, os.O_CREAT | os.O_WRONLY, 0o600)
    libc.posix_spawn_file_actions_addopen(actions, 0, PIPE, os.O_RDONLY, 0)
    words = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, words, None)


threading.Thread(target=wait, daemon=True).start()
while not os.path.exists(STARTED):  # from then on the thread waits
    time.sleep(0.001)


class Model(Plain):
    pass
