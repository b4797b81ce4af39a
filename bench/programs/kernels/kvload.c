// A load for key-value servers over a socket of the file system: fills a store, then reads it and
// now and then writes, with Zipf keys, many requests in flight. usage: kvload redis|memcached
// SOCKET SEED KEYS BYTES REQUESTS
#include "kernel.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64 };
static int redis;

static int connect_to(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    for (int tries = 0; tries < 1000; tries++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
        close(fd);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    fprintf(stderr, "kvload: no server at %s\n", path);
    exit(1);
}

static uint64_t request(char *out, uint64_t key, const char *value, uint64_t bytes) {
    char name[32];
    int n = snprintf(name, sizeof name, "key:%012lu", (unsigned long)key), at;
    if (redis) {
        if (!value) return (uint64_t)sprintf(out, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", n, name);
        at = sprintf(out, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%lu\r\n", n, name,
            (unsigned long)bytes);
    } else {
        if (!value) return (uint64_t)sprintf(out, "get %s\r\n", name);
        at = sprintf(out, "set %s 0 0 %lu\r\n", name, (unsigned long)bytes);
    }
    memcpy(out + at, value, bytes);
    memcpy(out + at + bytes, "\r\n", 2);
    return (uint64_t)at + bytes + 2;
}

// Bytes of the answer to one request.
static uint64_t answer(const char *value, uint64_t bytes) {
    char text[96];
    if (value) return redis ? strlen("+OK\r\n") : strlen("STORED\r\n");
    if (redis) return (uint64_t)snprintf(text, sizeof text, "$%lu\r\n", (unsigned long)bytes) +
        bytes + 2;
    return (uint64_t)snprintf(text, sizeof text, "VALUE key:%012lu 0 %lu\r\n", 0ul,
        (unsigned long)bytes) +
           bytes + strlen("\r\nEND\r\n");
}

static uint64_t transfer(int fd, char *buffer, uint64_t out, uint64_t in) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < out;) {
        ssize_t n = write(fd, buffer + at, out - at);
        if (n <= 0) exit(1);
        at += (uint64_t)n;
    }
    while (in > 0) {
        ssize_t n = read(fd, buffer, in < 65536 ? in : 65536);
        if (n <= 0) {
            fprintf(stderr, "kvload: the server ended the connection\n");
            exit(1);
        }
        sum += (unsigned char)buffer[n - 1];
        in -= (uint64_t)n;
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    redis = !strcmp(argv[1], "redis");
    uint64_t seed = argument(argc, argv, 3, 1), keys = argument(argc, argv, 4, 1 << 18);
    uint64_t bytes = argument(argc, argv, 5, 512), requests = argument(argc, argv, 6, 200000);
    int fd = connect_to(argv[2]);
    char *buffer = allocate(BATCH * (bytes + 128) + 65536), *value = allocate(bytes);
    memset(value, 'v', bytes);
    for (uint64_t i = 0; i < keys; i += BATCH) {
        uint64_t out = 0, in = 0;
        for (uint64_t k = i; k < i + BATCH && k < keys; k++) {
            out += request(buffer + out, k, value, bytes);
            in += answer(value, bytes);
        }
        transfer(fd, buffer, out, in);
    }
    for (uint64_t i = 0; i < requests; i += BATCH) {
        uint64_t out = 0, in = 0;
        for (int k = 0; k < BATCH; k++) {
            uint64_t key = scatter(zipf_rank(&seed, keys, 0.8), keys);
            const char *written = random_below(&seed, 20) == 0 ? value : NULL;
            out += request(buffer + out, key, written, bytes);
            in += answer(written, bytes);
        }
        transfer(fd, buffer, out, in);
    }
    printf("%s answered all\n", argv[1]);
    return 0;
}
