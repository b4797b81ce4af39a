/* libterrace: memory by attributes on machines with more than one kind of it.
 * Made by cbindgen from crates/capi/src; do not edit. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Handles come first and are opaque. Functions that can fail return 0 or a negative TERRACE_E_*;
 * terrace_last_error() has the thread's last error in full. */

#ifndef TERRACE_H
#define TERRACE_H

#include <stddef.h>
#include <stdint.h>

/*
 Done.
 */
#define TERRACE_OK 0

/*
 An argument means nothing: a null pointer, an unknown constant, a split that divides nothing.
 */
#define TERRACE_E_INVALID -1

/*
 The machine has no such class or index.
 */
#define TERRACE_E_NO_CLASS -2

/*
 Local memory was asked for by a thread that is not bound, or of a class that is elsewhere.
 */
#define TERRACE_E_NOT_LOCAL -3

/*
 No room where the memory may lie.
 */
#define TERRACE_E_NO_ROOM -4

/*
 The address was not allocated here, or was freed before.
 */
#define TERRACE_E_NOT_OURS -5

/*
 More than can be addressed.
 */
#define TERRACE_E_TOO_LARGE -6

/*
 A variable of the environment cannot be read.
 */
#define TERRACE_E_ENVIRONMENT -7

/*
 The machine cannot be read or ranked.
 */
#define TERRACE_E_MACHINE -8

/*
 The kernel refused.
 */
#define TERRACE_E_KERNEL -9

/*
 A mistake in Terrace itself.
 */
#define TERRACE_E_INTERNAL -10

/*
 The driver of CUDA refused.
 */
#define TERRACE_E_CUDA -20

/*
 The fastest class of memory.
 */
#define TERRACE_CLASS_FASTEST 0

/*
 The slowest class of memory; -2 is the one before it.
 */
#define TERRACE_CLASS_SLOWEST -1

/*
 CUDA managed memory, one address for CPUs and GPUs; its indices are GPUs. Not in the ranking: it
 is asked for by name.
 */
#define TERRACE_CLASS_CUDA_MANAGED 16384

/*
 All nodes of a class.
 */
#define TERRACE_INDEX_ALL -1

/*
 The nodes of a class near the calling thread.
 */
#define TERRACE_INDEX_LOCAL -2

/*
 The kernel chooses the node of each page.
 */
#define TERRACE_SPLIT_OS 0

/*
 As much as there is room for in the first class, then the next.
 */
#define TERRACE_SPLIT_SPILL_OVER 1

/*
 Contiguous parts of equal size, one a node.
 */
#define TERRACE_SPLIT_EQUAL 2

/*
 Bound when allocated.
 */
#define TERRACE_BIND_IMMEDIATE 0

/*
 Bound when committed.
 */
#define TERRACE_BIND_ON_COMMIT 1

/*
 What cannot be as asked is an error; what is accepted is reserved.
 */
#define TERRACE_MISMATCH_ERROR 0

/*
 Other memory will do.
 */
#define TERRACE_MISMATCH_FALLBACK 1

/*
 Huge pages for 2 MiB and more; for 8 MiB a node and more where several nodes serve a class.
 */
#define TERRACE_PAGES_AUTO 0

/*
 Base pages.
 */
#define TERRACE_PAGES_BASE 1

/*
 Huge pages.
 */
#define TERRACE_PAGES_HUGE 2

/*
 Lifetime not told.
 */
#define TERRACE_LIFETIME_UNKNOWN 0

/*
 Freed soon.
 */
#define TERRACE_LIFETIME_SHORT 1

/*
 Kept until the end.
 */
#define TERRACE_LIFETIME_LONG 2

/*
 Weighs allocations since the last commit.
 */
#define TERRACE_COMMIT_EPOCH 0

/*
 Weighs all allocations that are bound on commit.
 */
#define TERRACE_COMMIT_ALL 1

/*
 The arena was destroyed before.
 */
#define TERRACE_E_DESTROYED -11

/*
 The arena is moving already, or the thread is inside the allocator already (a signal handler).
 */
#define TERRACE_E_BUSY -12

/*
 The move left pages behind; with TERRACE_MOVE_STRICT what moved was brought back.
 */
#define TERRACE_E_INCOMPLETE -13

/*
 The move was cancelled.
 */
#define TERRACE_E_CANCELLED -14

/*
 Not ended yet.
 */
#define TERRACE_E_AGAIN -15

/*
 These nodes while they have room, then the nearest. No nodes: wherever the touching thread's
 policy says.
 */
#define TERRACE_DEVICES_PREFER 0

/*
 These nodes and no others: a page touched when they are full gets the process killed.
 */
#define TERRACE_DEVICES_ONLY 1

/*
 These nodes in turn, page by page.
 */
#define TERRACE_DEVICES_INTERLEAVE 2

/*
 The first node until it is full, then the second, and so on.
 */
#define TERRACE_DEVICES_SPILL 3

/*
 Flag: ask for huge pages.
 */
#define TERRACE_ARENA_HUGE 1

/*
 Every page that can be moved is.
 */
#define TERRACE_MOVE_PARTIAL 0

/*
 All pages or none.
 */
#define TERRACE_MOVE_STRICT 1

/*
 A file that is no shared arena, or of another version.
 */
#define TERRACE_E_NOT_SHARED -16

/*
 A process ended while it put a shared arena right after another's death: it is to be created
 anew.
 */
#define TERRACE_E_LOST -17

/*
 No offset.
 */
#define TERRACE_NO_OFFSET UINT64_MAX

/*
 The kernel gave a value other than 0 for a block, or what gives the blocks one below 0;
 `failed_block` of the report is the block's number.
 */
#define TERRACE_E_STAGE -18

/*
 A model divides the threads and decides whether to stage at all; adapted while running.
 */
#define TERRACE_STAGE_AUTO 0

/*
 As told, whether staging pays or not.
 */
#define TERRACE_STAGE_FIXED 1

/*
 All threads run the kernel where the data lies.
 */
#define TERRACE_STAGE_IN_PLACE 2

/*
 The store of far memory cannot be made, or failed for a part; what it did not take stays in
 memory.
 */
#define TERRACE_E_STORE -19

/*
 It will be needed: fetch it, as far as there is room without evicting anything.
 */
#define TERRACE_FAR_WILL_NEED 0

/*
 It is not needed for a while: out of memory with it.
 */
#define TERRACE_FAR_COLD 1

/*
 Its content is of no use any more: zeros from now on.
 */
#define TERRACE_FAR_DISCARD 2

/*
 An arena. The handle of a destroyed arena is answered with TERRACE_E_DESTROYED, always.
 */
typedef struct terrace_arena terrace_arena;

/*
 What an allocation asks for. Not to be changed by two threads at once.
 */
typedef struct terrace_attr terrace_attr;

/*
 A range of far memory. Any thread may use it, and its memory.
 */
typedef struct terrace_far terrace_far;

/*
 Memory of this machine by class. All functions on it may be called by several threads at once.
 */
typedef struct terrace_memory terrace_memory;

/*
 A move under way. Used by one thread at a time.
 */
typedef struct terrace_move terrace_move;

/*
 What a commit did. Reading it by several threads is fine.
 */
typedef struct terrace_report terrace_report;

/*
 An arena that other processes have too, as this process has it. All functions on it may be
 called by several threads at once.
 */
typedef struct terrace_shared terrace_shared;

/*
 How to stage. Changed by one thread at a time; used by any number.
 */
typedef struct terrace_stage terrace_stage;

/*
 One allocation in a report. Texts live as long as the report.
 */
typedef struct {
  /*
   Name it was given; may be empty.
   */
  const char *name;
  /*
   Its address.
   */
  void *address;
  /*
   Bytes, in whole pages.
   */
  uint64_t size_bytes;
  /*
   The class preferred.
   */
  int wanted_class;
  /*
   1: strict, and without room; nothing was bound.
   */
  int refused;
  /*
   Bytes that were touched before and were moved.
   */
  uint64_t moved_bytes;
  /*
   Bytes that should have moved and that the kernel left.
   */
  uint64_t stayed_bytes;
  /*
   Bytes that were made present at once.
   */
  uint64_t populated_bytes;
  /*
   What binding, moving and populating took.
   */
  uint64_t cost_ns;
  /*
   Why it is so.
   */
  const char *why;
} terrace_row;

/*
 How a GPU is used: what terrace_memory_gpu tells.
 */
typedef struct {
  /*
   What the driver calls it.
   */
  char name[96];
  /*
   Its number in the driver's order.
   */
  int number;
  /*
   The node it is attached to; -1 where firmware does not say.
   */
  int node;
  /*
   Memory it has.
   */
  uint64_t total_bytes;
  /*
   Of that free, all processes counted.
   */
  uint64_t free_bytes;
  /*
   Bytes of this handle that are at home there.
   */
  uint64_t bound_bytes;
  /*
   Allocations that these are of.
   */
  uint64_t blocks;
  /*
   Bit N: the GPU of number N can access its memory. Of the first 64.
   */
  uint64_t peers;
} terrace_gpu;

/*
 What became of an arena's pages (base pages).
 */
typedef struct {
  /*
   Pages with memory that the arena had.
   */
  uint64_t pages;
  /*
   On the right nodes before.
   */
  uint64_t already;
  /*
   Moved now.
   */
  uint64_t moved;
  /*
   Still elsewhere.
   */
  uint64_t stayed;
} terrace_moved;

/*
 What a shared arena holds.
 */
typedef struct {
  /*
   Bytes for blocks.
   */
  uint64_t size_bytes;
  /*
   Bytes of blocks, in steps of 64.
   */
  uint64_t used_bytes;
  /*
   Blocks that are allocated.
   */
  uint64_t blocks;
  /*
   Bytes that have memory.
   */
  uint64_t backed_bytes;
  /*
   How often a process died inside the arena.
   */
  uint64_t recovered;
} terrace_shared_figures;

/*
 A block: `bytes` from `offset` of the data.
 */
typedef struct {
  /*
   Where it begins.
   */
  size_t offset;
  /*
   How long it is; 0 is a block too.
   */
  size_t bytes;
} terrace_block;

/*
 Works on block number `block`, whose `bytes` bytes are at `at` for the time of the call: in the
 data itself or in a copy that begins at a page. Called by several threads at once, each with
 another block. 0 goes on, anything else ends the run. It does not unwind: a C++ exception may
 not leave it.
 */
typedef int (*terrace_stage_kernel)(size_t block, void *at, size_t bytes, void *user);

/*
 What was done.
 */
typedef struct {
  /*
   1: blocks went through fast memory; 0: the kernel ran in place, and `why` says why.
   */
  int staged;
  /*
   Threads in all.
   */
  uint32_t threads;
  /*
   Threads that copied, at the end.
   */
  uint32_t migrators;
  /*
   Buffers.
   */
  uint32_t slots;
  /*
   Bytes copied to fast memory.
   */
  uint64_t brought_bytes;
  /*
   Bytes copied back.
   */
  uint64_t returned_bytes;
  /*
   Times that a thread waited because no block was ready.
   */
  uint64_t stalls;
  /*
   How long, all threads together.
   */
  uint64_t stalled_ns;
  /*
   From begin to end.
   */
  uint64_t took_ns;
  /*
   The block whose kernel failed, with TERRACE_E_STAGE.
   */
  size_t failed_block;
  /*
   With TERRACE_E_STAGE: 1: that block is as it was; 0: it was worked on in place and may be
   half done.
   */
  int intact;
  /*
   Why it ran in place; empty where it did not. Cut where it is longer.
   */
  char why[160];
  /*
   Bytes that were worked on where they lay though they should have come: with
   `terrace_stage_keep_addresses`, pages that the kernel did not move and those that a block
   shares with others.
   */
  uint64_t stayed_bytes;
} terrace_staged;

/*
 Gives the next block: 1, and `block` is filled; 0: there are no more; below 0 ends the run with
 TERRACE_E_STAGE. Called by one thread at a time, not always the same, while kernels run; not
 called again after its end. It does not unwind.
 */
typedef int (*terrace_stage_next)(terrace_block *block, void *user);

/*
 What a range of far memory did so far.
 */
typedef struct {
  /*
   Faults told by the kernel.
   */
  uint64_t faults;
  /*
   Of them, those that waited for the store.
   */
  uint64_t misses;
  /*
   Of them, those that found their page fetched ahead, or on its way.
   */
  uint64_t hits;
  /*
   Bytes read from the store.
   */
  uint64_t read_bytes;
  /*
   Bytes written to the store.
   */
  uint64_t written_bytes;
  /*
   Bytes read ahead of need.
   */
  uint64_t ahead_bytes;
  /*
   Of them, bytes thrown away untouched.
   */
  uint64_t wasted_bytes;
  /*
   Writes that failed; their data stayed in memory.
   */
  uint64_t write_failures;
  /*
   Bytes in memory now.
   */
  uint64_t resident_bytes;
  /*
   Bytes that cannot be read back; who touches them gets SIGBUS.
   */
  uint64_t lost_bytes;
  /*
   Memory in which the store keeps data, beside `resident_bytes`.
   */
  uint64_t store_bytes;
} terrace_far_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What a code means, in a few words; never null. The text lives as long as the program.
 */
const char *terrace_strerror(int code);

/*
 The calling thread's last error in full: what, on which target, why and what to try. Empty
 before the first. The text lives until the thread's next error.
 */
const char *terrace_last_error(void);

/*
 Version of the library, as in `0.1.0`.
 */
const char *terrace_version(void);

/*
 New attributes: the fastest class, all its nodes, fallback, bound at once, priority 1.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_attr_create(terrace_attr **out);

/*
 Gives attributes back; null is fine. Allocations made with them stay.

 # Safety
 `attr` is null or of `terrace_attr_create`, and is not used afterwards.
 */
void terrace_attr_destroy(terrace_attr *attr);

/*
 Adds a class and one index of it (or TERRACE_INDEX_ALL, TERRACE_INDEX_LOCAL); the first one
 named is preferred.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_add_class(terrace_attr *attr, int class_id, int index);

/*
 Sets the split: one of TERRACE_SPLIT_*.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_split(terrace_attr *attr, int split);

/*
 Splits into runs of `pages` base pages, one node after the other in turn.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_chunk(terrace_attr *attr, uint64_t pages);

/*
 Splits into contiguous parts in these proportions, one for each class added.

 # Safety
 `attr` is of `terrace_attr_create`; `weights` points to `count` numbers.
 */
int terrace_attr_set_weights(terrace_attr *attr, const uint32_t *weights, size_t count);

/*
 Sets when memory is bound: TERRACE_BIND_IMMEDIATE or TERRACE_BIND_ON_COMMIT.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_binding(terrace_attr *attr, int binding);

/*
 Sets what happens on a mismatch: TERRACE_MISMATCH_ERROR or TERRACE_MISMATCH_FALLBACK.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_mismatch(terrace_attr *attr, int mismatch);

/*
 Sets the weight in a commit; 1 unless set.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_priority(terrace_attr *attr, uint32_t priority);

/*
 Sets expected reads and writes of each byte, in any unit that is the same for all allocations; 1
 and 1 unless set.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_intensity(terrace_attr *attr, double reads, double writes);

/*
 Sets the pages behind the memory: one of TERRACE_PAGES_*.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_pages(terrace_attr *attr, int pages);

/*
 Sets how long the memory is kept: one of TERRACE_LIFETIME_*.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_lifetime(terrace_attr *attr, int lifetime);

/*
 Whether the memory lies in one class whole (1) or may be divided (0); unless set, what is below
 2 MiB lies whole.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_whole(terrace_attr *attr, int whole);

/*
 CUDA managed memory: whether pages are brought to their GPU when they are bound (1) or by
 whoever touches them first (0, unless set). Other memory takes no notice.

 # Safety
 `attr` is of `terrace_attr_create`.
 */
int terrace_attr_set_prefetch(terrace_attr *attr, int prefetch);

/*
 Sets what reports call the allocation; the text is copied.

 # Safety
 `attr` is of `terrace_attr_create`; `name` is null or a C string.
 */
int terrace_attr_set_name(terrace_attr *attr, const char *name);

/*
 Number of rows; 0 for null.

 # Safety
 `report` is null or of a function that returns one, and not destroyed.
 */
size_t terrace_report_count(const terrace_report *report);

/*
 Reads row `at`, counted from 0.

 # Safety
 As for `terrace_report_count`; `out` points to a writable row.
 */
int terrace_report_row(const terrace_report *report, size_t at, terrace_row *out);

/*
 Bytes of row `at` in a class; 0 for what there is not.

 # Safety
 As for `terrace_report_count`.
 */
uint64_t terrace_report_got(const terrace_report *report, size_t at, int class_id);

/*
 The objective that was reached, and the bound that no placement exceeds; either pointer may be
 null.

 # Safety
 As for `terrace_report_count`; the pointers are null or writable.
 */
int terrace_report_value(const terrace_report *report, double *value, double *bound);

/*
 Gives a report back; null is fine.

 # Safety
 `report` is null or of a function that returns one, and is not used afterwards, nor are its
 texts.
 */
void terrace_report_destroy(terrace_report *report);

/*
 Reads the machine (or what TERRACE_MACHINE, TERRACE_CLASSES and TERRACE_RANK_BY say) and makes a
 handle.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_memory_create(terrace_memory **out);

/*
 Gives the handle and all memory allocated through it back; null is fine.

 # Safety
 `memory` is null or of `terrace_memory_create`; neither it nor memory of it is used afterwards.
 */
void terrace_memory_destroy(terrace_memory *memory);

/*
 Number of classes in the ranking of this machine; a negative code on error.

 # Safety
 `memory` is of `terrace_memory_create`.
 */
int terrace_memory_class_count(const terrace_memory *memory);

/*
 Number of nodes of a class (its indices count up to it), of TERRACE_CLASS_CUDA_MANAGED the
 number of GPUs; a negative code on error. Where there is no CUDA, `terrace_last_error` says why.

 # Safety
 `memory` is of `terrace_memory_create`.
 */
int terrace_memory_class_nodes(const terrace_memory *memory, int class_id);

/*
 How the GPU with this index of TERRACE_CLASS_CUDA_MANAGED is used. The driver sets itself up
 there for it, which takes some hundred megabytes of its memory.

 # Safety
 `memory` is of `terrace_memory_create`; `out` points to a writable structure.
 */
int terrace_memory_gpu(const terrace_memory *memory, int index, terrace_gpu *out);

/*
 Allocates `size` bytes as `attr` asks (null: the defaults). They are zeroed, at a page's
 address, at a huge page's for 2 MiB and more. CUDA managed memory is not cleared: its driver
 promises no zeros. On error `*out` is null.

 # Safety
 `memory` is of `terrace_memory_create`, `attr` null or of `terrace_attr_create`; `out` points to
 a writable pointer.
 */
int terrace_memory_alloc(const terrace_memory *memory,
                         size_t size,
                         const terrace_attr *attr,
                         void **out);

/*
 Gives memory back; null is fine.

 # Safety
 `memory` is of `terrace_memory_create`. What was allocated at `address` is not used afterwards.
 */
int terrace_memory_free(const terrace_memory *memory, void *address);

/*
 Weighs allocations that are bound on commit and places them: TERRACE_COMMIT_EPOCH or
 TERRACE_COMMIT_ALL. With `report` not null, `*report` says what each got; give it back with
 `terrace_report_destroy`. Where strict allocations were refused the rest is placed, the report
 is made, and TERRACE_E_NO_ROOM is returned.

 # Safety
 `memory` is of `terrace_memory_create`; `report` is null or points to a writable pointer.
 */
int terrace_memory_commit(const terrace_memory *memory, int scope, terrace_report **report);

/*
 Says where the bytes of one allocation are, as a report of one row.

 # Safety
 As for `terrace_memory_commit`.
 */
int terrace_memory_describe(const terrace_memory *memory,
                            const void *address,
                            terrace_report **report);

/*
 The address of the allocation that holds `address`; null where there is none.

 # Safety
 `memory` is of `terrace_memory_create`.
 */
void *terrace_memory_lookup(const terrace_memory *memory, const void *address);

/*
 Makes an arena of at most `limit` bytes (0: as much as there is) on `count` nodes, used as `how`
 says (TERRACE_DEVICES_*), with TERRACE_ARENA_* in `flags`. `name` may be null.

 # Safety
 `nodes` points to `count` numbers (null with 0); `name` is null or a C string; `out` points to a
 writable pointer.
 */
int terrace_arena_create(uint64_t limit,
                         int how,
                         const uint32_t *nodes,
                         size_t count,
                         uint32_t flags,
                         const char *name,
                         terrace_arena **out);

/*
 Ends an arena: all its blocks are gone. A move under way is cancelled and waited for.

 # Safety
 No block of it is used any more, and no other thread allocates from it or frees into it
 meanwhile.
 */
int terrace_arena_destroy(terrace_arena *arena);

/*
 A block of at least `size` bytes, aligned to 16, content undefined; null on error (see
 `terrace_last_error`).

 # Safety
 `arena` is of `terrace_arena_create`.
 */
void *terrace_arena_alloc(terrace_arena *arena, size_t size);

/*
 A block of at least `size` bytes at a multiple of `align`, a power of two; null on error.

 # Safety
 `arena` is of `terrace_arena_create`.
 */
void *terrace_arena_aligned(terrace_arena *arena, size_t align, size_t size);

/*
 A zeroed block of `count` times `size` bytes; null on error, also when the product overflows.

 # Safety
 `arena` is of `terrace_arena_create`.
 */
void *terrace_arena_calloc(terrace_arena *arena, size_t count, size_t size);

/*
 Gives a block another size, in its own arena; null on error, and the block is as it was. With a
 null `block`, a new one of `arena`.

 # Safety
 `block` is null or a block that the caller alone uses; it is gone when another pointer is
 returned.
 */
void *terrace_arena_realloc(terrace_arena *arena, void *block, size_t size);

/*
 Frees a block of any arena, by its pointer alone; null is fine.

 # Safety
 `block` is not used any more.
 */
int terrace_arena_free(void *block);

/*
 The arena that an address lies in, whether a block is there or not; null: in none.
 */
terrace_arena *terrace_arena_lookup(const void *address);

/*
 Writes the handles of at most `most` arenas to `out`, and returns how many there are.

 # Safety
 `out` points to `most` writable pointers (null with 0).
 */
size_t terrace_arena_list(terrace_arena **out, size_t most);

/*
 Moves the whole arena to other nodes; allocating and freeing go on meanwhile. `moved` may be
 null.

 # Safety
 As for `terrace_arena_create`; `moved` is null or writable.
 */
int terrace_arena_set_device(terrace_arena *arena,
                             int how,
                             const uint32_t *nodes,
                             size_t count,
                             int strict,
                             terrace_moved *moved);

/*
 As `terrace_arena_set_device`, by a thread of its own. `*out` is to be ended with
 `terrace_move_wait`.

 # Safety
 As for `terrace_arena_create`.
 */
int terrace_arena_set_device_async(terrace_arena *arena,
                                   int how,
                                   const uint32_t *nodes,
                                   size_t count,
                                   int strict,
                                   terrace_move **out);

/*
 How far a move is: base pages looked at and in all (0 until counted). TERRACE_OK when it has
 ended, else TERRACE_E_AGAIN.

 # Safety
 `moving` is of `terrace_arena_set_device_async`; the pointers are null or writable.
 */
int terrace_move_poll(const terrace_move *moving, uint64_t *done, uint64_t *total);

/*
 Asks a move to end after the batch that it is at.

 # Safety
 `moving` is of `terrace_arena_set_device_async`.
 */
int terrace_move_cancel(const terrace_move *moving);

/*
 Waits for the end of a move, gives its handle back and says what became of it, as
 `terrace_arena_set_device` does.

 # Safety
 `moving` is of `terrace_arena_set_device_async` and is not used afterwards; `moved` is null or
 writable.
 */
int terrace_move_wait(terrace_move *moving, terrace_moved *moved);

/*
 Makes an arena of `size_bytes` bytes that other processes can open: by `name` (as in `shm_open`,
 without the slash), or with a null name by its descriptor alone. Nodes and flags as for
 `terrace_arena_create`, without TERRACE_DEVICES_SPILL. Others see it whole or not at all.
 TERRACE_E_KERNEL: the name is taken, among others.

 # Safety
 `name` is null or a C string; `nodes` points to `count` numbers (null with 0); `out` points to a
 writable pointer.
 */
int terrace_shared_create(const char *name,
                          uint64_t size_bytes,
                          int how,
                          const uint32_t *nodes,
                          size_t count,
                          uint32_t flags,
                          terrace_shared **out);

/*
 Opens the shared arena of that name. Whoever may open it may write to all of it.

 # Safety
 `name` is a C string; `out` points to a writable pointer.
 */
int terrace_shared_open(const char *name, terrace_shared **out);

/*
 Opens the shared arena that a descriptor of `terrace_shared_fd` is of. The descriptor stays the
 caller's.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_shared_open_fd(int fd, terrace_shared **out);

/*
 Lets the arena go in this process; others keep it. Null is fine.

 # Safety
 `shared` is null or of a function that gives one; neither it nor a pointer into it is used
 afterwards in this process.
 */
void terrace_shared_close(terrace_shared *shared);

/*
 Takes a name away: nobody can open it any more, and its memory goes with the last process that
 has it.

 # Safety
 `name` is a C string.
 */
int terrace_shared_remove(const char *name);

/*
 Its descriptor, for `terrace_shared_open_fd` in other processes; it stays the arena's. Negative:
 an error's code.

 # Safety
 `shared` is of a function that gives one.
 */
int terrace_shared_fd(const terrace_shared *shared);

/*
 A block of at least `size` bytes at a multiple of `align` in every process (a power of two,
 65536 at most; blocks are aligned to 64 anyway), content undefined; null on error (see
 `terrace_last_error`).

 # Safety
 `shared` is of a function that gives one.
 */
void *terrace_shared_alloc(terrace_shared *shared, size_t size, size_t align);

/*
 Frees a block that any process allocated; null is fine.

 # Safety
 `shared` is of a function that gives one; `block` is not used any more, in any process.
 */
int terrace_shared_free(terrace_shared *shared, void *block);

/*
 What other processes know an address by; TERRACE_NO_OFFSET: it is not in this arena.

 # Safety
 `shared` is of a function that gives one.
 */
uint64_t terrace_shared_offset(const terrace_shared *shared, const void *address);

/*
 Where an offset is in this process; null: beyond the arena.

 # Safety
 `shared` is of a function that gives one.
 */
void *terrace_shared_pointer(const terrace_shared *shared, uint64_t offset);

/*
 Keeps one offset for all to find, as the way into what is shared (TERRACE_NO_OFFSET: none).

 # Safety
 `shared` is of a function that gives one.
 */
int terrace_shared_set_root(terrace_shared *shared, uint64_t offset);

/*
 The offset that was kept last; TERRACE_NO_OFFSET: none.

 # Safety
 `shared` is of a function that gives one.
 */
uint64_t terrace_shared_root(const terrace_shared *shared);

/*
 What it holds now.

 # Safety
 `shared` is of a function that gives one; `out` is writable.
 */
int terrace_shared_stats(const terrace_shared *shared, terrace_shared_figures *out);

/*
 Options for staging through memory of node `fast_node`: threads by the model, two of them; what
 the machine can do is told by `terrace_stage_set_machine`, or nothing is staged.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_stage_create(uint32_t fast_node, terrace_stage **out);

/*
 Gives the options back; null is fine.

 # Safety
 `stage` is null or of `terrace_stage_create`, and not used afterwards.
 */
void terrace_stage_destroy(terrace_stage *stage);

/*
 Threads: TERRACE_STAGE_AUTO or TERRACE_STAGE_IN_PLACE with so many `workers` in all (and 0
 migrators), or TERRACE_STAGE_FIXED with `workers` that run the kernel and `migrators` that copy.

 # Safety
 `stage` is of `terrace_stage_create` and used by no other thread meanwhile.
 */
int terrace_stage_set_threads(terrace_stage *stage, int kind, uint32_t workers, uint32_t migrators);

/*
 CPUs that threads are kept on, in turn; none: anywhere.

 # Safety
 As for `terrace_stage_set_threads`; `cpus` points to `count` numbers.
 */
int terrace_stage_set_cpus(terrace_stage *stage, const uint32_t *cpus, size_t count);

/*
 Fast memory that buffers may take, in bytes, and their number; 0 of either: 1 GiB, as many as
 keep all threads busy.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_buffers(terrace_stage *stage, uint64_t room_bytes, uint32_t slots);

/*
 Whether addresses stay (`keep` is not 0): kernels get their blocks in the data itself, whose
 pages are moved to the fast node and home again (`move_pages`). Dearer than copies; for data
 that is full of pointers, or that others point to.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_keep_addresses(terrace_stage *stage, int keep);

/*
 What the kernel does: how often it goes over a block, and nanoseconds that a thread computes on
 a byte in one pass, were memory infinitely fast (0: not known).

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_work(terrace_stage *stage, double passes, double compute_ns_per_byte);

/*
 What the machine can do, for threads on CPUs of node `initiator` and data on node `slow`: by
 `from`, a machine file (terrace probe writes one) or `preset:NAME`, or by what this machine says
 of itself where `from` is null.

 # Safety
 As for `terrace_stage_set_threads`; `from` is null or ends with a null byte.
 */
int terrace_stage_set_machine(terrace_stage *stage,
                              const char *from,
                              uint32_t initiator,
                              uint32_t slow);

/*
 Runs `kernel` on every block of `data` (`bytes` long) and keeps what it makes of them; what lies
 in no block is not touched. Blocks that overlap or leave the data are refused before anything
 runs, however many there are. `report` may be null; it is filled also with TERRACE_E_STAGE,
 where every block but `failed_block` is as it was or complete.

 # Safety
 `stage` is of `terrace_stage_create`. `data` is initialised memory of `bytes` bytes that nobody
 else touches meanwhile; `blocks` points to `count` blocks; `kernel` may be called from other
 threads with `user`, and writes only the `bytes` at `at`; `report` is null or writable.
 */
int terrace_stage_update(const terrace_stage *stage,
                         void *data,
                         size_t bytes,
                         const terrace_block *blocks,
                         size_t count,
                         terrace_stage_kernel kernel,
                         void *user,
                         terrace_staged *report);

/*
 As `terrace_stage_update`, but that the kernel only reads: nothing goes back.

 # Safety
 As for `terrace_stage_update`; `kernel` writes nothing at `at`.
 */
int terrace_stage_read(const terrace_stage *stage,
                       const void *data,
                       size_t bytes,
                       const terrace_block *blocks,
                       size_t count,
                       terrace_stage_kernel kernel,
                       void *user,
                       terrace_staged *report);

/*
 What is known of blocks that a function gives: `ahead` of them are asked for before anything
 runs (0: 64), and are all there are or what the others are taken to be like; `expected`: how
 many there will be (0: as many as go over all of the data); `largest_bytes`: the largest, where
 that may come later (0: of those asked for ahead). One larger than a buffer is worked on where
 it lies. The function may wait for the kernel of a block that it gave `ahead` blocks before, or
 earlier.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_sequence(terrace_stage *stage,
                               size_t ahead,
                               size_t expected,
                               uint64_t largest_bytes);

/*
 As `terrace_stage_update`, of blocks that `next` gives when there is room for them. One that
 overlaps an earlier one or leaves the data ends the run with TERRACE_E_INVALID: blocks before it
 are as they were or complete.

 # Safety
 As for `terrace_stage_update`; `next` may be called from other threads with `giver`.
 */
int terrace_stage_update_from(const terrace_stage *stage,
                              void *data,
                              size_t bytes,
                              terrace_stage_next next,
                              void *giver,
                              terrace_stage_kernel kernel,
                              void *user,
                              terrace_staged *report);

/*
 As `terrace_stage_update_from`, but that the kernel only reads: nothing goes back.

 # Safety
 As for `terrace_stage_update_from`; `kernel` writes nothing at `at`.
 */
int terrace_stage_read_from(const terrace_stage *stage,
                            const void *data,
                            size_t bytes,
                            terrace_stage_next next,
                            void *giver,
                            terrace_stage_kernel kernel,
                            void *user,
                            terrace_staged *report);

/*
 Maps `bytes` of zeros of which at most `dram_bytes` are in memory, buffers included; the rest
 goes to `store`: a folder (a file without a name there, so that nothing is left however the
 process ends), `compressed` (memory), or a folder and `+compressed` (memory first). The range is
 at `terrace_far_address`. Forked children do not have it.

 TERRACE_E_KERNEL where this user may not use userfaultfd: terrace_last_error() says what to set.

 # Safety
 `store` ends with a null byte; `out` points to a writable pointer.
 */
int terrace_far_map(size_t bytes, size_t dram_bytes, const char *store, terrace_far **out);

/*
 Maps a file that is there: its bytes, of which at most `dram_bytes` are in memory, buffers
 included, and zeros to the end of the last page. `writable`: what is written to the memory is
 written to the file when it leaves memory, by `terrace_far_flush`, and by `terrace_far_unmap`;
 else writing is a SIGSEGV. `out_bytes`, unless null, is given the file's length, which stays as
 it is. TERRACE_FAR_DISCARD is refused.

 # Safety
 `path` ends with a null byte; `out` points to a writable pointer, and `out_bytes` to a size_t or
 is null.
 */
int terrace_far_open(const char *path,
                     size_t dram_bytes,
                     int writable,
                     terrace_far **out,
                     size_t *out_bytes);

/*
 Gives the range back and forgets its data, unless they are a file's; null is fine.

 # Safety
 `far` is null or of `terrace_far_map`; neither it nor its memory is used afterwards.
 */
int terrace_far_unmap(terrace_far *far);

/*
 First byte of the range, which begins at a page; null for null.

 # Safety
 `far` is null or of `terrace_far_map` and not unmapped.
 */
void *terrace_far_address(const terrace_far *far);

/*
 Writes what the store does not have to it, and waits for that. It stays in memory.

 # Safety
 `far` is of `terrace_far_map` and not unmapped.
 */
int terrace_far_flush(const terrace_far *far);

/*
 Fetches `bytes` from `offset`, as far as there is room without evicting anything; they are on
 their way when this returns.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_prefetch(const terrace_far *far, size_t offset, size_t bytes);

/*
 Brings `bytes` from `offset` into memory and keeps them there (`on` not 0), or keeps them no
 longer (0). At most half of the memory can be pinned: TERRACE_E_NO_ROOM.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_pin(const terrace_far *far, size_t offset, size_t bytes, int on);

/*
 Says what is to become of `bytes` from `offset`: TERRACE_FAR_WILL_NEED, TERRACE_FAR_COLD or
 TERRACE_FAR_DISCARD; of whole pages for the latter two.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_advise(const terrace_far *far, size_t offset, size_t bytes, int advice);

/*
 Changes the memory that the range may use, in bytes, while it is used.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_set_dram(const terrace_far *far, size_t dram_bytes);

/*
 What happened so far.

 # Safety
 As for `terrace_far_flush`; `out` is writable.
 */
int terrace_far_stats(const terrace_far *far, terrace_far_counts *out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRACE_H */
