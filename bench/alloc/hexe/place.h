/* Where the arrays of the experiments come from: malloc, memkind or libterrace, said on the command
 * line. The computing is the same program text, and the same binary, for all of them. */
#ifndef HEXE_PLACE_H
#define HEXE_PLACE_H
#include <stddef.h>

/* "malloc", "terrace", "arena:NODE[,NODE...]" (one arena that spills from each node to the next) or
 * "memkind:KIND[,KIND...]": a kind for each array in order, the last one for the rest. */
void place_open(const char *how);
/* Memory whose bytes are expected to be read and written so often, of this priority; ends the
 * program if there is none. */
void *place_array(const char *name, size_t bytes, unsigned priority, double reads, double writes);
/* All arrays have been asked for, none has been touched. */
void place_commit(void);
/* One line for each array: the share of its pages on each node, from the kernel. */
void place_show(void);
/* Starts as many OpenMP threads, each bound to the CPU of its number. */
void place_threads(int threads);
/* The marks between which the lab measures; no-ops elsewhere. */
void place_mark_begin(void);
void place_mark_end(void);
/* Seconds of the machine's own clock. */
double place_now(void);
#endif
