/*
 * A disk that fails, for one process: loaded before the C library (LD_PRELOAD), it sees every call that changes a file
 * below one directory, counts them, and at the one whose turn it is lets something happen.
 *
 *   FAULTS_ROOT    the directory; FAULTS_GRAVE one beside it, on the same file system, for what is removed
 *   FAULTS_KIND    see below; FAULTS_AT which call, from 1 (0: none); FAULTS_SEED for what is left to chance
 *   FAULTS_MATCH   counts only calls whose "OPERATION PATH" has this in it
 *   FAULTS_REPORT  a file: "at N OPERATION PATH" when it happens, "total N" at the end
 *   FAULTS_UNDO    a file: a process that is killed leaves there what is not durable yet, and the next process takes it
 *                  over
 *
 *   eio      the call fails with EIO, once. What a failed fsync was to make durable never will be, whatever later ones
 *            say (as on Linux). It can still be read, until posix_fadvise drops the pages. When the process exits, the machine crashes too: all that is not durable is lost.
 *   enospc   the call and all later ones that need space fail with ENOSPC.
 *   short    a write writes only half of what it was given, and says so. No error.
 *   kill     the process is killed before the call.
 *   half     the process is killed in the middle of the write (of any other call: before it).
 *   lose     the machine crashes before the call: all that is not durable is lost, then the process is killed.
 *   crash    nothing happens at a call. When the process exits, the machine crashes.
 *   torn     as lose, but of the pages and of the names that are not durable some are kept: of the pages any, of the
 *            names the earlier ones.
 *
 * What is durable is what POSIX promises and no more. A file's content and length: when an fsync or fdatasync of that
 * file has returned. A name that was made, removed or changed: when an fsync of its directory has. For what is not, it is
 * kept here how to undo it. Nothing is really synced to the disk: the machine does not crash, so this shows the same.
 *
 * The calls are caught at the C library's functions. One crate below the store renames by a system call of its own
 * (tempfile, through rustix), which a seccomp filter turns into a signal: that is why system calls are made by `kernel`,
 * the only place from which the filter lets them pass. On other machines than x86-64 those renames go unseen.
 *
 * Not seen: writes through mappings, fallocate, copy_file_range, hard links. The store makes none (checked with strace).
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096

static long kernel(long number, long a, long b, long c, long d, long e);

#ifdef __x86_64__
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

extern char faults_after_syscall[];

__asm__(".text\n"
        ".globl faults_syscall\n"
        ".hidden faults_syscall\n"
        ".hidden faults_after_syscall\n"
        ".globl faults_after_syscall\n"
        "faults_syscall:\n"
        "  movq %rdi, %rax\n"
        "  movq %rsi, %rdi\n"
        "  movq %rdx, %rsi\n"
        "  movq %rcx, %rdx\n"
        "  movq %r8, %r10\n"
        "  movq %r9, %r8\n"
        "  syscall\n"
        "faults_after_syscall:\n"
        "  ret\n");

extern long faults_syscall(long number, long a, long b, long c, long d, long e);

static long kernel(long number, long a, long b, long c, long d, long e) {
    return faults_syscall(number, a, b, c, d, e);
}
#else
static long kernel(long number, long a, long b, long c, long d, long e) {
    long result = syscall(number, a, b, c, d, e);
    return result < 0 ? -errno : result;
}
#endif

/* As the C library answers. */
static long answer(long result) {
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

enum kind { NONE, EIO_ONCE, ENOSPC_ON, SHORT, KILL, HALF, LOSE, TORN, CRASH };

static struct {
    char root[PATH_MAX];
    size_t root_length;
    int grave;
    unsigned long buried;
    enum kind kind;
    unsigned long at, count, seed;
    const char *report, *match, *undo;
} settings;

static pthread_mutex_t everything;
static int is_ready;

/* ---- what is not durable yet ---- */

struct inode {
    dev_t dev;
    ino_t ino;
    /* Open, so that the inode is not used again and what was written can be undone. */
    int fd;
    int is_dir;
    /* The file's length when it was last synced. */
    off_t durable_length;
    struct inode *next;
};

enum change { CONTENT, MADE, REMOVED, RENAMED };

struct undo {
    enum change change;
    /* The file, or the directory of the name. */
    struct inode *inode;
    /* A failed fsync has given it up. */
    int is_doomed;
    /* CONTENT */
    off_t offset;
    size_t length;
    char *old;
    /* names */
    char name[NAME_MAX + 1];
    char new_name[NAME_MAX + 1];
    /* What stood under the name that was removed or overwritten; empty if nothing did. */
    char grave[32];
    struct undo *earlier;
};

static struct inode *inodes;
static struct undo *latest;

static void *allocated(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) abort();
    return memory;
}

static struct inode *inode_of(int fd) {
    struct stat stat;
    if (fstat(fd, &stat) != 0) return NULL;
    for (struct inode *inode = inodes; inode; inode = inode->next)
        if (inode->dev == stat.st_dev && inode->ino == stat.st_ino) return inode;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    struct inode *inode = allocated(sizeof *inode);
    inode->dev = stat.st_dev;
    inode->ino = stat.st_ino;
    inode->is_dir = S_ISDIR(stat.st_mode);
    inode->durable_length = stat.st_size;
    int flags = (inode->is_dir ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_CLOEXEC;
    inode->fd = (int)kernel(SYS_openat, AT_FDCWD, (long)link, flags, 0, 0);
    if (inode->fd < 0) {
        free(inode);
        return NULL;
    }
    inode->next = inodes;
    inodes = inode;
    return inode;
}

static struct undo *remember(enum change change, struct inode *inode) {
    struct undo *undo = allocated(sizeof *undo);
    undo->change = change;
    undo->inode = inode;
    undo->earlier = latest;
    latest = undo;
    return undo;
}

static off_t length_of(int fd) {
    struct stat stat;
    return fstat(fd, &stat) == 0 ? stat.st_size : 0;
}

/* What is about to be overwritten. */
static void remember_range(struct inode *inode, off_t offset, size_t length) {
    off_t end = length_of(inode->fd);
    struct undo *undo = remember(CONTENT, inode);
    undo->offset = offset;
    undo->length = length;
    undo->old = allocated(length);
    if (offset < end && pread(inode->fd, undo->old, length, offset) < 0) abort();
}

/* What is about to be cut off, holes left out. */
static void remember_tail(struct inode *inode, off_t from) {
    off_t end = length_of(inode->fd);
    while (from < end) {
        off_t data = lseek(inode->fd, from, SEEK_DATA);
        if (data < 0 || data >= end) return;
        off_t hole = lseek(inode->fd, data, SEEK_HOLE);
        if (hole < 0 || hole > end) hole = end;
        remember_range(inode, data, (size_t)(hole - data));
        from = hole;
    }
}

static void forget_synced(struct inode *inode) {
    struct undo **place = &latest;
    while (*place) {
        struct undo *undo = *place;
        if (undo->inode == inode && !undo->is_doomed) {
            *place = undo->earlier;
            free(undo->old);
            free(undo);
        } else {
            place = &undo->earlier;
        }
    }
    if (!inode->is_dir) inode->durable_length = length_of(inode->fd);
}

static void doom(struct inode *inode) {
    for (struct undo *undo = latest; undo; undo = undo->earlier)
        if (undo->inode == inode) undo->is_doomed = 1;
}

static void bury(int dir, const char *name, char *grave) {
    snprintf(grave, 32, "%lu", settings.buried++);
    if (kernel(SYS_renameat, dir, (long)name, settings.grave, (long)grave, 0) < 0) abort();
}

static void undo_one(struct undo *undo) {
    int fd = undo->inode->fd;
    char grave[32];
    switch (undo->change) {
    case CONTENT:
        if (pwrite(fd, undo->old, undo->length, undo->offset) < 0) abort();
        break;
    case MADE:
        bury(fd, undo->name, grave);
        break;
    case REMOVED:
        if (kernel(SYS_renameat, settings.grave, (long)undo->grave, fd, (long)undo->name, 0) < 0) abort();
        break;
    case RENAMED:
        if (kernel(SYS_renameat, fd, (long)undo->new_name, fd, (long)undo->name, 0) < 0) abort();
        if (undo->grave[0] && kernel(SYS_renameat, settings.grave, (long)undo->grave, fd, (long)undo->new_name, 0) < 0)
            abort();
        break;
    }
}

static unsigned long chance(unsigned long one, unsigned long other) {
    unsigned long mixed = settings.seed + one * 0x9e3779b97f4a7c15ul + other * 0xbf58476d1ce4e5b9ul;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ul;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebul;
    return mixed ^ (mixed >> 31);
}

/* A page that is on the disk though nobody has synced it. */
struct page {
    struct inode *inode;
    off_t offset;
    ssize_t length;
    char content[PAGE];
    struct page *next;
};

static struct page *lucky_pages(void) {
    struct page *pages = NULL;
    for (struct undo *undo = latest; undo; undo = undo->earlier) {
        if (undo->change != CONTENT || undo->is_doomed) continue;
        for (off_t offset = undo->offset / PAGE * PAGE; offset < undo->offset + (off_t)undo->length; offset += PAGE) {
            if (chance(undo->inode->ino, (unsigned long)offset) & 1) continue;
            struct page *page = allocated(sizeof *page);
            page->inode = undo->inode;
            page->offset = offset;
            page->length = pread(undo->inode->fd, page->content, PAGE, offset);
            page->next = pages;
            pages = page;
        }
    }
    return pages;
}

/* The machine crashes. */
static void crash(void) {
    int is_torn = settings.kind == TORN;
    struct page *pages = is_torn ? lucky_pages() : NULL;
    unsigned long names = 0, kept = 0;
    for (struct undo *undo = latest; undo; undo = undo->earlier) names += undo->change != CONTENT;
    if (is_torn && names) kept = chance(names, 7) % (names + 1);
    for (struct undo *undo = latest; undo; undo = undo->earlier) {
        if (undo->change != CONTENT && names-- <= kept) continue;
        undo_one(undo);
    }
    for (struct inode *inode = inodes; inode; inode = inode->next)
        if (!inode->is_dir && kernel(SYS_ftruncate, inode->fd, inode->durable_length, 0, 0, 0) < 0) abort();
    for (; pages; pages = pages->next)
        if (pages->length > 0 && pwrite(pages->inode->fd, pages->content, (size_t)pages->length, pages->offset) < 0)
            abort();
}

/* ---- what is not durable yet, from one process to the next ---- */

static void put(FILE *file, const void *bytes, size_t length) {
    if (length && fwrite(bytes, 1, length, file) != length) abort();
}

static void get(FILE *file, void *bytes, size_t length) {
    if (length && fread(bytes, 1, length, file) != length) abort();
}

/* The order of an inode in the list. */
static unsigned long order_of(struct inode *inode) {
    unsigned long order = 0;
    for (struct inode *other = inodes; other != inode; other = other->next) order++;
    return order;
}

/* Whether another item follows in the file. */
static int has_another(FILE *file) {
    char more;
    get(file, &more, 1);
    return more;
}

static void save(void) {
    FILE *file = fopen(settings.undo, "w");
    if (!file) abort();
    put(file, &settings.buried, sizeof settings.buried);
    for (struct inode *inode = inodes; inode; inode = inode->next) {
        char link[64], path[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", inode->fd);
        if (kernel(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_MAX - 1, 0) < 0) abort();
        put(file, "\1", 1);
        put(file, path, sizeof path);
        put(file, inode, sizeof *inode);
    }
    put(file, "\0", 1);
    for (struct undo *undo = latest; undo; undo = undo->earlier) {
        unsigned long order = order_of(undo->inode);
        put(file, "\1", 1);
        put(file, undo, sizeof *undo);
        put(file, &order, sizeof order);
        put(file, undo->old, undo->length);
    }
    put(file, "\0", 1);
    if (fclose(file) != 0) abort();
}

/* Takes over what the last process has left, if it has left anything. */
static void load(void) {
    FILE *file = fopen(settings.undo, "r");
    if (!file) return;
    get(file, &settings.buried, sizeof settings.buried);
    for (struct inode **place = &inodes; has_another(file); place = &(*place)->next) {
        char path[PATH_MAX];
        get(file, path, sizeof path);
        struct inode *inode = allocated(sizeof *inode);
        get(file, inode, sizeof *inode);
        int flags = (inode->is_dir ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_CLOEXEC;
        inode->fd = (int)kernel(SYS_openat, AT_FDCWD, (long)path, flags, 0, 0);
        struct stat stat;
        if (inode->fd < 0 || fstat(inode->fd, &stat) != 0) abort();
        /* It must be the same file. */
        if (inode->dev != stat.st_dev || inode->ino != stat.st_ino) abort();
        inode->next = NULL;
        *place = inode;
    }
    for (struct undo **place = &latest; has_another(file); place = &(*place)->earlier) {
        struct undo *undo = allocated(sizeof *undo);
        unsigned long order;
        get(file, undo, sizeof *undo);
        get(file, &order, sizeof order);
        if (undo->old) {
            undo->old = allocated(undo->length);
            get(file, undo->old, undo->length);
        }
        undo->inode = inodes;
        while (order--) undo->inode = undo->inode->next;
        undo->earlier = NULL;
        *place = undo;
    }
    fclose(file);
    unlink(settings.undo);
}

/* ---- whose turn it is ---- */

static void report(const char *format, ...) {
    char line[PATH_MAX + 64];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int fd = (int)kernel(SYS_openat, AT_FDCWD, (long)settings.report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644, 0);
    if (fd < 0) abort();
    kernel(SYS_write, fd, (long)line, length, 0, 0);
    kernel(SYS_close, fd, 0, 0, 0, 0);
}

static void end_process(void) {
    if (settings.undo && (settings.kind == KILL || settings.kind == HALF)) save();
    kernel(SYS_kill, getpid(), SIGKILL, 0, 0, 0);
    for (;;) pause();
}

/* Counts a call. What it is to do: 0 as usual, -1 half of it, else fail with that error. */
static int turn(const char *operation, const char *path, int is_write, int needs_space) {
    char line[PATH_MAX + 32];
    snprintf(line, sizeof line, "%s %s", operation, path);
    if (settings.match && !strstr(line, settings.match)) return 0;
    settings.count++;
    if (settings.at == 0 || settings.count < settings.at) return 0;
    int is_now = settings.count == settings.at;
    if (is_now && settings.kind != NONE) report("at %lu %s\n", settings.count, line);
    switch (settings.kind) {
    case EIO_ONCE:
        return is_now ? EIO : 0;
    case ENOSPC_ON:
        return needs_space ? ENOSPC : 0;
    case SHORT:
        return is_now && is_write ? -1 : 0;
    case KILL:
        end_process();
        return 0;
    case HALF:
        if (!is_write) end_process();
        return -1;
    case LOSE:
    case TORN:
        crash();
        end_process();
        return 0;
    case CRASH:
    case NONE:
        break;
    }
    return 0;
}

static int is_below(const char *path) {
    return strncmp(path, settings.root, settings.root_length) == 0
        && (path[settings.root_length] == '/' || path[settings.root_length] == 0);
}

/* Where an open file is, if that is below the root. */
static int tracked(int fd, char *path) {
    if (!is_ready) return 0;
    struct stat stat;
    if (fstat(fd, &stat) != 0 || !(S_ISREG(stat.st_mode) || S_ISDIR(stat.st_mode))) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = kernel(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_MAX - 1, 0);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

/* A name's directory and its last part, if the directory is the root or below. */
struct place {
    struct inode *dir;
    char path[PATH_MAX];
    const char *name;
};

static int find_place(int at, const char *path, struct place *place) {
    if (!is_ready) return 0;
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof dir) return 0;
    memcpy(dir, path, length);
    dir[length] = 0;
    const char *opened = slash == path ? "/" : length ? dir : ".";
    int fd = (int)kernel(SYS_openat, at, (long)opened, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0);
    if (fd < 0) return 0;
    int is_found = tracked(fd, place->path);
    if (is_found) {
        place->dir = inode_of(fd);
        place->name = slash ? slash + 1 : path;
        size_t end = strlen(place->path);
        snprintf(place->path + end, sizeof place->path - end, "/%s", place->name);
    }
    kernel(SYS_close, fd, 0, 0, 0, 0);
    return is_found && place->dir && strlen(place->name) <= NAME_MAX;
}

static void remember_made(struct place *place) {
    strcpy(remember(MADE, place->dir)->name, place->name);
}

/* ---- the calls ---- */

static long write_at(int fd, const void *bytes, size_t length, off_t offset, int has_offset) {
    char path[PATH_MAX];
    if (!tracked(fd, path))
        return has_offset ? kernel(SYS_pwrite64, fd, (long)bytes, (long)length, offset, 0)
                          : kernel(SYS_write, fd, (long)bytes, (long)length, 0, 0);
    pthread_mutex_lock(&everything);
    int what = turn("write", path, 1, 1);
    long result = -what;
    if (what <= 0) {
        size_t written = what < 0 ? (length + 1) / 2 : length;
        if (!has_offset) offset = fcntl(fd, F_GETFL) & O_APPEND ? length_of(fd) : lseek(fd, 0, SEEK_CUR);
        remember_range(inode_of(fd), offset, written);
        result = has_offset ? kernel(SYS_pwrite64, fd, (long)bytes, (long)written, offset, 0)
                            : kernel(SYS_write, fd, (long)bytes, (long)written, 0, 0);
        if (settings.kind == HALF && what < 0) end_process();
    }
    pthread_mutex_unlock(&everything);
    return result;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    return answer(write_at(fd, bytes, length, 0, 0));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    return answer(write_at(fd, bytes, length, offset, 1));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!tracked(fd, path)) return answer(kernel(SYS_writev, fd, (long)parts, count, 0, 0));
    size_t length = 0;
    for (int part = 0; part < count; part++) length += parts[part].iov_len;
    char *bytes = allocated(length);
    size_t filled = 0;
    for (int part = 0; part < count; part++) {
        memcpy(bytes + filled, parts[part].iov_base, parts[part].iov_len);
        filled += parts[part].iov_len;
    }
    long result = write_at(fd, bytes, length, 0, 0);
    free(bytes);
    return answer(result);
}

int ftruncate64(int fd, off_t length) {
    char path[PATH_MAX];
    if (!tracked(fd, path)) return (int)answer(kernel(SYS_ftruncate, fd, length, 0, 0, 0));
    pthread_mutex_lock(&everything);
    struct inode *inode = inode_of(fd);
    int what = turn("ftruncate", path, 0, length > length_of(fd));
    long result = -what;
    if (what == 0) {
        remember_tail(inode, length);
        result = kernel(SYS_ftruncate, fd, length, 0, 0, 0);
    }
    pthread_mutex_unlock(&everything);
    return (int)answer(result);
}

int ftruncate(int fd, off_t length) {
    return ftruncate64(fd, length);
}

static int sync_one(const char *operation, long number, int fd) {
    char path[PATH_MAX];
    if (!tracked(fd, path)) return (int)answer(kernel(number, fd, 0, 0, 0, 0));
    pthread_mutex_lock(&everything);
    struct inode *inode = inode_of(fd);
    int what = turn(operation, path, 0, 0);
    if (inode && what == 0) forget_synced(inode);
    if (inode && what > 0 && !inode->is_dir) doom(inode);
    pthread_mutex_unlock(&everything);
    return (int)answer(-what);
}

int fsync(int fd) {
    return sync_one("fsync", SYS_fsync, fd);
}

int fdatasync(int fd) {
    return sync_one("fdatasync", SYS_fdatasync, fd);
}

/* What a failed fsync has given up is in the pages only. */
int posix_fadvise64(int fd, off_t offset, off_t length, int advice) {
    char path[PATH_MAX];
    if (advice == POSIX_FADV_DONTNEED && tracked(fd, path)) {
        pthread_mutex_lock(&everything);
        struct inode *inode = inode_of(fd);
        for (struct undo **place = &latest; *place;) {
            struct undo *undo = *place;
            if (undo->inode == inode && undo->is_doomed && undo->change == CONTENT) {
                undo_one(undo);
                *place = undo->earlier;
                free(undo->old);
                free(undo);
            } else {
                place = &undo->earlier;
            }
        }
        pthread_mutex_unlock(&everything);
    }
    return (int)-kernel(SYS_fadvise64, fd, offset, length, advice, 0);
}

int posix_fadvise(int fd, off_t offset, off_t length, int advice) {
    return posix_fadvise64(fd, offset, length, advice);
}

static long open_at(int at, const char *path, int flags, mode_t mode) {
    struct place place;
    if (!(flags & (O_CREAT | O_TRUNC)) || !find_place(at, path, &place))
        return kernel(SYS_openat, at, (long)path, flags, mode, 0);
    pthread_mutex_lock(&everything);
    struct stat stat;
    int exists = fstatat(place.dir->fd, place.name, &stat, 0) == 0;
    int what = 0;
    if (exists ? (flags & O_TRUNC) && stat.st_size > 0 && !(flags & O_EXCL) : flags & O_CREAT)
        what = turn(exists ? "open to truncate" : "create", place.path, 0, !exists);
    long result = -what;
    if (what == 0) {
        if (exists && (flags & O_TRUNC) && !(flags & O_EXCL)) {
            int fd = (int)kernel(SYS_openat, place.dir->fd, (long)place.name, O_RDWR | O_CLOEXEC, 0, 0);
            if (fd >= 0) remember_tail(inode_of(fd), 0);
            kernel(SYS_close, fd, 0, 0, 0, 0);
        }
        result = kernel(SYS_openat, at, (long)path, flags, mode, 0);
        if (result >= 0 && !exists) {
            remember_made(&place);
            inode_of((int)result);
        }
    }
    pthread_mutex_unlock(&everything);
    return result;
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(arguments, int) : 0;
}

#define OPEN(NAME, FIRST, AT)                                    \
    int NAME(FIRST const char *path, int flags, ...) {           \
        va_list arguments;                                       \
        va_start(arguments, flags);                              \
        mode_t mode = mode_of(flags, arguments);                 \
        va_end(arguments);                                       \
        return (int)answer(open_at(AT, path, flags, mode));      \
    }
#define NOTHING
#define DIRECTORY int at,

OPEN(open, NOTHING, AT_FDCWD)
OPEN(open64, NOTHING, AT_FDCWD)
OPEN(openat, DIRECTORY, at)
OPEN(openat64, DIRECTORY, at)

int mkdir(const char *path, mode_t mode) {
    struct place place;
    if (!find_place(AT_FDCWD, path, &place)) return (int)answer(kernel(SYS_mkdirat, AT_FDCWD, (long)path, mode, 0, 0));
    pthread_mutex_lock(&everything);
    struct stat stat;
    int what = fstatat(place.dir->fd, place.name, &stat, 0) == 0 ? EEXIST : turn("mkdir", place.path, 0, 1);
    long result = -what;
    if (what == 0) {
        result = kernel(SYS_mkdirat, place.dir->fd, (long)place.name, mode, 0, 0);
        if (result == 0) remember_made(&place);
    }
    pthread_mutex_unlock(&everything);
    return (int)answer(result);
}

static int is_empty(int dir, const char *name) {
    int fd = (int)kernel(SYS_openat, dir, (long)name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) return 0;
    int count = 0;
    while (readdir(entries)) count++;
    closedir(entries);
    return count <= 2;
}

static int remove_at(int at, const char *path, int is_dir) {
    struct place place;
    if (!find_place(at, path, &place))
        return (int)answer(kernel(SYS_unlinkat, at, (long)path, is_dir ? AT_REMOVEDIR : 0, 0, 0));
    pthread_mutex_lock(&everything);
    struct stat stat;
    int what = 0;
    if (fstatat(place.dir->fd, place.name, &stat, AT_SYMLINK_NOFOLLOW) != 0) what = ENOENT;
    else if (is_dir && !S_ISDIR(stat.st_mode)) what = ENOTDIR;
    else if (!is_dir && S_ISDIR(stat.st_mode)) what = EISDIR;
    else if (is_dir && !is_empty(place.dir->fd, place.name)) what = ENOTEMPTY;
    else what = turn(is_dir ? "rmdir" : "unlink", place.path, 0, 0);
    if (what == 0) {
        struct undo *undo = remember(REMOVED, place.dir);
        strcpy(undo->name, place.name);
        bury(place.dir->fd, place.name, undo->grave);
    }
    pthread_mutex_unlock(&everything);
    return (int)answer(-what);
}

int unlink(const char *path) {
    return remove_at(AT_FDCWD, path, 0);
}

int rmdir(const char *path) {
    return remove_at(AT_FDCWD, path, 1);
}

int unlinkat(int at, const char *path, int flags) {
    return remove_at(at, path, flags & AT_REMOVEDIR);
}

static long rename_at(int from, const char *old, int to, const char *new, unsigned flags) {
    struct place source, target;
    if (!find_place(from, old, &source) || !find_place(to, new, &target))
        return kernel(SYS_renameat2, from, (long)old, to, (long)new, flags);
    pthread_mutex_lock(&everything);
    /* From one directory to another, or without overwriting: nobody does that, and it is not modelled. */
    if (source.dir != target.dir || flags) abort();
    struct stat stat;
    int what = fstatat(source.dir->fd, source.name, &stat, 0) == 0 ? turn("rename", target.path, 0, 1) : ENOENT;
    long result = -what;
    if (what == 0) {
        struct undo *undo = remember(RENAMED, source.dir);
        strcpy(undo->name, source.name);
        strcpy(undo->new_name, target.name);
        int replaces = fstatat(target.dir->fd, target.name, &stat, 0) == 0;
        if (replaces && S_ISDIR(stat.st_mode)) abort();
        if (replaces) bury(target.dir->fd, target.name, undo->grave);
        result = kernel(SYS_renameat, source.dir->fd, (long)source.name, target.dir->fd, (long)target.name, 0);
        if (result < 0) abort();
    }
    pthread_mutex_unlock(&everything);
    return result;
}

int rename(const char *old, const char *new) {
    return (int)answer(rename_at(AT_FDCWD, old, AT_FDCWD, new, 0));
}

/* ---- begin and end ---- */

#ifdef __x86_64__
static void renamed_by_hand(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    long a = registers[REG_RDI], b = registers[REG_RSI], c = registers[REG_RDX], d = registers[REG_R10];
    switch (info->si_syscall) {
    case SYS_rename:
        registers[REG_RAX] = rename_at(AT_FDCWD, (char *)a, AT_FDCWD, (char *)b, 0);
        break;
    case SYS_renameat:
        registers[REG_RAX] = rename_at((int)a, (char *)b, (int)c, (char *)d, 0);
        break;
    default:
        registers[REG_RAX] = rename_at((int)a, (char *)b, (int)c, (char *)d, (unsigned)registers[REG_R8]);
    }
}

static void catch_renames(void) {
    uint64_t here = (uint64_t)(uintptr_t)faults_after_syscall;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rename, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)here, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(here >> 32), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    struct sigaction action = {.sa_sigaction = renamed_by_hand, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSYS, &action, NULL) != 0) abort();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) abort();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) abort();
}
#else
static void catch_renames(void) {}
#endif

static unsigned long number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *names[] = {"none", "eio", "enospc", "short", "kill", "half", "lose", "torn", "crash"};
    const char *root = getenv("FAULTS_ROOT"), *grave = getenv("FAULTS_GRAVE"), *kind = getenv("FAULTS_KIND");
    settings.report = getenv("FAULTS_REPORT");
    settings.match = getenv("FAULTS_MATCH");
    settings.undo = getenv("FAULTS_UNDO");
    if (!root || !grave || !kind || !settings.report) return;
    if (!realpath(root, settings.root)) abort();
    settings.root_length = strlen(settings.root);
    settings.grave = (int)kernel(SYS_openat, AT_FDCWD, (long)grave, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0);
    settings.kind = CRASH + 1;
    for (int index = NONE; index <= CRASH; index++)
        if (strcmp(kind, names[index]) == 0) settings.kind = (enum kind)index;
    if (settings.grave < 0 || settings.kind > CRASH) abort();
    settings.at = number("FAULTS_AT");
    settings.seed = number("FAULTS_SEED");
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&everything, &attributes);
    if (settings.undo) load();
    catch_renames();
    is_ready = 1;
}

__attribute__((destructor)) static void end(void) {
    if (!is_ready) return;
    /* For good: nothing is written any more. */
    pthread_mutex_lock(&everything);
    report("total %lu\n", settings.count);
    if (settings.kind == EIO_ONCE || settings.kind == CRASH) crash();
}
