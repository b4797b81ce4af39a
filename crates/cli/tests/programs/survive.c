/* A counter in memory, and what can go wrong around it, by the first argument. */
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "terrace_crash.h"

static double x[1024];
static int done;

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "good";
    int restarted = getenv("TERRACE_CRASH_IMAGE") != NULL, it, i;
    double *object = x;
#define IS(name) (!strcmp(mode, name))
    if (IS("never"))
        return 0;
    if (IS("fails"))
        return 7;
    if (IS("freed"))
        object = mmap(NULL, sizeof x, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    critical_data(object, "double", IS("sizes") && restarted ? 512 : 1024);
    if (IS("overlap"))
        critical_data(x + 100, "double", 8);
    if (IS("unmapped"))
        critical_data((double *)4096, "double", 8);
    consistent_data(&done, "int", 1);
    if (restarted && IS("hangs"))
        for (;;)
            pause();
    if (restarted && IS("forks") && fork() == 0)
        for (;;)
            pause();
    if (restarted && IS("sessions") && fork() == 0) {
        setsid();
        for (;;)
            pause();
    }
    if (restarted && IS("dies"))
        raise(SIGSEGV);
    if (restarted && IS("writes")) {
        FILE *out = fopen(argv[2], "w");
        if (out) {
            fputs("written outside\n", out);
            fclose(out);
        }
    }
    crash_restore();
    write_back_invalidate_cache();
    start_crash();
    if (IS("one")) {
        end_crash();
        return 0;
    }
    for (it = done + 1; it <= 10; it++) {
        for (i = 0; i < 1024; i++)
            object[i] += 1;
        done = it;
        cache_line_write_back(&done);
        if (IS("inside") && it == 5)
            return 0;
        if (IS("freed") && it == 5) {
            munmap(object, sizeof x);
            object = x;
        }
    }
    end_crash();
    for (i = 0; i < 1024; i++)
        if (object[i] != 10 && !IS("freed"))
            return 1;
    return 0;
}
