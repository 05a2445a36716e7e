/* Fault injection for calls of the C library, loaded with LD_PRELOAD.

   `faulty("fdatasync", EIO, 1)` makes the next call of this name fail with this errno. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char wanted[32];
static int number, times;

void faulty(const char *call, int with, int so_often) {
    strncpy(wanted, call, sizeof wanted - 1);
    number = with;
    times = so_often;
}

static int fails(const char *call) {
    if (times <= 0 || strcmp(call, wanted)) return 0;
    times--;
    errno = number;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return fails("pwrite") ? -1 : real(fd, data, size, at);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    return fails("sync") ? -1 : real(fd);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    return fails("sync") ? -1 : real(fd);
}
