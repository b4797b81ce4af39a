/* A double of CUDA's driver library, for tests on machines without a GPU: it has the functions that
 * Terrace calls and no others, with the names and types of cuda.h. Memory is mapped; advice is
 * checked and written down. It proves how the library is found, called and in which order; it
 * proves nothing of what a GPU does.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * TERRACE_DOUBLE_LOG: file for one line a call. TERRACE_DOUBLE_GPUS: how many (2).
 * TERRACE_DOUBLE_INIT: what cuInit returns. TERRACE_DOUBLE_FREE: free bytes of each GPU (64 MiB).
 * -DOLD leaves out what drivers before CUDA 8 lack. */
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult, CUdevice;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef unsigned long long CUdeviceptr;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE =
    101, INVALID_CONTEXT = 201 };
enum { MOST = 16, BLOCKS = 1024, DEEP = 8, CPU = -1 };
/* Handles are no ordinals in the driver either. */
enum { FIRST = 100 };

struct context {
    int retained;
};
static struct context contexts[MOST];
static size_t brought[MOST];
static struct {
    CUdeviceptr at;
    size_t bytes;
} blocks[BLOCKS];
static int initialised;
static __thread CUcontext stack[DEEP];
static __thread int depth;

static long number(const char *name, long unless) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : unless;
}
static int gpus(void) { return (int)number("TERRACE_DOUBLE_GPUS", 2); }
static size_t total(void) { return (size_t)256 << 20; }

static void note(const char *format, ...) {
    const char *path = getenv("TERRACE_DOUBLE_LOG");
    if (path == NULL) return;
    char line[256];
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file < 0 || write(file, line, (size_t)length) != length) abort();
    close(file);
}
static int gpu_of(CUdevice device) { return device >= FIRST && device < FIRST + gpus() ?
    device - FIRST : -1; }
static int current(void) { return depth > 0 ? (int)(stack[depth - 1] - contexts) : -1; }
/* The block that holds a range, as its number; -1 where there is none. */
static int block_of(CUdeviceptr at, size_t bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].bytes && at >= blocks[i].at && at + bytes <= blocks[i].at +
            blocks[i].bytes && bytes) return i;
    }
    return -1;
}
static const char *whom(CUdevice device, char *text) {
    if (device == CPU) return "cpu";
    sprintf(text, "gpu%d", gpu_of(device));
    return text;
}

CUresult cuInit(unsigned flags) {
    const int code = (int)number("TERRACE_DOUBLE_INIT", SUCCESS);
    note("init %u\n", flags);
    initialised = code == SUCCESS;
    return code;
}
CUresult cuGetErrorName(CUresult code, const char **name) {
    *name = code == 999 ? "CUDA_ERROR_UNKNOWN" : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : NULL;
    return *name ? SUCCESS : INVALID_VALUE;
}
CUresult cuDeviceGetCount(int *count) {
    if (!initialised) return NOT_INITIALIZED;
    *count = gpus();
    return SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= gpus()) return INVALID_DEVICE;
    *device = FIRST + ordinal;
    return SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (gpu_of(device) < 0) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "Double %d", gpu_of(device));
    return SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (gpu_of(device) < 0) return INVALID_DEVICE;
    *bytes = total();
    return SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (gpu_of(device) < 0) return INVALID_DEVICE;
    if (attribute != 89) return INVALID_VALUE; /* CONCURRENT_MANAGED_ACCESS */
    *value = (int)number("TERRACE_DOUBLE_PLACES", 1);
    return SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    if (gpu_of(device) < 0) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "FFFF:%02X:00.0", gpu_of(device));
    return SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (gpu_of(device) < 0 || gpu_of(peer) < 0) return INVALID_DEVICE;
    /* One way only: who asks the wrong way round is found out. */
    *can = gpu_of(device) == 1 && gpu_of(peer) == 0;
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (gpu_of(device) < 0) return INVALID_DEVICE;
    *context = &contexts[gpu_of(device)];
    (*context)->retained++;
    note("retain gpu%d\n", gpu_of(device));
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (gpu_of(device) < 0 || contexts[gpu_of(device)].retained == 0) return INVALID_CONTEXT;
    contexts[gpu_of(device)].retained--;
    note("release gpu%d with %d contexts current\n", gpu_of(device), depth);
    return SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (context < contexts || context >= contexts + MOST || context->retained == 0 || depth ==
        DEEP) return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (depth == 0) return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *all) {
    if (current() < 0) return INVALID_CONTEXT;
    *free_bytes = (size_t)number("TERRACE_DOUBLE_FREE", 64 << 20) - brought[current()];
    *all = total();
    return SUCCESS;
}
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags) {
    if (current() < 0) return INVALID_CONTEXT;
    if (bytes == 0 || flags != 1) return INVALID_VALUE; /* CU_MEM_ATTACH_GLOBAL */
    int i = 0;
    while (i < BLOCKS && blocks[i].bytes) i++;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (i == BLOCKS || map == MAP_FAILED) return OUT_OF_MEMORY;
    blocks[i].at = *at = (CUdeviceptr)map;
    blocks[i].bytes = bytes;
    note("allocate %d: %zu in gpu%d\n", i, bytes, current());
    return SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
    if (current() < 0) return INVALID_CONTEXT;
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].bytes && blocks[i].at == at) {
            munmap((void *)at, blocks[i].bytes);
            blocks[i].bytes = 0;
            note("free %d\n", i);
            return SUCCESS;
        }
    }
    return INVALID_VALUE;
}
CUresult cuMemAdvise(CUdeviceptr at, size_t bytes, int advice, CUdevice device) {
    static const char *const names[] = {"", "", "", "prefer", "no home", "reach", "no reach"};
    char text[16];
    const int i = block_of(at, bytes);
    if (current() < 0) return INVALID_CONTEXT;
    if (i < 0 || advice < 3 || advice > 6) return INVALID_VALUE;
    if (device != CPU && gpu_of(device) < 0) return INVALID_DEVICE;
    note("%s %d: %llu+%zu %s\n", names[advice], i, at - blocks[i].at, bytes, whom(device, text));
    return SUCCESS;
}
#ifndef OLD
CUresult cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream) {
    char text[16];
    const int i = block_of(at, bytes);
    if (current() < 0 || stream != NULL) return INVALID_CONTEXT;
    if (i < 0) return INVALID_VALUE;
    if (device != CPU && gpu_of(device) < 0) return INVALID_DEVICE;
    if (device != CPU) brought[gpu_of(device)] += bytes;
    note("bring %d: %llu+%zu %s\n", i, at - blocks[i].at, bytes, whom(device, text));
    return SUCCESS;
}
#endif
CUresult cuStreamSynchronize(CUstream stream) {
    if (current() < 0 || stream != NULL) return INVALID_CONTEXT;
    note("wait gpu%d\n", current());
    return SUCCESS;
}
