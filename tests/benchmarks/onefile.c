/* The least that a FUSE file system in C can be: one file, `file`, served from memory by libfuse's low-level API.
 *
 *     onefile FILE MOUNTPOINT     reads FILE, mounts, and serves its bytes in the foreground, by one thread
 */
#define FUSE_USE_VERSION 34
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *bytes;
static size_t size;

static void describe(fuse_ino_t node, struct stat *stat)
{
    memset(stat, 0, sizeof *stat);
    stat->st_ino = node;
    stat->st_mode = node == 1 ? S_IFDIR | 0555 : S_IFREG | 0444;
    stat->st_nlink = node == 1 ? 2 : 1;
    stat->st_size = node == 1 ? 0 : size;
}

static void lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = {.ino = 2, .attr_timeout = 1e6, .entry_timeout = 1e6};
    if (parent != 1 || strcmp(name, "file")) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    describe(2, &entry.attr);
    fuse_reply_entry(request, &entry);
}

static void getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    struct stat stat;
    describe(node, &stat);
    fuse_reply_attr(request, &stat, 1e6);
}

static void open_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    info->keep_cache = 1;
    fuse_reply_open(request, info);
}

static void read_file(fuse_req_t request, fuse_ino_t node, size_t length, off_t at, struct fuse_file_info *info)
{
    size_t begin = (size_t)at < size ? (size_t)at : size;
    fuse_reply_buf(request, bytes + begin, length < size - begin ? length : size - begin);
}

int main(int argc, char **argv)
{
    const struct fuse_lowlevel_ops operations = {
        .lookup = lookup, .getattr = getattr, .open = open_file, .read = read_file};
    char *words[] = {argv[0], "-o", "fsname=onefile", NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
    struct stat stat;
    int fd;

    if (argc != 3 || (fd = open(argv[1], O_RDONLY)) < 0 || fstat(fd, &stat))
        return 2;
    size = stat.st_size;
    bytes = malloc(size + 1);
    for (size_t done = 0; bytes && done < size;) {
        ssize_t n = read(fd, bytes + done, size - done);
        if (n <= 0)
            return 2;
        done += n;
    }
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!bytes || !session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[2]))
        return 1;
    fuse_session_loop(session);
    fuse_session_unmount(session);
    return 0;
}
