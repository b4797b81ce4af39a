// Programs that are hard to manage, by name: hard NAME SEED AMOUNT.
//   ends      ends at once
//   forks     AMOUNT children, one after the other, that touch memory of their own and theirs
//   churn     AMOUNT blocks of 4 KiB to 4 MiB allocated, filled and freed in random order
//   mappings  AMOUNT mappings of two pages each, touched three times over
//   idle      AMOUNT MiB filled, three seconds of sleep, read once
//   full      AMOUNT MiB filled and read at random
#include "kernel.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static uint64_t touch(unsigned char *from, uint64_t bytes, uint64_t seed) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += PAGE) sum += from[at] = (unsigned char)(seed + at / PAGE);
    return sum;
}

static uint64_t forks(uint64_t seed, uint64_t children) {
    enum { OWN = 64 * PAGE };
    unsigned char *shared = allocate(16 * MIB);
    uint64_t sum = touch(shared, 16 * MIB, seed);
    for (uint64_t i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            exit(1);
        }
        if (child == 0) {
            touch(shared + i % 64 * OWN, OWN, i);
            _exit((int)(i % 64));
        }
        int status = 0;
        waitpid(child, &status, 0);
        sum += (uint64_t)WEXITSTATUS(status);
    }
    return sum;
}

static uint64_t churn(uint64_t seed, uint64_t blocks) {
    enum { KEPT = 256 };
    unsigned char *kept[KEPT] = {0};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = random_below(&seed, KEPT), bytes = PAGE << random_below(&seed, 11);
        free(kept[at]);
        kept[at] = allocate(bytes);
        sum += touch(kept[at], bytes, i);
    }
    return sum;
}

static uint64_t mappings(uint64_t count) {
    unsigned char **all = allocate(count * sizeof *all);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        // One page in two is not accessible, so that no two are merged.
        all[i] = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all[i] == MAP_FAILED || mprotect(all[i], PAGE, PROT_READ | PROT_WRITE)) {
            perror("mmap");
            exit(1);
        }
    }
    for (int round = 0; round < 30; round++)
        for (uint64_t i = 0; i < count; i++) sum += touch(all[i], PAGE, i);
    return sum;
}

static uint64_t random_reads(const unsigned char *from, uint64_t bytes, uint64_t seed) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 2000000; i++) sum += from[random_below(&seed, bytes)];
    return sum;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "ends";
    uint64_t seed = argument(argc, argv, 2, 1), amount = argument(argc, argv, 3, 100), sum = 0;
    if (!strcmp(name, "forks")) sum = forks(seed, amount);
    if (!strcmp(name, "churn")) sum = churn(seed, amount);
    if (!strcmp(name, "mappings")) sum = mappings(amount);
    if (!strcmp(name, "idle") || !strcmp(name, "full")) {
        unsigned char *memory = allocate(amount * MIB);
        sum = touch(memory, amount * MIB, seed);
        if (!strcmp(name, "idle")) nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
        else sum += random_reads(memory, amount * MIB, seed);
        sum += touch(memory, amount * MIB, seed);
    }
    printf("%s %016lx\n", name, (unsigned long)sum);
    return 0;
}
