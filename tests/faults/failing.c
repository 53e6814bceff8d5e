/* Loaded before the C library: counts operations on files under one folder, and lets one of them fail.
 *
 * What to do is said in a file that every process of a command maps (struct orders): errors reach whatever calls the C
 * library, Python, Arrow, safetensors, torch and processes that the command starts alike.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct orders {
    int on, number, error, stays, seen; /* stays: after the first, everything that takes room fails too, as a full disk does */
    char folder[1024], journal[1024];
};
static struct orders *orders;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_ORDERS");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
    if (file < 0) return;
    void *there = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    orders = there == MAP_FAILED ? NULL : there;
    syscall(SYS_close, file);
}

static void absolute(int at, const char *path, char *found) {
    char base[PATH_MAX] = "", link[64];
    if (path && path[0] == '/') { snprintf(found, PATH_MAX, "%s", path); return; }
    if (at == AT_FDCWD) { if (!getcwd(base, sizeof base)) base[0] = 0; }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
        base[size < 0 ? 0 : size] = 0;
    }
    snprintf(found, PATH_MAX, path && path[0] ? "%.2000s/%.2000s" : "%.2000s%.2000s", base, path ? path : "");
}

/* Whether this operation is to fail; sets errno. */
static int fails(const char *name, int at, const char *path, int takes_room) {
    if (!orders || !orders->on) return 0;
    char where[PATH_MAX];
    int before = errno;
    absolute(at, path, where);
    if (strncmp(where, orders->folder, strlen(orders->folder))) { errno = before; return 0; }
    int number = __sync_fetch_and_add(&orders->seen, 1);
    if (orders->journal[0]) {
        char line[PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "%s %s\n", name, where + strlen(orders->folder));
        int file = (int)syscall(SYS_openat, AT_FDCWD, orders->journal, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (file >= 0) { syscall(SYS_write, file, line, size); syscall(SYS_close, file); }
    }
    errno = before;
    if (orders->number < 0 || (number != orders->number && !(orders->stays && takes_room && number > orders->number)))
        return 0;
    errno = orders->error;
    return 1;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { NEXT(open); MODE return fails("open", AT_FDCWD, path, WRITES(flags)) ? -1 : next(path, flags, mode); }
int open64(const char *path, int flags, ...) { NEXT(open64); MODE return fails("open", AT_FDCWD, path, WRITES(flags)) ? -1 : next(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { NEXT(openat); MODE return fails("open", at, path, WRITES(flags)) ? -1 : next(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { NEXT(openat64); MODE return fails("open", at, path, WRITES(flags)) ? -1 : next(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { NEXT(creat); return fails("open", AT_FDCWD, path, 1) ? -1 : next(path, mode); }
FILE *fopen(const char *path, const char *how) { NEXT(fopen); return fails("open", AT_FDCWD, path, how[0] != 'r') ? NULL : next(path, how); }
FILE *fopen64(const char *path, const char *how) { NEXT(fopen64); return fails("open", AT_FDCWD, path, how[0] != 'r') ? NULL : next(path, how); }
DIR *opendir(const char *path) { NEXT(opendir); return fails("list", AT_FDCWD, path, 0) ? NULL : next(path); }

#define ON_FILE(type, name, word, room, given, used) type name given { NEXT(name); return fails(word, file, NULL, room) ? -1 : next used; }
ON_FILE(ssize_t, read, "read", 0, (int file, void *to, size_t size), (file, to, size))
ON_FILE(ssize_t, pread, "read", 0, (int file, void *to, size_t size, off_t at), (file, to, size, at))
ON_FILE(ssize_t, pread64, "read", 0, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
ON_FILE(ssize_t, readv, "read", 0, (int file, const struct iovec *to, int count), (file, to, count))
ON_FILE(ssize_t, write, "write", 1, (int file, const void *from, size_t size), (file, from, size))
ON_FILE(ssize_t, pwrite, "write", 1, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
ON_FILE(ssize_t, pwrite64, "write", 1, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
ON_FILE(ssize_t, writev, "write", 1, (int file, const struct iovec *from, int count), (file, from, count))
ON_FILE(int, fsync, "fsync", 1, (int file), (file))
ON_FILE(int, fdatasync, "fsync", 1, (int file), (file))
ON_FILE(int, ftruncate, "truncate", 1, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, "truncate", 1, (int file, off64_t size), (file, size))
ON_FILE(int, fchmod, "chmod", 0, (int file, mode_t mode), (file, mode))
ON_FILE(int, flock, "lock", 0, (int file, int how), (file, how))

#define ON_PATH(name, word, room, given, used) int name given { NEXT(name); return fails(word, AT_FDCWD, path, room) ? -1 : next used; }
ON_PATH(stat, "stat", 0, (const char *path, struct stat *to), (path, to))
ON_PATH(lstat, "stat", 0, (const char *path, struct stat *to), (path, to))
ON_PATH(stat64, "stat", 0, (const char *path, struct stat64 *to), (path, to))
ON_PATH(lstat64, "stat", 0, (const char *path, struct stat64 *to), (path, to))
ON_PATH(access, "access", 0, (const char *path, int how), (path, how))
ON_PATH(mkdir, "mkdir", 1, (const char *path, mode_t mode), (path, mode))
ON_PATH(rmdir, "rmdir", 0, (const char *path), (path))
ON_PATH(unlink, "unlink", 0, (const char *path), (path))
ON_PATH(truncate, "truncate", 1, (const char *path, off_t size), (path, size))
ON_PATH(chmod, "chmod", 0, (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, "rename", 1, (const char *path, const char *to), (path, to))
ON_PATH(link, "link", 1, (const char *path, const char *to), (path, to))

#define AT_PATH(name, word, room, given, used) int name given { NEXT(name); return fails(word, at, path, room) ? -1 : next used; }
AT_PATH(fstatat, "stat", 0, (int at, const char *path, struct stat *to, int how), (at, path, to, how))
AT_PATH(fstatat64, "stat", 0, (int at, const char *path, struct stat64 *to, int how), (at, path, to, how))
AT_PATH(statx, "stat", 0, (int at, const char *path, int how, unsigned what, struct statx *to), (at, path, how, what, to))
AT_PATH(mkdirat, "mkdir", 1, (int at, const char *path, mode_t mode), (at, path, mode))
AT_PATH(unlinkat, "unlink", 0, (int at, const char *path, int how), (at, path, how))
AT_PATH(renameat, "rename", 1, (int at, const char *path, int there, const char *to), (at, path, there, to))
AT_PATH(utimensat, "utime", 0, (int at, const char *path, const struct timespec *to, int how), (at, path, to, how))

void *mmap(void *at, size_t size, int what, int how, int file, off_t offset) {
    NEXT(mmap);
    return file >= 0 && fails("map", file, NULL, 0) ? MAP_FAILED : next(at, size, what, how, file, offset);
}
void *mmap64(void *at, size_t size, int what, int how, int file, off64_t offset) {
    NEXT(mmap64);
    return file >= 0 && fails("map", file, NULL, 0) ? MAP_FAILED : next(at, size, what, how, file, offset);
}
