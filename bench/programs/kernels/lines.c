// Lines of text from a seed: keys that partly repeat and a payload. usage: lines SEED LINES BYTES
#include "kernel.h"

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), lines = argument(argc, argv, 2, 1000);
    uint64_t bytes = argument(argc, argv, 3, 60);
    static const char words[64][9] = {
        "amber ", "basin ", "cedar ", "delta ", "ember ", "fjord ", "grove ", "haven ", "inlet ",
            "jetty ",
        "knoll ", "ledge ", "marsh ", "notch ", "oasis ", "pinto ", "quarry ", "ridge ", "shoal ",
            "tundra ",
        "upland ", "valley ", "wharf ", "xylem ", "yonder ", "zenith ", "alder ", "birch ",
            "clover ", "dune ",
    };
    char line[4096];
    if (bytes > sizeof line - 16) bytes = sizeof line - 16;
    for (uint64_t i = 0; i < lines; i++) {
        uint64_t at = 0, key = next_random(&seed);
        for (int k = 0; k < 10; k++, key >>= 5) line[at++] = (char)('a' + (key & 15));
        line[at++] = ' ';
        while (at < bytes) {
            const char *word = words[random_below(&seed, 30)];
            uint64_t n = strlen(word);
            memcpy(line + at, word, n);
            at += n;
        }
        line[at++] = '\n';
        if (fwrite(line, 1, at, stdout) != at) return 1;
    }
    return 0;
}
