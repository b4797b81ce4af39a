/* An arena that several processes have. Children work in it and are killed in the midst; the
 * parent's data stays, and the arena goes on. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <terrace.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, terrace_last_error());             \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

/* A child of a child: works until it is killed. */
static int work(const char *name) {
    terrace_shared *shared;
    CHECK(terrace_shared_open(name, &shared) == TERRACE_OK);
    char *root = terrace_shared_pointer(shared, terrace_shared_root(shared));
    CHECK(root != NULL && strcmp(root, "from the parent") == 0);
    for (uint32_t i = 0;; i++) {
        size_t size = 1 + i * 2654435761u % 5000;
        char *block = terrace_shared_alloc(shared, size, 1);
        CHECK(block != NULL);
        memset(block, (int)i, size);
        CHECK(terrace_shared_free(shared, block) == TERRACE_OK);
    }
}

int main(void) {
    char name[64];
    terrace_shared *shared, *again;
    terrace_shared_figures figures;
    snprintf(name, sizeof name, "terrace-example-%ld", (long)getpid());
    CHECK(terrace_shared_open(name, &shared) == TERRACE_E_KERNEL);
    CHECK(terrace_shared_create("a/b", 1 << 20, TERRACE_DEVICES_PREFER, NULL, 0, 0, &shared) ==
        TERRACE_E_INVALID);
    CHECK(terrace_shared_create(name, 4 << 20, TERRACE_DEVICES_PREFER, NULL, 0, 0, &shared) ==
        TERRACE_OK);
    char *text = terrace_shared_alloc(shared, 100, 64);
    CHECK(text != NULL);
    strcpy(text, "from the parent");
    CHECK(terrace_shared_set_root(shared, terrace_shared_offset(shared, text)) == TERRACE_OK);

    for (int round = 0; round < 50; round++) {
        pid_t children[2];
        for (int i = 0; i < 2; i++) {
            children[i] = fork();
            if (children[i] == 0) _exit(work(name));
        }
        usleep(2000 + round * 37);
        for (int i = 0; i < 2; i++) {
            int status;
            kill(children[i], SIGKILL);
            CHECK(waitpid(children[i], &status, 0) == children[i]);
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        }
        void *block = terrace_shared_alloc(shared, 1000, 1); /* waits for nobody who is dead */
        CHECK(block != NULL && terrace_shared_free(shared, block) == TERRACE_OK);
    }
    CHECK(strcmp(text, "from the parent") == 0);
    CHECK(terrace_shared_stats(shared, &figures) == TERRACE_OK);
    /* What a child had at that moment is all that is left of it. */
    CHECK(figures.blocks >= 1 && figures.blocks <= 1 + 100);
    printf("100 children killed, %llu of them inside the arena; %llu blocks of theirs stayed\n",
           (unsigned long long)figures.recovered, (unsigned long long)figures.blocks - 1);

    CHECK(terrace_shared_open_fd(terrace_shared_fd(shared), &again) == TERRACE_OK);
    char *there = terrace_shared_pointer(again, terrace_shared_offset(shared, text));
    CHECK(there != text && strcmp(there, text) == 0);
    CHECK(terrace_shared_free(again, there) == TERRACE_OK);
    CHECK(terrace_shared_free(shared, text) == TERRACE_E_NOT_OURS);
    CHECK(terrace_shared_alloc(shared, 100, 3) == NULL);
    CHECK(terrace_shared_alloc(shared, 5 << 20, 1) == NULL);
    CHECK(terrace_shared_pointer(shared, TERRACE_NO_OFFSET) == NULL);
    terrace_shared_close(again);
    terrace_shared_close(shared);
    CHECK(terrace_shared_remove(name) == TERRACE_OK);
    CHECK(terrace_shared_open_fd(0, &shared) != TERRACE_OK);
    return 0;
}
