"""Processes that are started to do limited work, and answer through a socket: both sides.

A program that is started so knows the standard library alone, and loads this file by its path.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "OUT_OF_MEMORY",
    "OUT_OF_TIME",
    "connect",
    "end",
    "limit_files",
    "limit_work",
    "memory_bound",
    "memory_in_use",
    "prepare",
    "send",
    "start",
    "status_of",
    "stop_limiting",
    "take_connection",
]

OUT_OF_MEMORY = 75
"""The exit status by which a process that got no more memory says so."""

if sys.platform == "win32":
    import ctypes
    import struct
    import time
    from ctypes import wintypes

    OUT_OF_TIME = (1816, 0xC0000044)
    """Exit statuses of a process that used up its time, as Win32 and as the kernel say it."""
    _NEEDED = ("PYTHONHOME", "SYSTEMROOT")
    _SIZE = struct.Struct("!Q")
    _PROCESS_TIME, _PROCESS_MEMORY = 0x2, 0x100
    _EXTENDED_LIMITS = 9

    class _JobLimits(ctypes.Structure):
        """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

        _fields_ = [
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
            ("IoCounters", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateJobObjectW.restype = _kernel.GetCurrentProcess.restype = wintypes.HANDLE
    _jobs: list[wintypes.HANDLE] = []
    """The job that is this process alone, once it has been limited."""

    def connect() -> tuple[socket.socket, socket.socket]:
        """Return two sockets that lead to each other: for this process, and for a child."""
        return socket.socketpair()

    def start(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Start a program that can take a connection; Ctrl-C in a terminal is not for it."""
        import subprocess  # here, as children do without it

        program, *arguments = command
        if program == sys.executable:  # that of a virtual environment starts a process of its own
            program = getattr(sys, "_base_executable", program)
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
        )
        if process.stdin is not None:
            with process.stdin as pipe:
                shared = theirs.share(process.pid)
                pipe.write(_SIZE.pack(len(shared)) + shared)
        return process

    def send(connection: socket.socket, data: bytes) -> None:
        """Send all of it; raise OSError where nobody is there any more."""
        connection.sendall(data)

    def status_of(process: subprocess.Popen[bytes], *, waits: bool = False) -> int | None:
        """Return the exit status of a process, or None while it runs."""
        return process.wait() if waits else process.poll()

    def end(process: subprocess.Popen[bytes]) -> None:
        """End a process that has not ended."""
        process.kill()

    def take_connection() -> socket.socket:
        """Return the child's end, in the child."""
        (size,) = _SIZE.unpack(sys.stdin.buffer.read(_SIZE.size))
        return socket.fromshare(sys.stdin.buffer.read(size))

    def prepare() -> None:
        """Make a job of this process, which limits are set for."""
        job = wintypes.HANDLE(_kernel.CreateJobObjectW(None, None))
        process = wintypes.HANDLE(_kernel.GetCurrentProcess())
        if not job or not _kernel.AssignProcessToJobObject(job, process):
            raise ctypes.WinError(ctypes.get_last_error())
        _jobs.append(job)

    def _set(limits: _JobLimits) -> None:
        given = ctypes.byref(limits), ctypes.sizeof(limits)
        if not _kernel.SetInformationJobObject(_jobs[0], _EXTENDED_LIMITS, *given):
            raise ctypes.WinError(ctypes.get_last_error())

    def limit_files() -> None:
        """Do nothing: Windows has no such limit."""

    def memory_in_use() -> int:
        """Return how many bytes of memory this process has; a limit makes the system count them."""
        _set(_JobLimits(LimitFlags=_PROCESS_MEMORY, ProcessMemoryLimit=1 << 40))
        limits, n = _JobLimits(), wintypes.DWORD(0)
        given = ctypes.byref(limits), ctypes.sizeof(limits), ctypes.byref(n)
        if not _kernel.QueryInformationJobObject(_jobs[0], _EXTENDED_LIMITS, *given):
            raise ctypes.WinError(ctypes.get_last_error())
        return int(limits.PeakProcessMemoryUsed)

    def limit_work(seconds: float, n_bytes: int) -> None:
        """Limit this process's further CPU time and all of its memory."""
        ticks = int((time.process_time() + seconds) * 1e7)  # of 100 nanoseconds, since it began
        flags = _PROCESS_TIME | _PROCESS_MEMORY
        _set(
            _JobLimits(PerProcessUserTimeLimit=ticks, LimitFlags=flags, ProcessMemoryLimit=n_bytes)
        )

    def stop_limiting() -> None:
        """Lift what ``limit_work`` set."""
        _set(_JobLimits())

    def memory_bound() -> int | None:
        """Return the bytes that the host allows each of its processes; None: no such limit."""
        return None
else:
    import resource
    import signal

    OUT_OF_TIME = (-signal.SIGPROF,)
    """Exit statuses of a process that used up its time."""
    _NEEDED = ("LD_LIBRARY_PATH", "PYTHONHOME")
    """Of the environment: an interpreter may need them to start."""

    def start(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Start a program that can take a connection; Ctrl-C in a terminal is not for it."""
        import subprocess  # here, as children do without it

        return subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            start_new_session=True,
        )

    def take_connection() -> socket.socket:
        """Return the child's end, in the child."""
        return socket.socket(fileno=0)

    def status_of(process: subprocess.Popen[bytes], *, waits: bool = False) -> int | None:
        """Return the exit status of a process, or None while it runs.

        Not by the methods of Popen: they take a lock, and an interrupt right after that would
        leave it taken, so that the next call would wait for ever.
        """
        if process.returncode is None:
            try:
                pid, status = os.waitpid(process.pid, 0 if waits else os.WNOHANG)
            except ChildProcessError:  # the host waits for all its children, or ignores their ends
                process.returncode = 0
            else:
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode

    def end(process: subprocess.Popen[bytes]) -> None:
        """End a process that has not ended."""
        os.kill(process.pid, signal.SIGKILL)

    def _bound(kind: int, most: int) -> tuple[int, int]:
        """Return ``most`` and the bound of a resource: what the host may have set, for good."""
        hard = resource.getrlimit(kind)[1]
        finite = [value for value in (most, hard) if value != resource.RLIM_INFINITY]
        return min(finite, default=resource.RLIM_INFINITY), hard

    def _heed_the_timer() -> None:
        """Let the timer's signal end this process; it inherits what the host does with its own."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])

    def limit_files() -> None:
        """Let this process open and write no more files, and dump no core."""
        for kind, most in (
            (resource.RLIMIT_NOFILE, 3),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            most, _ = _bound(kind, most)
            resource.setrlimit(kind, (most, most))

    def memory_bound() -> int | None:
        """Return the bytes that the host allows each of its processes; None: no such limit."""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        return None if hard == resource.RLIM_INFINITY else hard

    if sys.platform == "darwin":
        import threading
        import time

        _NO_SIGNAL = 0x1022  # SO_NOSIGPIPE, which Python does not name
        _LOOKED_AT = 0.01  # seconds between two looks at the memory in use
        _is_limited = threading.Event()
        _most = [0]
        """Bytes that this process may use while it is limited."""

        def connect() -> tuple[socket.socket, socket.socket]:
            """Return two sockets that lead to each other: for this process, and for a child."""
            ours, theirs = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, _NO_SIGNAL, 1)
            return ours, theirs

        def send(connection: socket.socket, data: bytes) -> None:
            """Send all of it; raise OSError where nobody is there any more."""
            connection.sendall(data)

        def memory_in_use() -> int:
            """Return the most bytes of memory that this process has used."""
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def _watch_memory() -> None:
            while _is_limited.wait():
                if memory_in_use() > _most[0]:
                    os._exit(OUT_OF_MEMORY)
                time.sleep(_LOOKED_AT)

        def prepare() -> None:
            """Heed the timer, and watch memory: macOS takes a limit of it and does not hold it."""
            _heed_the_timer()
            threading.Thread(target=_watch_memory, daemon=True).start()

        def _limit_memory(n_bytes: int | None) -> None:
            if n_bytes is None:
                _is_limited.clear()
            else:
                _most[0] = n_bytes
                _is_limited.set()
    else:

        def connect() -> tuple[socket.socket, socket.socket]:
            """Return two sockets that lead to each other: for this process, and for a child."""
            return socket.socketpair()

        def send(connection: socket.socket, data: bytes) -> None:
            """Send all of it; raise OSError where nobody is there any more.

            An error is enough: a host may die of the signal.
            """
            connection.sendall(data, socket.MSG_NOSIGNAL)

        def memory_in_use() -> int:
            """Return how many bytes of address space this process has."""
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()

        def prepare() -> None:
            """Heed the timer."""
            _heed_the_timer()

        def _limit_memory(n_bytes: int | None) -> None:
            most = resource.RLIM_INFINITY if n_bytes is None else n_bytes
            resource.setrlimit(resource.RLIMIT_AS, _bound(resource.RLIMIT_AS, most))

    def limit_work(seconds: float, n_bytes: int) -> None:
        """Limit this process's further CPU time (a signal ends it) and all of its memory."""
        _limit_memory(n_bytes)
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def stop_limiting() -> None:
        """Lift what ``limit_work`` set."""
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
