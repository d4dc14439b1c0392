"""The process that does the reading: nothing but the standard library, small buffers, ends with its parent.

Started by path, without site-packages (8 MiB, 15 ms). A page is charged to the cgroup of the process that first reads it, so
this process may join the server's cgroup while moewatch stays where it is.

stdin: `cgroup HEX-PATH-OF-cgroup.procs`, `threads N`, `file HEX-PATH` for each shard, `go`; then jobs `ID FILE OFFSET
LENGTH PLAIN`. stdout: `cgroup ok` or `cgroup ERRNO`, `ready`; then for each job `ID BYTES-READ ERRNO`. When stdin ends, so
does this, at once.

The first PLAIN bytes of a job are read with the kernel's read-ahead: it makes large folios and costs half the CPU time
(measured on 1.6 GB, 4 threads: 0.55 s against 0.80, 1,002 MB/s against 696). Near the end of a range read-ahead would go on
beyond it, so the rest is read without, its second half first: a page that read-ahead has marked then finds all there is
ahead of it in memory and fetches nothing more (page_cache_async_ra in mm/readahead.c).
"""

import os
import queue
import signal
import sys
import threading

BLOCK_BYTES = 1 << 18
MAX_THREADS = 8  # times BLOCK_BYTES of buffers: 2 MiB

Job = tuple[int, int, int, int, int]  # id, file, offset, length, plain


def main() -> None:
    """Serve one parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    source = sys.stdin.buffer
    paths: list[bytes] = []
    threads = 1
    for line in iter(source.readline, b""):
        key, _, value = line.strip().partition(b" ")
        if key == b"cgroup":
            _say(b"cgroup " + _join(bytes.fromhex(value.decode())))
        elif key == b"threads":
            threads = min(MAX_THREADS, int(value))
        elif key == b"file":
            paths.append(bytes.fromhex(value.decode()))
        elif key == b"go":
            break
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for _ in range(threads):
        threading.Thread(target=_work, args=(jobs, paths), daemon=True).start()
    _say(b"ready")
    for line in iter(source.readline, b""):
        number, file_index, offset, length, plain = map(int, line.split())
        jobs.put((number, file_index, offset, length, plain))
    os._exit(0)  # whatever is being read: nobody wants it any more


def _join(path: bytes) -> bytes:
    """Move this process, and only this one, into a cgroup: 0 stands for who writes (cgroups(7))."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError as error:
        return str(error.errno).encode()
    return b"ok"


def _open(path: bytes) -> tuple[int, int]:
    """The same file twice: with read-ahead and without."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    plain, exact = os.open(path, flags), os.open(path, flags)
    os.posix_fadvise(exact, 0, 0, os.POSIX_FADV_RANDOM)
    return plain, exact


def _work(jobs: "queue.SimpleQueue[Job]", paths: list[bytes]) -> None:
    """One thread, with descriptors of its own: read-ahead's state belongs to the descriptor."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    opened, fds = -1, (-1, -1)
    while True:
        number, file_index, offset, length, plain = jobs.get()
        done, error = 0, 0
        try:
            if opened != file_index:
                if opened >= 0:
                    os.close(fds[0])
                    os.close(fds[1])
                    opened = -1
                fds = _open(paths[file_index])
                opened = file_index
            middle = plain + (length - plain) // 2
            for fd, start, end in ((fds[0], 0, plain), (fds[1], middle, length), (fds[1], plain, middle)):
                done += _read(fd, buffer, offset + start, offset + end)
        except OSError as failure:
            error = failure.errno or 1
        _say(b"%d %d %d" % (number, done, error))


def _read(fd: int, buffer: memoryview, start: int, end: int) -> int:
    """Bytes read; fewer than asked for at the end of the file."""
    at = start
    while at < end:
        size = os.preadv(fd, [buffer[: end - at]], at)
        if not size:
            break
        at += size
    return at - start


def _say(line: bytes) -> None:
    """One write: lines of several threads do not mix (PIPE_BUF)."""
    try:
        os.write(1, line + b"\n")
    except OSError:
        os._exit(0)  # the parent is gone


if __name__ == "__main__":
    main()
