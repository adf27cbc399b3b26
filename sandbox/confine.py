"""What stands around untrusted code: own uid, namespaces, a new root, resource limits and a seccomp filter, by raw system calls.

The process that enters has torch loaded already; nothing is exec'ed, so no outside program (bubblewrap) can do this for us.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import pathlib
import resource
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
REFERENCES = 256
"""References run under the uid of index + REFERENCES: never a candidate's."""
FIRST_UID = 61000
"""Host uid of slot 0; slot i uses FIRST_UID + i. Wanted: a range that no account of the host uses."""
WORK = "/tmp/w"
"""The only folder, beside /tmp and /dev/shm, that confined code can write: tmpfs, gone with the process."""

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confinement:
    """How one untrusted child is shut in. Plain data: it travels from the judge process to the zygote."""

    index: int
    """Slot index on this host: picks the uid."""
    memory_bytes: int = 4 << 30
    """Address space beyond what the zygote has mapped already."""
    processes: int = 64
    cpu_s: int = 120
    file_bytes: int = 256 << 20
    may_exec: bool = False
    """True for compilers and for candidates that build inside their own process."""
    writable: tuple[tuple[str, str], ...] = ()
    """(host folder, path inside) bound read-write: caches that only trusted code uses."""
    readable: tuple[str, ...] = ()
    """Further folders bound read-only at their own path."""
    devices: tuple[str, ...] = ()
    """Device nodes beside null, zero, urandom."""
    keep_root: bool = False
    """Keep the host's root, read-only and with secrets covered, where a new root is not to be had (GPU drivers on some hosts)."""
    seccomp: bool = True
    collect: str | None = None
    """File in the working folder that is handed to the judge as a descriptor once the child has ended well."""


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    _check(
        libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}"
    )


def unshare(flags: int) -> None:
    _check(libc.unshare(flags), "unshare")


def enter_namespaces(uid: int) -> str:
    """New mount, PID (for children), network, IPC and UTS namespaces. Returns "root", "userns" or "process" (none to be had)."""
    spaces = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
    if os.geteuid() == 0:
        try:
            unshare(spaces)
            return "root"
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL, errno.ENOSYS):
                raise
            if not _may_trace():
                raise PermissionError(errno.EPERM, "root without CAP_SYS_ADMIN and CAP_SYS_PTRACE: add them, or do not run as root") from error
            return "uid"
    outside, group = os.getuid(), os.getgid()
    try:
        unshare(NEWUSER | spaces)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOSPC):
            raise
        return "process"
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"{uid} {outside} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"{uid} {group} 1")
    return "userns"


def _may_trace() -> bool:
    """CAP_SYS_PTRACE: without it root cannot hold a child of another uid."""
    status = pathlib.Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 19 & 1)


def read_only_folders(extra: tuple[str, ...] = ()) -> list[str]:
    """Folders that an interpreter, torch and a compiler need, outermost first, none inside another."""
    wanted = [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        sys.prefix,
        sys.base_prefix,
        *extra,
    ]
    wanted += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in wanted if os.path.exists(p)}):
        if not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept


def new_root(confinement: Confinement, uid: int, level: str) -> None:
    """A root of tmpfs with read-only binds: the judge's files, the repository and every home folder are not there at all.

    An interpreter inside a home folder of mode 0700 is reachable, since only its own folder is bound under a fresh, open path.
    """
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    root = "/tmp"
    # Sources are opened before /tmp is covered: a venv may well live below it, or be a link to another.
    binds = [(os.path.realpath(p), p, MS_RDONLY) for p in read_only_folders(confinement.readable)]
    binds += [(host, inside, 0) for host, inside in confinement.writable]
    binds += [(p, p, 0) for p in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", *confinement.devices)]
    opened = [(os.open(host, os.O_PATH | os.O_NOFOLLOW), host, inside, flags) for host, inside, flags in binds if os.path.lexists(host)]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m")
    for folder in ("tmp", "dev/shm", "proc", "etc", "old"):
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={confinement.file_bytes}")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=16m")
    for fd, _, inside, flags in opened:
        target = root + inside
        os.makedirs(os.path.dirname(target), exist_ok=True)
        mode = os.fstat(fd).st_mode  # not the path: what lay below /tmp is covered by now
        if stat.S_ISDIR(mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)  # a driver's folder may be a mount below /usr
        keep_devices = 0 if inside.startswith("/dev/") else MS_NODEV
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_NOSUID | keep_devices | flags)
        os.close(fd)
    if os.geteuid() != 0 or level == "userns":
        # Without root the kernel lets nobody mount a fresh /proc who cannot see one: the child's own comes on top of this.
        mount("/proc", f"{root}/proc", flags=MS_BIND | MS_REC)
    pathlib.Path(f"{root}/etc/passwd").write_text(f"candidate:x:{uid}:{uid}::{WORK}:/bin/sh\n")
    os.mkdir(root + WORK, 0o700)
    os.chown(root + WORK, uid, uid)
    os.chdir(root)
    _check(libc.pivot_root(b".", b"old"), "pivot_root")
    os.chdir("/")
    _check(libc.umount2(b"/old", 2), "umount2")
    os.rmdir("/old")
    # The root itself becomes read-only; /tmp and /dev/shm stay writable mounts of their own.
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def cover_secrets(confinement: Confinement, uid: int) -> None:
    """Instead of a new root: everything read-only, empty folders over /root, /home, /tmp, the repository's generated things."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    repository = pathlib.Path(__file__).resolve().parent.parent
    covered = [
        p
        for p in ("/root", "/home", "/var/tmp", *(str(repository / n) for n in ("artifacts", "work", ".git", "tests")))
        if os.path.isdir(p)
    ]
    kept = [sys.prefix, sys.base_prefix, *(p for p in sys.path if p)]
    for path in covered:
        if not any(k == path or k.startswith(path + "/") for k in kept):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=0555,size=64k")
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd; recursive, so that no mount stays writable
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", MS_RDONLY, 0, 0, 0))
    _check(libc.syscall(442, -100, b"/", 0x8000, attributes, 32), "mount_setattr")
    for path, size in (("/tmp", confinement.file_bytes), ("/dev/shm", 16 << 20)):
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}")
    os.mkdir(WORK, 0o700)
    os.chown(WORK, uid, uid)


def mapped_bytes() -> int:
    """Address space of this process, bytes."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def set_limits(confinement: Confinement, mapped: int, level: str) -> None:
    bounds = {
        resource.RLIMIT_AS: mapped + confinement.memory_bytes,
        resource.RLIMIT_CPU: confinement.cpu_s,
        resource.RLIMIT_FSIZE: confinement.file_bytes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_NPROC: confinement.processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 8 << 20,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if level == "process":
        del bounds[resource.RLIMIT_NPROC]  # counts everything the user runs, not only the child
    for what, value in bounds.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def drop_privileges(uid: int, level: str) -> None:
    """Own uid (as root), no capabilities, no new privileges; killed when the keeper dies."""
    if level in ("root", "uid"):
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    elif level == "userns":
        # Full capabilities over the new namespace end here: bounding set first, then all three sets.
        for capability in range(64):
            libc.prctl(24, capability, 0, 0, 0)
        header = struct.pack("Ii", 0x20080522, 0)
        _check(libc.capset(header, struct.pack("6I", 0, 0, 0, 0, 0, 0)), "capset")
    _check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _check(libc.prctl(1, 9, 0, 0, 0), "pdeathsig")
    # A judge without root may trace its own uid only where the child agrees.
    libc.prctl(0x59616D61, ctypes.c_ulong(-1 & (2**64 - 1)), 0, 0, 0)


DENIED = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "userfaultfd": 323, "perf_event_open": 298, "bpf": 321,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442, "keyctl": 250,
    "add_key": 248, "request_key": 249, "personality": 135, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setattr": 314,
    "sched_setparam": 142, "kcmp": 312, "pidfd_getfd": 438, "process_madvise": 440, "init_module": 175, "finit_module": 313,
    "kexec_load": 246, "acct": 163, "swapon": 167, "reboot": 169, "syslog": 103, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "quotactl": 179, "lookup_dcookie": 212, "migrate_pages": 256, "move_pages": 279, "mbind": 237, "set_mempolicy": 238,
    # Memory that no limit of the process counts: files without a mount, System V segments and queues.
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "mq_open": 240,
}  # fmt: skip
STARTS = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}


def seccomp_filter(may_exec: bool) -> bytes:
    """BPF program: a deny list answered with EPERM. clone3 says ENOSYS, so that clone's flags can be read; untraced clones and new
    namespaces are refused, and without `may_exec` every clone that is not a thread. Sockets: AF_UNIX only."""
    load, equal, bits, give = 0x20, 0x15, 0x45, 0x06
    deny, nosys, allow, kill = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x7FFF0000, 0x80000000
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, 0xC000003E),
        (give, 0, 0, kill),
        (load, 0, 0, 0),
        (bits, 0, 1, 0x40000000),
        (give, 0, 0, kill),
    ]
    for number in [*DENIED.values(), *([] if may_exec else STARTS.values())]:
        program += [(equal, 0, 1, number), (give, 0, 0, deny)]
    program += [(equal, 0, 1, 435), (give, 0, 0, nosys)]
    forbidden = 0x00800000 | NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | 0x02000000 | 0x80
    clone = [(load, 0, 0, 16), (bits, 0, 1, forbidden), (give, 0, 0, deny)]
    clone += [] if may_exec else [(bits, 1, 0, 0x00010000), (give, 0, 0, deny)]
    clone += [(give, 0, 0, allow)]
    program += [(equal, 0, len(clone), 56), *clone]
    program += [(equal, 0, 4, 41), (load, 0, 0, 16), (equal, 1, 0, 1), (give, 0, 0, deny), (give, 0, 0, allow), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def install_seccomp(may_exec: bool) -> bool:
    """False where the kernel has no seccomp (the verdict's isolation says so)."""
    program = seccomp_filter(may_exec)
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    return libc.prctl(22, ctypes.c_ulong(2), ctypes.c_void_p(ctypes.addressof(header)), 0, 0) == 0
