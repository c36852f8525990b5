"""Runs a command under a filter of system calls, as containers and units do.

    confined.py --errno EPERM -- COMMAND…      io_uring's calls fail with that error, as under Docker's profile
    confined.py --unit FILE -- COMMAND…        what SystemCallFilter= of a unit leaves out ends the process; no memory becomes code
"""

import argparse
import ctypes
import ctypes.util
import errno
import os
import pathlib
import re
import struct
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 38, 22, 65
SECCOMP_MODE_FILTER, PR_MDWE_REFUSE_EXEC_GAIN = 2, 1
# linux/filter.h and linux/seccomp.h.
LOAD, AT_LEAST, MORE, RETURN = 0x20, 0x35, 0x25, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
# The same on x86-64 and aarch64: setup, enter and register.
IO_URING = (425, 427)
# seccomp.h of libseccomp.
SCMP_ACT_KILL_PROCESS, SCMP_ACT_ALLOW = 0x80000000, 0x7FFF0000


def prctl(*words):
    if LIBC.prctl(*(ctypes.c_ulong(word) if isinstance(word, int) else word for word in words)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {words[0]}")


def refuse_io_uring(number):
    first, last = IO_URING
    steps = [(LOAD, 0, 0, 0), (AT_LEAST, 0, 2, first), (MORE, 1, 0, last), (RETURN, 0, 0, FAIL | number), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


def calls_of(name):
    """A call, or those of a set of systemd's."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(("systemd-analyze", "syscall-filter", name), capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in listed.splitlines() if line.startswith(" ") and not line.strip().startswith("#")]
    return set().union(*map(calls_of, words))


def confine_as_unit(unit):
    names = " ".join(re.findall(r"^SystemCallFilter=(.*)$", unit.read_text(), re.MULTILINE)).split()
    seccomp = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(SCMP_ACT_KILL_PROCESS)))
    for name in sorted(set().union(*map(calls_of, names))):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        # Below 0: calls that libseccomp does not know, or that this machine does not have.
        if number >= 0 and seccomp.seccomp_rule_add(rules, ctypes.c_uint32(SCMP_ACT_ALLOW), number, 0) != 0:
            raise OSError(f"no rule for {name}")
    if "MemoryDenyWriteExecute=yes" in unit.read_text():
        try:
            prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        except OSError as error:
            # Before Linux 6.3.
            if error.errno != errno.EINVAL:
                raise
    if seccomp.seccomp_load(rules) != 0:
        raise OSError("the filter is not taken")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--errno")
    kind.add_argument("--unit", type=pathlib.Path)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if arguments.unit:
        confine_as_unit(arguments.unit)
    else:
        refuse_io_uring(getattr(errno, arguments.errno))
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    sys.exit(main())
