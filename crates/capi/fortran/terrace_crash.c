/* What terrace_crash.f90 calls: the header's inline functions as real ones. */
#include "terrace_crash.h"

void terrace_crash_write_back(const void *pointer)
{
    cache_line_write_back(pointer);
}

void terrace_crash_flush(const void *pointer)
{
    flush_cache_line(pointer);
}

void terrace_crash_flush_all(void)
{
    write_back_invalidate_cache();
}

#define PHASE(number) case number: crash_phase(number); break

void terrace_crash_phase(int number)
{
    switch (number) {
    PHASE(1); PHASE(2); PHASE(3); PHASE(4); PHASE(5);
    PHASE(6); PHASE(7); PHASE(8); PHASE(9); PHASE(10);
    PHASE(11); PHASE(12); PHASE(13); PHASE(14); PHASE(15);
    default: terrace_crash_fail_("is no phase from 1 to 15", "crash_phase");
    }
}

void terrace_crash_name(int64_t kind, const char *name, const void *pointer, const char *type,
                        int64_t count)
{
    terrace_crash_object_((uint32_t)kind, name, pointer, type, (uint64_t)count);
}
