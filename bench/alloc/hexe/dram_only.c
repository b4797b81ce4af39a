/* Runs a command as on a machine in memory mode, where the fast nodes are a cache and the kernel
 * knows of the others only:
 *   dram_only NODES COMMAND...
 * It gets a group of its own (cgroup v2, mounted at /sys/fs/cgroup) that may use these memory
 * nodes, and no memory policy. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    int bad = file == NULL || fputs(text, file) < 0;
    if (file != NULL && fclose(file) != 0)
        bad = 1;
    if (bad)
        perror(path);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: dram_only NODES COMMAND...\n");
        return 2;
    }
    if (put("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset"))
        return 1;
    mkdir("/sys/fs/cgroup/dram-only", 0755);
    if (put("/sys/fs/cgroup/dram-only/cpuset.mems", argv[1]) ||
        put("/sys/fs/cgroup/dram-only/cgroup.procs", "0"))
        return 1;
    if (syscall(SYS_set_mempolicy, 0, NULL, 0) != 0) {
        perror("set_mempolicy");
        return 1;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
