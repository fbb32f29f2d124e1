"""A call in a process of its own, with little memory and little time."""

import os
import resource
import signal
import traceback

import mtpcore

ADDRESS_SPACE = 3 << 30
WATCHED = "libasan" in os.environ.get("LD_PRELOAD", "")  # it reserves addresses without end


def confined(act, seconds=20):
    """Call a function in a fork of this process; return how it ended and the largest memory.

    "ran", "refused: " and the error's clause, a signal's name, or what else was raised.
    """
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        _end(act, said, seconds)
    os.close(said)
    with open(heard, "rb") as pipe:
        how = pipe.read().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
    elif status:
        how = f"exit status {os.waitstatus_to_exitcode(status)}"
    return how, usage.ru_maxrss << 10


def _end(act, said, seconds):
    """Say on the pipe how it went, and leave without cleaning up what the parent owns."""
    if not WATCHED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.alarm(seconds)  # a hang is a failure
    try:
        act()
        how = "ran"
    except mtpcore.MtpcoreError as error:
        how = f"refused: {error.what}" if error.what else "refused without a word"
    except BaseException:
        how = traceback.format_exc()
    os.write(said, how.encode(errors="backslashreplace")[-2000:])
    os._exit(0)
