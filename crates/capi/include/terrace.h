/* libterrace: memory by attributes on machines with more than one kind of memory.
 * Made by cbindgen from crates/capi/src; do not edit. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Handles are opaque and are the first argument. Functions that can fail return 0 or a negative
 * TERRACE_E_*; terrace_last_error() returns the thread's last error in full. */

#ifndef TERRACE_H
#define TERRACE_H

#include <stddef.h>
#include <stdint.h>

/*
 Done.
 */
#define TERRACE_OK 0

/*
 An argument is invalid: a null pointer, an unknown constant, a split without parts.
 */
#define TERRACE_E_INVALID -1

/*
 The machine has no such class or index.
 */
#define TERRACE_E_NO_CLASS -2

/*
 Local memory was requested by a thread that is not bound, or from a class without local nodes.
 */
#define TERRACE_E_NOT_LOCAL -3

/*
 The permitted nodes have too little free memory.
 */
#define TERRACE_E_NO_ROOM -4

/*
 The address was not allocated here, or was freed before.
 */
#define TERRACE_E_NOT_OURS -5

/*
 The size exceeds the address space.
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
 CUDA managed memory, one address for CPUs and GPUs; its indices are GPUs. It is not in the
 ranking; ask for it by this name.
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
 The first class while it has free memory, then the next.
 */
#define TERRACE_SPLIT_SPILL_OVER 1

/*
 Contiguous parts of equal size, one per node.
 */
#define TERRACE_SPLIT_EQUAL 2

/*
 Memory is bound when it is allocated.
 */
#define TERRACE_BIND_IMMEDIATE 0

/*
 Memory is bound by the next commit.
 */
#define TERRACE_BIND_ON_COMMIT 1

/*
 A request that cannot be met is an error; accepted memory is reserved.
 */
#define TERRACE_MISMATCH_ERROR 0

/*
 Other memory is accepted.
 */
#define TERRACE_MISMATCH_FALLBACK 1

/*
 Huge pages from 2 MiB on; from 8 MiB per node on where several nodes serve a class.
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
 Unknown lifetime.
 */
#define TERRACE_LIFETIME_UNKNOWN 0

/*
 The memory is freed soon.
 */
#define TERRACE_LIFETIME_SHORT 1

/*
 The memory is kept until the program ends.
 */
#define TERRACE_LIFETIME_LONG 2

/*
 Places the allocations since the last commit.
 */
#define TERRACE_COMMIT_EPOCH 0

/*
 Places all allocations that are bound on commit.
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
 The move left pages behind. With TERRACE_MOVE_STRICT the moved pages were moved back.
 */
#define TERRACE_E_INCOMPLETE -13

/*
 The move was cancelled.
 */
#define TERRACE_E_CANCELLED -14

/*
 The move has not ended yet.
 */
#define TERRACE_E_AGAIN -15

/*
 These nodes while they have free memory, then the nearest. Without nodes, the policy of the
 thread that touches a page decides.
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
 Move every page that can be moved.
 */
#define TERRACE_MOVE_PARTIAL 0

/*
 Move all pages or none.
 */
#define TERRACE_MOVE_STRICT 1

/*
 The file is no shared arena, or one of another version.
 */
#define TERRACE_E_NOT_SHARED -16

/*
 A process ended while it repaired a shared arena after another's death. Create the arena again.
 */
#define TERRACE_E_LOST -17

/*
 No offset.
 */
#define TERRACE_NO_OFFSET UINT64_MAX

/*
 The kernel returned a value other than 0 for a block, or the function that gives blocks one
 below 0. `failed_block` of the report is the block's number.
 */
#define TERRACE_E_STAGE -18

/*
 A model divides the threads and decides whether to stage at all. It adapts during the run.
 */
#define TERRACE_STAGE_AUTO 0

/*
 The given division, whether staging pays or not.
 */
#define TERRACE_STAGE_FIXED 1

/*
 All threads run the kernel in place.
 */
#define TERRACE_STAGE_IN_PLACE 2

/*
 The store of far memory cannot be made, or failed for a part. Data that it did not take stays in
 memory.
 */
#define TERRACE_E_STORE -19

/*
 The range will be needed: fetch it, as far as possible without evicting anything.
 */
#define TERRACE_FAR_WILL_NEED 0

/*
 The range is not needed for a while: evict it.
 */
#define TERRACE_FAR_COLD 1

/*
 The content is not needed any more: the range reads as zeros from now on.
 */
#define TERRACE_FAR_DISCARD 2

/*
 An arena. Calls with the handle of a destroyed arena return TERRACE_E_DESTROYED.
 */
typedef struct terrace_arena terrace_arena;

/*
 The attributes of an allocation. Two threads must not change them at once.
 */
typedef struct terrace_attr terrace_attr;

/*
 A range of far memory. Any thread may use it and its memory.
 */
typedef struct terrace_far terrace_far;

/*
 The memory of this machine by class. Several threads may call all functions on it at once.
 */
typedef struct terrace_memory terrace_memory;

/*
 A move under way. Only one thread at a time may use it.
 */
typedef struct terrace_move terrace_move;

/*
 The outcome of a commit. Several threads may read it at once.
 */
typedef struct terrace_report terrace_report;

/*
 This process's view of an arena that other processes share. Several threads may call all
 functions on it at once.
 */
typedef struct terrace_shared terrace_shared;

/*
 Options for staging. Only one thread at a time may change them; any number may use them.
 */
typedef struct terrace_stage terrace_stage;

/*
 One allocation in a report. Texts live as long as the report.
 */
typedef struct {
  /*
   Its name; may be empty.
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
   The preferred class.
   */
  int wanted_class;
  /*
   1 if it is strict and did not fit; nothing was bound then.
   */
  int refused;
  /*
   Touched bytes that were moved.
   */
  uint64_t moved_bytes;
  /*
   Bytes that should have moved and that the kernel did not move.
   */
  uint64_t stayed_bytes;
  /*
   Bytes that were made present at once.
   */
  uint64_t populated_bytes;
  /*
   Time of binding, moving and populating.
   */
  uint64_t cost_ns;
  /*
   The reason for this placement.
   */
  const char *why;
} terrace_row;

/*
 The use of a GPU, as terrace_memory_gpu reports it.
 */
typedef struct {
  /*
   The driver's name of it.
   */
  char name[96];
  /*
   Its number in the driver's order.
   */
  int number;
  /*
   The node it is attached to; -1 if firmware does not say.
   */
  int node;
  /*
   Its memory in all.
   */
  uint64_t total_bytes;
  /*
   Its free memory, with all processes counted.
   */
  uint64_t free_bytes;
  /*
   Bytes of this handle whose home it is.
   */
  uint64_t bound_bytes;
  /*
   Number of allocations with these bytes.
   */
  uint64_t blocks;
  /*
   Bit N is set if GPU N of the first 64 can access its memory.
   */
  uint64_t peers;
} terrace_gpu;

/*
 The outcome of a move, in base pages.
 */
typedef struct {
  /*
   Pages of the arena that had memory.
   */
  uint64_t pages;
  /*
   Pages that were on the right nodes before.
   */
  uint64_t already;
  /*
   Pages that were moved.
   */
  uint64_t moved;
  /*
   Pages that are still elsewhere.
   */
  uint64_t stayed;
} terrace_moved;

/*
 Figures of a shared arena.
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
   Number of times that a process died inside the arena.
   */
  uint64_t recovered;
} terrace_shared_figures;

/*
 A block: `bytes` bytes from `offset` of the data.
 */
typedef struct {
  /*
   Its first byte.
   */
  size_t offset;
  /*
   Its length; 0 is permitted.
   */
  size_t bytes;
} terrace_block;

/*
 Works on block number `block`. Its `bytes` bytes are at `at` during the call: in the data
 itself, or in a copy that begins at a page. Several threads call it at once, each with another
 block. It returns 0 to continue; anything else ends the run. It must not unwind: a C++ exception
 may not leave it.
 */
typedef int (*terrace_stage_kernel)(size_t block, void *at, size_t bytes, void *user);

/*
 The outcome of a run.
 */
typedef struct {
  /*
   1 if blocks went through fast memory; 0 if the kernel ran in place, for the reason in `why`.
   */
  int staged;
  /*
   Threads in all.
   */
  uint32_t threads;
  /*
   Copying threads at the end of the run.
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
   Number of times that a thread waited for a block.
   */
  uint64_t stalls;
  /*
   Time that threads waited for blocks, summed over threads.
   */
  uint64_t stalled_ns;
  /*
   Time of the whole run.
   */
  uint64_t took_ns;
  /*
   The block whose kernel failed, with TERRACE_E_STAGE.
   */
  size_t failed_block;
  /*
   With TERRACE_E_STAGE, 1 if that block is unchanged; 0 if the kernel worked in place, so that
   the block may be half done.
   */
  int intact;
  /*
   The reason for running in place; empty if blocks were staged. Longer texts are cut.
   */
  char why[160];
  /*
   Bytes that should have moved and did not. With `terrace_stage_keep_addresses` these are
   pages that the kernel refused to move and pages that a block shares with others.
   */
  uint64_t stayed_bytes;
} terrace_staged;

/*
 Gives the next block. It fills `block` and returns 1, or returns 0 if there are no more. A value
 below 0 ends the run with TERRACE_E_STAGE. One thread at a time calls it, not always the same
 one, while kernels run. It is not called again after its end. It must not unwind.
 */
typedef int (*terrace_stage_next)(terrace_block *block, void *user);

/*
 Counts of a range of far memory since it was made.
 */
typedef struct {
  /*
   Faults reported by the kernel.
   */
  uint64_t faults;
  /*
   Faults that waited for the store.
   */
  uint64_t misses;
  /*
   Faults whose page had been fetched ahead, or was on its way.
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
   Bytes of these that were evicted untouched.
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
   Bytes that cannot be read back; touching them raises SIGBUS.
   */
  uint64_t lost_bytes;
  /*
   Memory of the store's data, in addition to `resident_bytes`.
   */
  uint64_t store_bytes;
} terrace_far_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the meaning of a code in a few words; never null. The text lives as long as the program.
 */
const char *terrace_strerror(int code);

/*
 Returns the calling thread's last error in full: what failed, on which object, why and what to
 try. It is empty before the first error. The text lives until the thread's next error.
 */
const char *terrace_last_error(void);

/*
 Returns the version of the library, as in `0.1.0`.
 */
const char *terrace_version(void);

/*
 Creates attributes: the fastest class, all its nodes, fallback, bound at once, priority 1.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_attr_create(terrace_attr **out);

/*
 Destroys attributes. Null is accepted. Allocations made with them stay.

 # Safety
 `attr` is null or comes from `terrace_attr_create`, and is not used afterwards.
 */
void terrace_attr_destroy(terrace_attr *attr);

/*
 Adds a class and one index of it (or TERRACE_INDEX_ALL, TERRACE_INDEX_LOCAL). The first one
 added is preferred.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_add_class(terrace_attr *attr, int class_id, int index);

/*
 Sets the split: one of TERRACE_SPLIT_*.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_split(terrace_attr *attr, int split);

/*
 Splits into runs of `pages` base pages over the nodes in turn.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_chunk(terrace_attr *attr, uint64_t pages);

/*
 Splits into contiguous parts in these proportions, one for each class added.

 # Safety
 `attr` comes from `terrace_attr_create`; `weights` points to `count` numbers.
 */
int terrace_attr_set_weights(terrace_attr *attr, const uint32_t *weights, size_t count);

/*
 Sets when memory is bound: TERRACE_BIND_IMMEDIATE or TERRACE_BIND_ON_COMMIT.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_binding(terrace_attr *attr, int binding);

/*
 Sets what happens on a mismatch: TERRACE_MISMATCH_ERROR or TERRACE_MISMATCH_FALLBACK.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_mismatch(terrace_attr *attr, int mismatch);

/*
 Sets the weight in a commit. The default is 1.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_priority(terrace_attr *attr, uint32_t priority);

/*
 Sets the expected reads and writes of each byte, in one unit for all allocations. The default is
 1 and 1.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_intensity(terrace_attr *attr, double reads, double writes);

/*
 Sets the pages behind the memory: one of TERRACE_PAGES_*.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_pages(terrace_attr *attr, int pages);

/*
 Sets how long the memory is kept: one of TERRACE_LIFETIME_*.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_lifetime(terrace_attr *attr, int lifetime);

/*
 Sets whether the memory lies in one class as a whole (1) or may be divided (0). By default it is
 whole below 2 MiB.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_whole(terrace_attr *attr, int whole);

/*
 For CUDA managed memory, sets whether pages move to their GPU when they are bound (1) or at the
 first touch (0, the default). It has no effect on other memory.

 # Safety
 `attr` comes from `terrace_attr_create`.
 */
int terrace_attr_set_prefetch(terrace_attr *attr, int prefetch);

/*
 Sets the name of the allocation in reports. The text is copied.

 # Safety
 `attr` comes from `terrace_attr_create`; `name` is null or a C string.
 */
int terrace_attr_set_name(terrace_attr *attr, const char *name);

/*
 Returns the number of rows; 0 for null.

 # Safety
 `report` is null or comes from a function that returns one, and is not destroyed.
 */
size_t terrace_report_count(const terrace_report *report);

/*
 Reads row `at`, counted from 0.

 # Safety
 As for `terrace_report_count`; `out` points to a writable row.
 */
int terrace_report_row(const terrace_report *report, size_t at, terrace_row *out);

/*
 Returns the bytes of row `at` in a class; 0 if there is no such row or class.

 # Safety
 As for `terrace_report_count`.
 */
uint64_t terrace_report_got(const terrace_report *report, size_t at, int class_id);

/*
 Reads the objective that was reached, and the bound that no placement exceeds. Either pointer
 may be null.

 # Safety
 As for `terrace_report_count`; the pointers are null or writable.
 */
int terrace_report_value(const terrace_report *report, double *value, double *bound);

/*
 Destroys a report. Null is accepted.

 # Safety
 `report` is null or comes from a function that returns one, and the caller uses neither it nor
 its texts afterwards.
 */
void terrace_report_destroy(terrace_report *report);

/*
 Reads the machine and makes a handle. The variables TERRACE_MACHINE, TERRACE_CLASSES and
 TERRACE_RANK_BY can replace what it reads.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_memory_create(terrace_memory **out);

/*
 Destroys the handle and frees all memory allocated through it. Null is accepted.

 # Safety
 `memory` is null or comes from `terrace_memory_create`; the caller uses neither it nor its
 memory afterwards.
 */
void terrace_memory_destroy(terrace_memory *memory);

/*
 Returns the number of classes in the ranking of this machine; a negative code on error.

 # Safety
 `memory` comes from `terrace_memory_create`.
 */
int terrace_memory_class_count(const terrace_memory *memory);

/*
 Returns the number of nodes of a class, which bounds its indices; for TERRACE_CLASS_CUDA_MANAGED
 the number of GPUs; a negative code on error. Without CUDA, `terrace_last_error` says why.

 # Safety
 `memory` comes from `terrace_memory_create`.
 */
int terrace_memory_class_nodes(const terrace_memory *memory, int class_id);

/*
 Reports the use of the GPU with this index of TERRACE_CLASS_CUDA_MANAGED. The driver initialises
 the GPU for this, which takes some hundred megabytes of its memory.

 # Safety
 `memory` comes from `terrace_memory_create`; `out` points to a writable structure.
 */
int terrace_memory_gpu(const terrace_memory *memory, int index, terrace_gpu *out);

/*
 Allocates `size` zeroed bytes by the attributes `attr` (null: the defaults). They begin at a
 page, and from 2 MiB on at a huge page. CUDA managed memory is not cleared: its driver promises
 no zeros. On error `*out` is null.

 # Safety
 `memory` comes from `terrace_memory_create`, `attr` is null or comes from `terrace_attr_create`;
 `out` points to a writable pointer.
 */
int terrace_memory_alloc(const terrace_memory *memory,
                         size_t size,
                         const terrace_attr *attr,
                         void **out);

/*
 Frees memory. Null is accepted.

 # Safety
 `memory` comes from `terrace_memory_create`. The caller does not use the memory at `address`
 afterwards.
 */
int terrace_memory_free(const terrace_memory *memory, void *address);

/*
 Places the allocations that are bound on commit: TERRACE_COMMIT_EPOCH or TERRACE_COMMIT_ALL. If
 `report` is not null, `*report` says what each got; destroy it with `terrace_report_destroy`. If
 strict allocations are refused, the others are placed, the report is made, and the call returns
 TERRACE_E_NO_ROOM.

 # Safety
 `memory` comes from `terrace_memory_create`; `report` is null or points to a writable pointer.
 */
int terrace_memory_commit(const terrace_memory *memory, int scope, terrace_report **report);

/*
 Reports where the bytes of one allocation are, as a report of one row.

 # Safety
 As for `terrace_memory_commit`.
 */
int terrace_memory_describe(const terrace_memory *memory,
                            const void *address,
                            terrace_report **report);

/*
 Returns the address of the allocation that contains `address`; null if there is none.

 # Safety
 `memory` comes from `terrace_memory_create`.
 */
void *terrace_memory_lookup(const terrace_memory *memory, const void *address);

/*
 Creates an arena of at most `limit` bytes (0: as much memory as there is) on `count` nodes.
 `how` is one of TERRACE_DEVICES_* and says how the nodes are used; `flags` takes
 TERRACE_ARENA_*. `name` may be null.

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
 Destroys an arena with all its blocks. A move under way is cancelled, and the call waits for it.

 # Safety
 The caller uses no block of it any more, and no other thread allocates from it or frees into it
 meanwhile.
 */
int terrace_arena_destroy(terrace_arena *arena);

/*
 Returns a block of at least `size` bytes, aligned to 16, with undefined content; null on error
 (see `terrace_last_error`).

 # Safety
 `arena` comes from `terrace_arena_create`.
 */
void *terrace_arena_alloc(terrace_arena *arena, size_t size);

/*
 Returns a block of at least `size` bytes at a multiple of `align`, a power of two; null on
 error.

 # Safety
 `arena` comes from `terrace_arena_create`.
 */
void *terrace_arena_aligned(terrace_arena *arena, size_t align, size_t size);

/*
 Returns a zeroed block of `count` times `size` bytes; null on error, also when the product
 overflows.

 # Safety
 `arena` comes from `terrace_arena_create`.
 */
void *terrace_arena_calloc(terrace_arena *arena, size_t count, size_t size);

/*
 Resizes a block within its own arena. Returns null on error and leaves the block as it was. With
 a null `block`, allocates one from `arena`.

 # Safety
 `block` is null or a block that only the caller uses. It is freed when another pointer is
 returned.
 */
void *terrace_arena_realloc(terrace_arena *arena, void *block, size_t size);

/*
 Frees a block of any arena by its pointer. Null is accepted.

 # Safety
 The caller does not use `block` any more.
 */
int terrace_arena_free(void *block);

/*
 Returns the arena that an address lies in, whether a block is there or not; null if there is
 none.
 */
terrace_arena *terrace_arena_lookup(const void *address);

/*
 Writes the handles of at most `most` arenas to `out` and returns the number of arenas.

 # Safety
 `out` points to `most` writable pointers (null with 0).
 */
size_t terrace_arena_list(terrace_arena **out, size_t most);

/*
 Moves the whole arena to other nodes. Other threads may allocate and free meanwhile. `moved` may
 be null.

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
 Like `terrace_arena_set_device`, in a thread of its own. End `*out` with `terrace_move_wait`.

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
 Reports the progress of a move: base pages processed, and in all (0 until counted). Returns
 TERRACE_OK when it has ended, else TERRACE_E_AGAIN.

 # Safety
 `moving` comes from `terrace_arena_set_device_async`; the pointers are null or writable.
 */
int terrace_move_poll(const terrace_move *moving, uint64_t *done, uint64_t *total);

/*
 Asks a move to end after its present batch.

 # Safety
 `moving` comes from `terrace_arena_set_device_async`.
 */
int terrace_move_cancel(const terrace_move *moving);

/*
 Waits for the end of a move, frees its handle and returns the outcome, as
 `terrace_arena_set_device` does.

 # Safety
 `moving` comes from `terrace_arena_set_device_async` and is not used afterwards; `moved` is null
 or writable.
 */
int terrace_move_wait(terrace_move *moving, terrace_moved *moved);

/*
 Creates an arena of `size_bytes` bytes that other processes can open by `name` (as in
 `shm_open`, without the slash), or with a null name by its descriptor only. Nodes and flags are
 as for `terrace_arena_create`, without TERRACE_DEVICES_SPILL. Other processes see it complete or
 not at all. A name that is taken returns TERRACE_E_KERNEL.

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
 Opens the shared arena of that name. Everyone who may open it may write to all of it.

 # Safety
 `name` is a C string; `out` points to a writable pointer.
 */
int terrace_shared_open(const char *name, terrace_shared **out);

/*
 Opens a shared arena by a descriptor from `terrace_shared_fd`. The caller keeps the descriptor.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_shared_open_fd(int fd, terrace_shared **out);

/*
 Closes the arena in this process; others keep it. Null is accepted.

 # Safety
 `shared` is null or comes from a function that returns one; this process uses neither it nor a
 pointer into it afterwards.
 */
void terrace_shared_close(terrace_shared *shared);

/*
 Removes a name. Nobody can open the arena by it any more, and its memory is freed with the last
 process that has it open.

 # Safety
 `name` is a C string.
 */
int terrace_shared_remove(const char *name);

/*
 Returns the arena's descriptor, for `terrace_shared_open_fd` in other processes. The arena keeps
 it. A negative value is an error code.

 # Safety
 `shared` comes from a function that returns one.
 */
int terrace_shared_fd(const terrace_shared *shared);

/*
 Returns a block of at least `size` bytes, at a multiple of `align` in every process, with
 undefined content; null on error (see `terrace_last_error`). `align` is a power of two up to
 65536; blocks are aligned to 64 at least.

 # Safety
 `shared` comes from a function that returns one.
 */
void *terrace_shared_alloc(terrace_shared *shared, size_t size, size_t align);

/*
 Frees a block that any process allocated. Null is accepted.

 # Safety
 `shared` comes from a function that returns one; no process uses `block` any more.
 */
int terrace_shared_free(terrace_shared *shared, void *block);

/*
 Returns the offset of an address, for other processes; TERRACE_NO_OFFSET if it is not in this
 arena.

 # Safety
 `shared` comes from a function that returns one.
 */
uint64_t terrace_shared_offset(const terrace_shared *shared, const void *address);

/*
 Returns the address of an offset in this process; null if it is beyond the arena.

 # Safety
 `shared` comes from a function that returns one.
 */
void *terrace_shared_pointer(const terrace_shared *shared, uint64_t offset);

/*
 Sets the root: one offset from which all processes can start (TERRACE_NO_OFFSET: none).

 # Safety
 `shared` comes from a function that returns one.
 */
int terrace_shared_set_root(terrace_shared *shared, uint64_t offset);

/*
 Returns the root that was set last; TERRACE_NO_OFFSET if there is none.

 # Safety
 `shared` comes from a function that returns one.
 */
uint64_t terrace_shared_root(const terrace_shared *shared);

/*
 Reads the arena's present figures.

 # Safety
 `shared` comes from a function that returns one; `out` is writable.
 */
int terrace_shared_stats(const terrace_shared *shared, terrace_shared_figures *out);

/*
 Creates options for staging through memory of node `fast_node`, with two threads divided by the
 model. Nothing is staged unless `terrace_stage_set_machine` gives the machine's figures.

 # Safety
 `out` points to a writable pointer.
 */
int terrace_stage_create(uint32_t fast_node, terrace_stage **out);

/*
 Destroys the options. Null is accepted.

 # Safety
 `stage` is null or comes from `terrace_stage_create`, and is not used afterwards.
 */
void terrace_stage_destroy(terrace_stage *stage);

/*
 Sets the threads: TERRACE_STAGE_AUTO or TERRACE_STAGE_IN_PLACE with `workers` threads in all
 (and 0 migrators), or TERRACE_STAGE_FIXED with `workers` that run the kernel and `migrators`
 that copy.

 # Safety
 `stage` comes from `terrace_stage_create` and no other thread uses it meanwhile.
 */
int terrace_stage_set_threads(terrace_stage *stage, int kind, uint32_t workers, uint32_t migrators);

/*
 Sets the CPUs to which threads are bound, in turn. Without CPUs, threads run anywhere.

 # Safety
 As for `terrace_stage_set_threads`; `cpus` points to `count` numbers.
 */
int terrace_stage_set_cpus(terrace_stage *stage, const uint32_t *cpus, size_t count);

/*
 Sets the fast memory for buffers, in bytes, and their number. 0 means 1 GiB, and as many as keep
 all threads busy.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_buffers(terrace_stage *stage, uint64_t room_bytes, uint32_t slots);

/*
 Sets whether addresses stay the same (`keep` is not 0). Kernels then work in the data itself,
 whose pages move to the fast node and back (`move_pages`). This costs more than copying; use it
 for data that is full of pointers, or that others point to.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_keep_addresses(terrace_stage *stage, int keep);

/*
 Describes the kernel: the number of passes over a block, and the nanoseconds that a thread
 computes per byte in one pass with infinitely fast memory (0: unknown).

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_work(terrace_stage *stage, double passes, double compute_ns_per_byte);

/*
 Sets the machine's figures for threads on CPUs of node `initiator` and data on node `slow`. They
 come from `from`, which is a machine file (terrace probe writes one) or `preset:NAME`. If `from`
 is null, they come from this machine's firmware.

 # Safety
 As for `terrace_stage_set_threads`; `from` is null or ends with a null byte.
 */
int terrace_stage_set_machine(terrace_stage *stage,
                              const char *from,
                              uint32_t initiator,
                              uint32_t slow);

/*
 Runs `kernel` on every block of `data` (`bytes` long) and keeps the results. Data outside the
 blocks is not touched. Blocks that overlap or leave the data are refused before anything runs,
 however many there are. `report` may be null. It is also filled on TERRACE_E_STAGE, after which
 every block except `failed_block` is unchanged or complete.

 # Safety
 `stage` comes from `terrace_stage_create`. `data` is initialised memory of `bytes` bytes that
 nobody else touches meanwhile; `blocks` points to `count` blocks; `kernel` may be called from
 other threads with `user`, and writes only the `bytes` at `at`; `report` is null or writable.
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
 Like `terrace_stage_update`, but the kernel only reads, and nothing is copied back.

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
 Says what is known of the blocks that a function gives. `ahead` blocks are asked for before the
 run starts (0: 64); if there are more, the others are taken to be similar. `expected` is their
 number (0: as many as cover the data). `largest_bytes` is the size of the largest, if that may
 come later (0: the largest of those asked for ahead). The kernel works in place on a block
 larger than a buffer. The function may wait for the kernel of a block that it gave at least
 `ahead` blocks before.

 # Safety
 As for `terrace_stage_set_threads`.
 */
int terrace_stage_set_sequence(terrace_stage *stage,
                               size_t ahead,
                               size_t expected,
                               uint64_t largest_bytes);

/*
 Like `terrace_stage_update`, for blocks that `next` gives when a buffer is free. A block that
 overlaps an earlier one or leaves the data ends the run with TERRACE_E_INVALID; the blocks
 before it are unchanged or complete.

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
 Like `terrace_stage_update_from`, but the kernel only reads, and nothing is copied back.

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
 Maps `bytes` of zeros, of which at most `dram_bytes` are in memory, buffers included. The rest
 goes to `store`: a folder, `compressed` (memory), or a folder and `+compressed` (memory first).
 The file in the folder has no name, so nothing is left however the process ends.
 `terrace_far_address` returns the range. Forked children do not have it.

 Returns TERRACE_E_KERNEL if this user may not use userfaultfd; terrace_last_error() says what to
 set.

 # Safety
 `store` ends with a null byte; `out` points to a writable pointer.
 */
int terrace_far_map(size_t bytes, size_t dram_bytes, const char *store, terrace_far **out);

/*
 Maps an existing file, of which at most `dram_bytes` are in memory, buffers included. Zeros
 follow to the end of the last page. If `writable` is not 0, changes go to the file when a page
 leaves memory, by `terrace_far_flush`, and by `terrace_far_unmap`; otherwise writing is a
 SIGSEGV. `out_bytes`, unless null, receives the file's length, which does not change.
 TERRACE_FAR_DISCARD is refused.

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
 Unmaps the range and discards its data, unless they belong to a file. Null is accepted.

 # Safety
 `far` is null or comes from `terrace_far_map`; the caller uses neither it nor its memory
 afterwards.
 */
int terrace_far_unmap(terrace_far *far);

/*
 Returns the first byte of the range, at the start of a page; null for null.

 # Safety
 `far` is null or comes from `terrace_far_map` and is not unmapped.
 */
void *terrace_far_address(const terrace_far *far);

/*
 Writes all changes to the store and waits for that. The data stays in memory.

 # Safety
 `far` comes from `terrace_far_map` and is not unmapped.
 */
int terrace_far_flush(const terrace_far *far);

/*
 Starts to fetch `bytes` from `offset`, as far as possible without evicting anything.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_prefetch(const terrace_far *far, size_t offset, size_t bytes);

/*
 Brings `bytes` from `offset` into memory and keeps them there (`on` not 0), or releases them
 (0). Pinning more than half of the memory returns TERRACE_E_NO_ROOM.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_pin(const terrace_far *far, size_t offset, size_t bytes, int on);

/*
 Advises about `bytes` from `offset`: TERRACE_FAR_WILL_NEED, TERRACE_FAR_COLD or
 TERRACE_FAR_DISCARD. The latter two apply to whole pages only.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_advise(const terrace_far *far, size_t offset, size_t bytes, int advice);

/*
 Changes the memory that the range may use, in bytes. The program may use the range meanwhile.

 # Safety
 As for `terrace_far_flush`.
 */
int terrace_far_set_dram(const terrace_far *far, size_t dram_bytes);

/*
 Reads the counts since the range was made.

 # Safety
 As for `terrace_far_flush`; `out` is writable.
 */
int terrace_far_stats(const terrace_far *far, terrace_far_counts *out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRACE_H */
