/* Handlers: sent, faulting, nested, on another stack, across threads and waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t count, nested;
static sigjmp_buf back;
static char stack[65536];
static char *page;

static void counts(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	count += signal == SIGUSR1 && info->si_signo == SIGUSR1 && info->si_pid == getpid();
	count += user->uc_mcontext.__gregs[0] != 0;
	if (!nested++)
		raise(SIGUSR2);
}

static void after(int signal)
{
	count += 100 * (signal == SIGUSR2);
}

static void jumps(int signal, siginfo_t *info, void *context)
{
	char here;
	int other = &here >= stack && &here < stack + sizeof stack;
	printf("fault %d code %d at page %d, other stack %d\n", signal, info->si_code,
	       (char *)info->si_addr == page, other);
	siglongjmp(back, 1);
}

static void unprotects(int signal)
{
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
	count += signal == SIGSEGV;
}

static void *waits(void *set)
{
	(void)set;
	sigset_t none;
	sigemptyset(&none);
	int result = sigsuspend(&none);
	printf("suspend %d %d\n", result, errno == EINTR);
	return NULL;
}

static void set(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
	if (sigaction(signal, &action, NULL))
		perror("sigaction");
}

int main(void)
{
	double kept = 1.5;
	set(SIGUSR1, counts, 0);
	signal(SIGUSR2, after);
	raise(SIGUSR1);
	kill(getpid(), SIGUSR1);
	printf("%d %d %g\n", (int)count, (int)nested, kept);

	sigset_t mask, pending;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	raise(SIGUSR2);
	raise(SIGUSR2);
	sigpending(&pending);
	printf("pending %d, %d\n", sigismember(&pending, SIGUSR2), (int)count);
	sigprocmask(SIG_UNBLOCK, &mask, NULL);
	printf("taken once, %d\n", (int)count);

	stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
	sigaltstack(&other, NULL);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	set(SIGSEGV, jumps, SA_ONSTACK);
	if (!sigsetjmp(back, 1))
		*page = 1;
	munmap(page, 4096);
	if (!sigsetjmp(back, 1))
		printf("%d\n", *page);
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGSEGV, unprotects);
	*page = 7;
	printf("written %d\n", *page);

	sigprocmask(SIG_BLOCK, &mask, NULL);
	pthread_t thread;
	pthread_create(&thread, NULL, waits, NULL);
	for (int i = 0; i < 100000; i++)
		__asm__ volatile("");
	pthread_kill(thread, SIGUSR2);
	pthread_join(thread, NULL);
	printf("bad signal %d\n", kill(getpid(), 65) == -1 && errno == EINVAL);
	signal(SIGTERM, SIG_IGN);
	raise(SIGTERM);
	fflush(stdout);
	signal(SIGABRT, SIG_DFL);
	abort();
}
