/* Sets the trap flag around ten no-ops, then checks alignment at a word that lies across; prints
 * how
   many signals came. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

static volatile int traps, faults;

static void trapped(int signal, siginfo_t *info, void *user)
{
    (void)signal, (void)info, (void)user;
    traps++;
}

static void misaligned(int signal, siginfo_t *info, void *user)
{
    (void)signal, (void)info;
    faults++;
    ((ucontext_t *)user)->uc_mcontext.gregs[REG_EFL] &= ~0x40000l;
}

int main(void)
{
    static char bytes[32] __attribute__((aligned(16)));
    struct sigaction on_trap = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
    struct sigaction on_fault = { .sa_sigaction = misaligned, .sa_flags = SA_SIGINFO };
    sigaction(SIGTRAP, &on_trap, NULL);
    sigaction(SIGBUS, &on_fault, NULL);
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq\n"
                     "nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop\n"
                     "pushfq\n andq $~0x100, (%%rsp)\n popfq\n" : : : "memory", "cc");
    __asm__ volatile("pushfq\n orq $0x40000, (%%rsp)\n popfq\n"
                     "movl %0, %%eax\n"
                     "pushfq\n andq $~0x40000, (%%rsp)\n popfq\n"
                     : : "m"(bytes[1]) : "rax", "memory", "cc");
    printf("%d traps, %d faults\n", traps, faults);
    return 5;
}
