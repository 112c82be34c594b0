/* The least that a FUSE file system in C can be: a tree held in memory, served by libfuse's low-level API with the
 * replies that deepiofs gives to exact names. What a benchmark calls the kernel's limit.
 *
 *     memoryfs DIRECTORY MOUNTPOINT [THREADS]
 *
 * Reads the tree, mounts, and serves in the foreground: by one thread, or by up to THREADS, each with a descriptor of
 * its own (clone_fd). Ends by SIGTERM.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 34
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOR_EVER (365 * 86400.0)

struct node {
    fuse_ino_t parent;
    char *name;
    struct stat stat;
    char *bytes;
    size_t next; /* in its chain, 0 is the end */
};

static struct node *nodes; /* by inode number; 1 is the root */
static size_t count = 2, room = 2, *chains, n_chains;

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static size_t chain(fuse_ino_t parent, const char *name)
{
    uint64_t hash = parent * 1099511628211u;
    while (*name)
        hash = (hash ^ (unsigned char)*name++) * 1099511628211u;
    return (hash ^ hash >> 32) & (n_chains - 1);
}

static char *content(int directory, const char *name, size_t size)
{
    char *bytes = malloc(size + 1);
    int fd = openat(directory, name, O_RDONLY);
    if (!bytes || fd < 0)
        fail(name);
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, bytes + done, size - done);
        if (n <= 0)
            fail(name);
        done += n;
    }
    close(fd);
    return bytes;
}

static void take(int fd, fuse_ino_t parent)
{
    DIR *directory = fdopendir(fd);
    struct dirent *entry;
    if (!directory)
        fail("opendir");
    while ((entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (count == room && !(nodes = realloc(nodes, (room *= 2) * sizeof *nodes)))
            fail("realloc");
        size_t number = count++;
        nodes[number] = (struct node){.parent = parent, .name = strdup(entry->d_name)};
        if (fstatat(fd, entry->d_name, &nodes[number].stat, 0))
            fail(entry->d_name);
        nodes[number].stat.st_ino = number;
        if (S_ISDIR(nodes[number].stat.st_mode))
            take(openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY), number);
        else
            nodes[number].bytes = content(fd, entry->d_name, nodes[number].stat.st_size);
    }
    closedir(directory);
}

static void index_names(void)
{
    for (n_chains = 1; n_chains < 2 * count;)
        n_chains *= 2;
    if (!(chains = calloc(n_chains, sizeof *chains)))
        fail("calloc");
    for (size_t i = 2; i < count; i++) {
        size_t *first = &chains[chain(nodes[i].parent, nodes[i].name)];
        nodes[i].next = *first;
        *first = i;
    }
}

static void lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = {.attr_timeout = FOR_EVER, .entry_timeout = FOR_EVER};
    size_t i = chains[chain(parent, name)];
    while (i && (nodes[i].parent != parent || strcmp(nodes[i].name, name)))
        i = nodes[i].next;
    if (!i) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    entry.ino = i;
    entry.attr = nodes[i].stat;
    fuse_reply_entry(request, &entry);
}

static void getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    fuse_reply_attr(request, &nodes[node].stat, FOR_EVER);
}

static void open_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    info->fh = node;
    info->keep_cache = 1;
    fuse_reply_open(request, info);
}

static void read_file(fuse_req_t request, fuse_ino_t node, size_t length, off_t at, struct fuse_file_info *info)
{
    size_t size = nodes[node].stat.st_size, begin = (size_t)at < size ? (size_t)at : size;
    fuse_reply_buf(request, nodes[node].bytes + begin, length < size - begin ? length : size - begin);
}

static void release(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    fuse_reply_err(request, 0);
}

static void forget(fuse_req_t request, fuse_ino_t node, uint64_t lookups)
{
    fuse_reply_none(request);
}

int main(int argc, char **argv)
{
    /* No flush: libfuse answers ENOSYS, and the kernel sends it no more. */
    const struct fuse_lowlevel_ops operations = {.lookup = lookup, .getattr = getattr, .open = open_file,
        .read = read_file, .release = release, .forget = forget};
    char *words[] = {argv[0], "-o", "fsname=memoryfs,default_permissions", NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
    int fd, threads = argc == 4 ? atoi(argv[3]) : 1;

    if (argc < 3 || argc > 4 || threads < 1 || (fd = open(argv[1], O_RDONLY | O_DIRECTORY)) < 0)
        return 2;
    if (!(nodes = calloc(room, sizeof *nodes)) || fstat(fd, &nodes[1].stat))
        fail(argv[1]);
    nodes[1].stat.st_ino = 1;
    take(fd, 1);
    index_names();
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[2]))
        return 1;
    if (threads > 1) {
        struct fuse_loop_config config = {.clone_fd = 1, .max_idle_threads = threads};
        fuse_session_loop_mt(session, &config);
    } else
        fuse_session_loop(session);
    fuse_session_unmount(session);
    return 0;
}
