/* What malloc(3) promises, tried: prints the same under any allocator that keeps it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;
#define CHECK(x) do { if (!(x)) { printf("FAILED line %d: %s\n", __LINE__, #x); failed = 1; } } while (0)

static volatile size_t big = SIZE_MAX;
static void *at_exit_block;
static void at_exit(void) { char *more = malloc(100); strcpy(more, "bye"); free(at_exit_block);
    puts(more); free(more); }

static pthread_key_t key;
static void destroyed(void *block) { free(block); void *p = malloc(50); free(p); }
static void *keyed(void *unused) { (void)unused; pthread_setspecific(key, malloc(64));
    return malloc(32); }

static volatile sig_atomic_t handled;
static void handler(int s) { (void)s; void *p = malloc(200); if (p) memset(p, 1, 200); free(p);
    handled++; }

static void *churn(void *stop) {
    while (!*(volatile int *)stop)
        for (int i = 1; i < 200; i++) { char *p = malloc(i * 37); p[0] = 1; free(p); }
    return NULL;
}

int main(void) {
    at_exit_block = malloc(1000);
    atexit(at_exit);

    void *a = malloc(0), *b = malloc(0);
    CHECK(a && b && a != b);
    free(a); free(b); free(NULL);

    errno = 77;
    free(malloc(100000)); free(malloc(10)); free(calloc(3, 5)); free(realloc(malloc(5), 500));
    CHECK(errno == 77);
    errno = 0; CHECK(!malloc(big) && errno == ENOMEM);
    errno = 0; CHECK(!malloc(big / 2 + 1) && errno == ENOMEM);
    errno = 0; CHECK(!calloc(big / 2, 3) && errno == ENOMEM);
    errno = 0; CHECK(!reallocarray(NULL, big / 2, 3) && errno == ENOMEM);
    char *kept = malloc(10); strcpy(kept, "kept");
    errno = 0; CHECK(!realloc(kept, big) && errno == ENOMEM && !strcmp(kept, "kept"));
    CHECK(realloc(kept, 0) == NULL);

    void *m = (void *)1; errno = 5;
    CHECK(posix_memalign(&m, 3, 10) == EINVAL && posix_memalign(&m, 4, 10) == EINVAL && m ==
        (void *)1);
    CHECK(posix_memalign(&m, 64, big) == ENOMEM);
    for (size_t align = 8; align <= 1 << 21; align *= 2)
        for (size_t size = 0; size < 300000; size = size * 3 + 1) {
            CHECK(!posix_memalign(&m, align, size) && (uintptr_t)m % align == 0 &&
                malloc_usable_size(m) >= size);
            memset(m, 1, size);
            m = realloc(m, size + 100);
            CHECK(m); free(m);
        }
    CHECK((uintptr_t)(a = memalign(48, 100)) % 64 == 0); free(a);
    CHECK((uintptr_t)(a = aligned_alloc(4096, 4096)) % 4096 == 0); free(a);
    CHECK((uintptr_t)(a = valloc(10)) % 4096 == 0); free(a);
    CHECK((uintptr_t)(a = pvalloc(10)) % 4096 == 0 && malloc_usable_size(a) >= 4096); free(a);
    CHECK(malloc_usable_size(NULL) == 0);
    unsigned char *z = malloc(5000000); memset(z, 255, 5000000); free(z);
    z = calloc(5000000, 1); int sum = 0; for (int i = 0; i < 5000000; i++) sum += z[i];
        CHECK(sum == 0); free(z);

    pthread_key_create(&key, destroyed);
    for (int i = 0; i < 50; i++) { pthread_t t; void *r; pthread_create(&t, NULL, keyed, NULL);
        pthread_join(t, &r); free(r); }

    void *lib = dlopen("libm.so.6", RTLD_NOW); CHECK(lib && dlsym(lib, "cos")); dlclose(lib);

    int stop = 0; pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, churn, &stop);
    fflush(stdout);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) { for (int j = 0; j < 100; j++) free(malloc(j * 100)); _exit(7); }
        int status; waitpid(child, &status, 0); CHECK(WIFEXITED(status) && WEXITSTATUS(status) ==
            7);
    }
    stop = 1; for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);

#ifdef IN_HANDLERS
    /* glibc would wait for itself here now and then, so this part runs under our library alone. */
    struct sigaction act = {.sa_handler = handler}; sigaction(SIGALRM, &act, NULL);
    struct itimerval often = {{0, 200}, {0, 200}}; setitimer(ITIMER_REAL, &often, NULL);
    char *live[64] = {0};
    for (unsigned i = 0; handled < 500; i++) {
        int at = i * 7 % 64; size_t size = 16 + i * 31 % 9000;
        if (live[at]) { CHECK(*live[at] == at); }
        free(live[at]); live[at] = malloc(size); memset(live[at], at, size);
    }
    struct itimerval never = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &never, NULL);
#endif
    (void)handler;
    puts(failed ? "failed" : "all kept");
    return failed;
}
