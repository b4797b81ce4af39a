/* Two processes and a segment of shared memory: `create NAME OTHER` makes it and runs OTHER; `open
 * NAME` finds in it what
   was written. Both print the policy that the kernel has for their mapping. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEN (8 << 20)

static void policy_of(const char *who, const void *at) {
    char line[4096], policy[64] = "unknown";
    unsigned long start;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char found[64];
        if (sscanf(line, "%lx %63s", &start, found) == 2 && start ==
            (unsigned long)at) strcpy(policy, found);
    }
    if (maps) fclose(maps);
    printf("%s %s\n", who, policy);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    int create = !strcmp(words[1], "create");
    int fd = shm_open(words[2], create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0) { perror("shm_open"); return 1; }
    if (create && ftruncate(fd, LEN)) return 1;
    char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 1;
    if (create) {
        memset(at, 'x', LEN / 2);
        strcpy(at, "written by the first");
        policy_of("first", at);
        int failed = system(words[3]);
        printf("first reads: %s\n", at);
        shm_unlink(words[2]);
        return failed != 0;
    }
    printf("second reads: %s, %c\n", at, at[LEN / 2 - 1]);
    memset(at + LEN / 2, 'y', LEN / 2);
    strcpy(at, "written by the second");
    policy_of("second", at);
    return 0;
}
