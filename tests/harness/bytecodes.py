"""How many bytecodes Python runs: what a call takes, without a clock."""

import sys


def count_bytecodes(run, under="mtpcore"):
    """Return how many bytecodes ``run()`` takes in files whose path has ``under`` in it."""
    n = 0

    def trace(frame, event, arg):
        nonlocal n
        if under not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        n += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return n
