/* What the owner of a directory can do while somebody else works in it: exchange names at the worst moment, or at any.
 *
 *     attack swap  DIR NAME OTHER               waits until NAME is another file than now, and exchanges it with OTHER, once
 *     attack flip  DIR NAME OTHER MICROSECONDS  exchanges the two again and again, with pauses of at most so long
 *     attack flip-new DIR PREFIX OTHER MICROSECONDS [NAME]   the same with each name of that prefix that comes into being; if there is
 *                                               a NAME, from when it is another file
 *     attack storm DIR PREFIX MICROSECONDS SEED NAME ...   exchanges any name with any that has the prefix, and mostly back again:
 *                                               names that are in DIR, in its directory NAME, or given
 *
 * Each prints a line when it is at work, and but for `swap` goes on until it is killed, or for a minute. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MINUTE 60000000000

static uint64_t state;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int64_t end;

static uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (uint32_t)(state >> 33) % limit : 0;
}

/* Without sleeping, which takes longer than most windows are open; but for long pauses, to leave others the processor. */
static void pause_up_to(uint32_t micros) {
    uint32_t pause = below(micros + 1);
    if (pause > 200) {
        usleep(pause);
        return;
    }
    for (int64_t until = now() + 1000LL * pause; now() < until;) {
    }
}

static int swapped(int one_dir, const char *one, int other_dir, const char *other, unsigned flags) {
    return syscall(SYS_renameat2, one_dir, one, other_dir, other, flags) == 0;
}

#define EXCHANGE 2
#define NOREPLACE 1

static void at_work(void) {
    puts("at work");
    fflush(stdout);
}

static int swap(int dir, const char *name, const char *other) {
    struct stat before, here;
    if (fstatat(dir, name, &before, AT_SYMLINK_NOFOLLOW) < 0)
        before.st_ino = 0;
    at_work();
    while (now() < end) {
        if (fstatat(dir, name, &here, AT_SYMLINK_NOFOLLOW) == 0 && here.st_ino != before.st_ino)
            return !swapped(dir, name, dir, other, EXCHANGE);
    }
    return 1;
}

static int flip(int dir, const char *name, const char *other, uint32_t micros) {
    at_work();
    while (now() < end) {
        swapped(dir, name, dir, other, EXCHANGE);
        pause_up_to(micros);
    }
    return 0;
}

static int flip_new(int dir, const char *path, const char *prefix, const char *other, uint32_t micros,
                    const char *until) {
    struct stat before, here;
    if (until && fstatat(dir, until, &before, AT_SYMLINK_NOFOLLOW) < 0)
        return 1;
    int watch = inotify_init1(IN_CLOEXEC);
    if (watch < 0 || inotify_add_watch(watch, path, IN_CREATE | IN_MOVED_TO) < 0)
        return 1;
    at_work();
    char name[256] = "";
    while (now() < end) {
        struct pollfd news = {.fd = watch, .events = POLLIN};
        if (poll(&news, 1, *name ? 0 : 100) > 0) {
            _Alignas(struct inotify_event) char buf[4096];
            ssize_t len = read(watch, buf, sizeof buf);
            for (ssize_t at = 0; at < len;) {
                struct inotify_event *event = (void *)(buf + at);
                if (event->len && !strncmp(event->name, prefix, strlen(prefix)))
                    strcpy(name, event->name);
                at += sizeof *event + event->len;
            }
        }
        if (until && fstatat(dir, until, &here, AT_SYMLINK_NOFOLLOW) == 0 && here.st_ino == before.st_ino)
            continue;
        until = NULL;
        if (*name && !swapped(dir, name, dir, other, EXCHANGE) && errno == ENOENT)
            *name = 0;
        else if (*name)
            pause_up_to(micros);
    }
    return 0;
}

/* A random name in a directory, with the prefix or without. */
static int some_name(int dir, const char *prefix, int with, char *name) {
    int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    uint32_t seen = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int has = !strncmp(entry->d_name, prefix, strlen(prefix));
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && has == with && below(++seen) == 0)
            strcpy(name, entry->d_name);
    }
    if (list)
        closedir(list);
    return seen > 0;
}

static int storm(int dir, const char *prefix, uint32_t micros, int count, char **given) {
    at_work();
    while (now() < end) {
        char name[256], squat[256];
        int where = dir;
        /* The first name is SOURCE's, which may be a directory. */
        if (below(2) && (where = openat(dir, given[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
            where = dir;
        int named = where == dir && below(2);
        if (named)
            strcpy(name, given[below(count)]);
        if ((named || some_name(where, prefix, 0, name)) && some_name(dir, prefix, 1, squat)) {
            int exchanged = swapped(dir, squat, where, name, EXCHANGE);
            int moved = !exchanged && swapped(dir, squat, where, name, NOREPLACE);
            pause_up_to(micros);
            if (below(16) == 0)
                ; /* so it stays */
            else if (exchanged)
                swapped(dir, squat, where, name, EXCHANGE);
            else if (moved)
                swapped(where, name, dir, squat, NOREPLACE);
        }
        if (where != dir)
            close(where);
        pause_up_to(micros);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    int dir = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        perror(argv[2]);
        return 1;
    }
    state = now();
    end = now() + MINUTE;
    if (!strcmp(argv[1], "swap"))
        return swap(dir, argv[3], argv[4]);
    if (argc > 5 && !strcmp(argv[1], "flip"))
        return flip(dir, argv[3], argv[4], atoi(argv[5]));
    if (argc > 5 && !strcmp(argv[1], "flip-new"))
        return flip_new(dir, argv[2], argv[3], argv[4], atoi(argv[5]), argc > 6 ? argv[6] : NULL);
    if (argc > 6 && !strcmp(argv[1], "storm")) {
        state = atoi(argv[5]);
        return storm(dir, argv[3], atoi(argv[4]), argc - 6, argv + 6);
    }
    return 2;
}
