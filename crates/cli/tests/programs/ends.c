/* Threads that count their own increments until something ends them: ends FILE HOW THREADS. FILE
   holds the counts, 64 bytes apart, and is mapped at 0x600000000000, so that a recording can be
   compared with them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *counts;

static void *count_for_ever(void *which)
{
    for (;;)
        __asm__ volatile("incq (%0)" : : "r"(counts + 64 * (long)which) : "memory", "cc");
}

static void *count_a_while(void *which)
{
    usleep(1500000);
    for (int i = 0; i < 50000; i++)
        __asm__ volatile("incq (%0)" : : "r"(counts + 64 * (long)which) : "memory", "cc");
    return NULL;
}

static void *start_another(void *unused)
{
    usleep(30000);
    execl("/bin/true", "true", (char *)NULL);
    return unused;
}

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    const char *how = argv[2];
    pthread_t thread;
    if (argc != 4 || ftruncate(fd, 4096) != 0)
        return 1;
    counts = mmap((void *)0x600000000000, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                  0);
    void *(*work)(void *) = strcmp(how, "leave") ? count_for_ever : count_a_while;
    for (long i = 0; i < atoi(argv[3]); i++)
        pthread_create(&thread, NULL, work, (void *)i);
    if (!strcmp(how, "leave"))
        pthread_exit(NULL);
    /* All of them count: only stores are compared, and these are loads. */
    for (int i = 0; i < atoi(argv[3]); i++)
        while (!*(volatile long *)(counts + 64 * i))
            usleep(1000);
    if (!strcmp(how, "exec")) {
        pthread_create(&thread, NULL, start_another, NULL);
        pause();
    }
    usleep(30000);
    if (!strcmp(how, "exit"))
        exit(3);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    abort();
}
