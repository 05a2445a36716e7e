/* Launcher of the single-file program: unpack the program once, and execute it.
 *
 * The file consists of this launcher, a gzip archive of the program's tree, and a trailer. pack.py
 * documents the format. The name of the target directory is the SHA-256 of the archive. Its parent
 * is /usr/local/lib/steward for root. For other users, it is the first of $CACHE_DIRECTORY (set by
 * systemd), $XDG_CACHE_HOME/steward and ~/.cache/steward.
 *
 * The launcher starts no second process and writes no file in /tmp. After a kill, the next start
 * removes an incomplete tree. The launcher refuses a directory that another user owns or can write
 * to.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define MAGIC "STEWARD1"
#define ID 64 /* length of a SHA-256 in hexadecimal */
#define CANNOT_EXECUTE 126
#define LONGEST (PATH_MAX + 2 * ID)
#ifndef FOR_ROOT
#define FOR_ROOT "/usr/local/lib/steward"
#endif

struct trailer { /* numbers have 16 hexadecimal digits, independent of the byte order */
    char offset[16], length[16], id[ID], magic[8];
};

static void fail(const char *form, ...) {
    va_list values;
    va_start(values, form);
    fputs("steward: ", stderr);
    vfprintf(stderr, form, values);
    fputc('\n', stderr);
    va_end(values);
    exit(CANNOT_EXECUTE);
}

static uint64_t number(const char digits[16]) {
    char ended[17];
    snprintf(ended, sizeof ended, "%.16s", digits);
    return strtoull(ended, NULL, 16);
}

/* ---- SHA-256 (FIPS 180-4) -------------------------------------------------------------------- */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void digest_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t t2 = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

/* Compute the SHA-256 of a part of a file, in hexadecimal. */
static void digest(int file, off_t offset, uint64_t length, char digits[ID + 1]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static unsigned char piece[1 << 16];
    uint64_t left = length;
    size_t kept = 0;
    while (left) {
        ssize_t got = pread(file, piece + kept, left < sizeof piece - kept ? left : sizeof piece - kept, offset);
        if (got <= 0)
            fail("cannot read this program: %s", got ? strerror(errno) : "unexpected end of file");
        left -= got, offset += got, kept += got;
        size_t done = 0;
        for (; kept - done >= 64; done += 64)
            digest_block(state, piece + done);
        memmove(piece, piece + done, kept -= done);
    }
    size_t whole = kept < 56 ? 64 : 128;
    memset(piece + kept, 0, whole - kept);
    piece[kept] = 0x80;
    for (int i = 0; i < 8; i++)
        piece[whole - 1 - i] = length * 8 >> 8 * i;
    for (size_t done = 0; done < whole; done += 64)
        digest_block(state, piece + done);
    for (int i = 0; i < 8; i++)
        sprintf(digits + 8 * i, "%08x", state[i]);
}

/* ---- target directory ------------------------------------------------------------------------ */

static void check_private(const char *path) {
    struct stat found;
    if (lstat(path, &found))
        fail("cannot check %s: %s", path, strerror(errno));
    if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || found.st_mode & (S_IWGRP | S_IWOTH))
        fail("%s must be a directory that only its owner, user %d, may write to", path, (int)geteuid());
}

static void make_all(char *path) {
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char rest = *at;
        *at = 0;
        if (mkdir(path, 0755) && errno != EEXIST)
            fail("cannot create %s: %s; set CACHE_DIRECTORY to another directory", path, strerror(errno));
        *at = rest;
        if (!rest)
            return;
    }
}

static void find_base(char base[PATH_MAX]) {
    const char *given = getenv("CACHE_DIRECTORY"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (geteuid() == 0) /* the environment must not select the program that root executes */
        length = snprintf(base, PATH_MAX, "%s", FOR_ROOT);
    else if (given && *given == '/')
        length = snprintf(base, PATH_MAX, "%s", given);
    else if (cache && *cache == '/')
        length = snprintf(base, PATH_MAX, "%s/steward", cache);
    else if (home && *home == '/')
        length = snprintf(base, PATH_MAX, "%s/.cache/steward", home);
    else
        fail("no directory to unpack the program to: set HOME or CACHE_DIRECTORY");
    if (length > PATH_MAX - 2 * ID)
        fail("the path %s is too long", base);
    make_all(base);
    check_private(base);
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *where) {
    (void)s, (void)kind, (void)where;
    return remove(path);
}

static void remove_tree(const char *path) {
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        fail("cannot remove %s: %s", path, strerror(errno));
}

static void take(gzFile payload, void *into, unsigned size) {
    if (gzread(payload, into, size) != (int)size)
        fail("this program is damaged: download it again");
}

static void unpack_file(gzFile payload, const char *path, unsigned mode, unsigned long size) {
    static char piece[1 << 16];
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (file < 0)
        fail("cannot write %s: %s", path, strerror(errno));
    for (unsigned long left = size; left;) {
        unsigned part = left < sizeof piece ? left : sizeof piece;
        take(payload, piece, part);
        for (unsigned done = 0; done < part;) {
            ssize_t wrote = write(file, piece + done, part - done);
            if (wrote < 0)
                fail("cannot write %s: %s", path, strerror(errno));
            done += wrote;
        }
        left -= part;
    }
    if (close(file))
        fail("cannot write %s: %s", path, strerror(errno));
}

/* Unpack the archive. Each entry is a line `KIND MODE SIZE PATH`, then SIZE bytes: the content of a
 * file, or the target of a symbolic link. */
static void unpack(int file, off_t offset, const char *into) {
    char line[PATH_MAX + 64], path[LONGEST + PATH_MAX + 2], target[PATH_MAX];
    int copy = dup(file);
    if (copy < 0 || lseek(copy, offset, SEEK_SET) < 0)
        fail("cannot read this program: %s", strerror(errno));
    gzFile payload = gzdopen(copy, "rb");
    if (!payload)
        fail("out of memory");
    while (gzgets(payload, line, sizeof line)) {
        char kind, name[PATH_MAX + 1];
        unsigned mode;
        unsigned long size;
        if (!strcmp(line, ".\n")) { /* end of the archive */
            gzclose(payload);
            return;
        }
        if (sscanf(line, "%c %o %lu %4096[^\n]", &kind, &mode, &size, name) != 4)
            break;
        snprintf(path, sizeof path, "%s/%s", into, name);
        if (kind == 'F') {
            unpack_file(payload, path, mode, size);
        } else if (kind == 'D') {
            if (mkdir(path, mode))
                fail("cannot create %s: %s", path, strerror(errno));
        } else if (kind == 'L' && size < sizeof target) {
            take(payload, target, size);
            target[size] = 0;
            if (symlink(target, path))
                fail("cannot create %s: %s", path, strerror(errno));
        } else {
            break;
        }
    }
    fail("this program is damaged: download it again");
}

static void unpack_once(int file, const struct trailer *end, const char *base, const char *place) {
    char digits[ID + 1], fresh[LONGEST], lock_name[LONGEST];
    snprintf(lock_name, sizeof lock_name, "%s/.lock", base);
    int lock = open(lock_name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX))
        fail("cannot lock %s: %s", lock_name, strerror(errno));
    if (access(place, F_OK)) { /* otherwise another process has unpacked it */
        off_t offset = number(end->offset);
        digest(file, offset, number(end->length), digits);
        if (memcmp(digits, end->id, ID))
            fail("this program is damaged: download it again");
        snprintf(fresh, sizeof fresh, "%s/.%.*s", base, ID, end->id);
        remove_tree(fresh);
        if (mkdir(fresh, 0755))
            fail("cannot create %s: %s", fresh, strerror(errno));
        unpack(file, offset, fresh);
        sync(); /* after a power failure, a tree with its final name must be complete */
        if (rename(fresh, place))
            fail("cannot rename %s: %s", fresh, strerror(errno));
    }
    close(lock);
}

int main(int count, char **words) {
    (void)count;
    struct trailer end;
    char base[PATH_MAX], place[LONGEST], program[LONGEST + 16], own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (length < 0 || file < 0)
        fail("cannot read this program (is /proc mounted?): %s", strerror(errno));
    own[length] = 0;
    off_t size = lseek(file, 0, SEEK_END);
    if (pread(file, &end, sizeof end, size - sizeof end) != sizeof end || memcmp(end.magic, MAGIC, sizeof end.magic))
        fail("this program is incomplete: download it again");
    mode_t mask = umask(022); /* for the unpacked files; the program gets the caller's mask */
    find_base(base);
    snprintf(place, sizeof place, "%s/%.*s", base, ID, end.id);
    if (access(place, F_OK))
        unpack_once(file, &end, base, place);
    check_private(place);
    snprintf(program, sizeof program, "%s/steward", place);
    umask(mask);
    setenv("LAUNCHED_STEWARD", own, 1);
    execv(program, words);
    fail("cannot run %s: %s", program, strerror(errno));
}
