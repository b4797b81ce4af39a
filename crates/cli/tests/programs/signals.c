/*
 * Signals as programs use them: timers, faults that are mended or jumped out of, registers changed
 * by handlers, other stacks, blocked and awaited ones, calls cut short and begun anew, threads,
 * children. Prints what came of each, which does not depend on time. Ends with status 4.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static volatile sig_atomic_t ticks, ended, told;
static sigjmp_buf back;
static char *volatile page;
static volatile int elsewhere, tell = -1;
static char other[65536];

static void on_tick(int s) { (void)s, ticks++; }
static void on_end(int s)
{
    (void)s, ended++;
    if (tell >= 0 && write(tell, "x", 1) != 1)
        _exit(1);
}
static void on_trap(int s) { (void)s, told += 1000; }

static void on_told(int s, siginfo_t *info, void *context)
{
    char here;
    (void)s, (void)context;
    told += info->si_value.sival_int + 1;
    elsewhere = &here >= other && &here < other + sizeof other;
}

static void on_segv(int s, siginfo_t *info, void *context)
{
    (void)s, (void)context;
    if ((char *)info->si_addr == page)
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
    else
        siglongjmp(back, (int)(long)info->si_addr);
}

static void on_division(int s, siginfo_t *info, void *context)
{
    (void)s, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RCX] = 2;
}

static void on_illegal(int s, siginfo_t *info, void *context)
{
    ucontext_t *c = context;
    (void)s, (void)info;
    c->uc_mcontext.gregs[REG_RIP] += 2;
    c->uc_mcontext.gregs[REG_R15] += 4710;
}

static void set(int number, void (*plain)(int), void (*full)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = { .sa_flags = flags | (full ? SA_SIGINFO : 0) };
    if (full)
        action.sa_sigaction = full;
    else
        action.sa_handler = plain;
    sigaction(number, &action, NULL);
}

static void *sleeper(void *nothing)
{
    long cut = 0;
    (void)nothing;
    for (int i = 0; i < 400 && cut < 5; i++) {
        struct timespec t = { 0, 5000000 };
        cut += nanosleep(&t, NULL) != 0 && errno == EINTR;
    }
    return (void *)(long)(cut == 5);
}

static void faults(void)
{
    unsigned long value;
    set(SIGSEGV, NULL, on_segv, 0);
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page[0] = 5;
    printf("mended %d\n", page[0]);
    int from = sigsetjmp(back, 1);
    if (!from)
        *(volatile int *)0x10 = 1;
    printf("stored at %d\n", from);
    from = sigsetjmp(back, 1);
    if (!from)
        ((void (*)(void))0x20)();
    printf("jumped to %d\n", from);
    set(SIGFPE, NULL, on_division, 0);
    __asm__ volatile("mov $10, %%eax; xor %%edx, %%edx; xor %%ecx, %%ecx; div %%rcx; mov %%rax, %0"
                     : "=r"(value) : : "rax", "rcx", "rdx");
    printf("divided %lu\n", value);
    set(SIGILL, NULL, on_illegal, 0);
    __asm__ volatile("mov $1, %%r15; ud2; mov %%r15, %0" : "=r"(value) : : "r15");
    printf("illegal %lu\n", value);
    set(SIGTRAP, on_trap, NULL, 0);
    __asm__ volatile("int3");
    printf("trapped %d\n", told);
}

static void masks(void)
{
    sigset_t some, before;
    struct sigaction now;
    stack_t stack = { .ss_sp = other, .ss_size = sizeof other };
    sigaltstack(&stack, NULL);
    set(SIGUSR1, NULL, on_told, SA_ONSTACK);
    told = 0;
    sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 41 });
    printf("told %d on another stack %d\n", told, elsewhere);
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigprocmask(SIG_BLOCK, &some, &before);
    told = 0;
    kill(getpid(), SIGUSR1);
    printf("blocked %d\n", told);
    sigsuspend(&before);
    printf("awaited %d\n", told != 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGUSR1, NULL, &now);
    printf("action %d\n", now.sa_sigaction == on_told && now.sa_flags & SA_ONSTACK);
}

static void children(void)
{
    int ends[2], go[2], status;
    char byte, line[64], *arguments[] = { "echo", "spawned", NULL };
    struct sigaction now;
    pid_t child, second;
    set(SIGCHLD, on_end, NULL, SA_RESTART);
    if (pipe(ends) != 0 || pipe(go) != 0)
        exit(1);
    tell = go[1];
    if (!(child = fork())) {
        usleep(20000);
        _exit(7);
    }
    if (!(second = fork())) {
        /* Once the parent was told of the first one's end. */
        _exit(read(go[0], &byte, 1) != 1 || write(ends[1], "x", 1) != 1);
    }
    ssize_t got = read(ends[0], &byte, 1);
    tell = -1;
    printf("read %zd though a child ended %d\n", got, ended > 0);
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
    waitpid(second, &status, 0);
    int error = posix_spawn(&child, "/bin/echo", NULL, NULL, arguments, environ);
    waitpid(child, &status, 0);
    printf("spawned with %d\n", error);
    printf("and %d\n", posix_spawn(&child, "/bin/there-is-none", NULL, NULL, arguments, environ));
    printf("shell %d\n", WEXITSTATUS(system("exit 9")));
    FILE *pipe = popen("echo piped", "r");
    printf("%s", pipe && fgets(line, sizeof line, pipe) ? line : "nothing\n");
    if (pipe)
        pclose(pipe);
    sigaction(SIGUSR1, NULL, &now);
    printf("action still %d\n", now.sa_sigaction == on_told);
    if (!fork()) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile int *)0 = 0;
    }
    wait(&status);
    printf("killed by %d\n", WTERMSIG(status));
    if (!fork())
        abort();
    wait(&status);
    printf("aborted by %d\n", WTERMSIG(status));
}

int main(void)
{
    struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
    double half = 1, sum = 0;
    setbuf(stdout, NULL);
    set(SIGALRM, on_tick, NULL, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    while (ticks < 30)
        for (int i = 0; i < 1000; i++)
            sum += (half = half * 0.5 + 0.5);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("half %g %d\n", half, sum > 0);
    faults();
    masks();
    children();
    pthread_t thread;
    void *result = NULL;
    set(SIGUSR2, on_tick, NULL, 0);
    pthread_create(&thread, NULL, sleeper, NULL);
    for (int i = 0; i < 400 && pthread_tryjoin_np(thread, &result) != 0; i++) {
        struct timespec t = { 0, 3000000 };
        pthread_kill(thread, SIGUSR2);
        nanosleep(&t, NULL);
    }
    printf("thread %ld\n", (long)result);
    return 4;
}
