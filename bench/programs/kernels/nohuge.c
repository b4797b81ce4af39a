// Runs a command to which the kernel gives no transparent huge pages. usage: nohuge COMMAND...
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "nohuge: no command to run\n");
        return 2;
    }
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) {
        fprintf(stderr, "nohuge: huge pages cannot be refused: %s\n", strerror(errno));
        return 2;
    }
    execvp(argv[1], argv + 1);
    fprintf(stderr, "nohuge: %s: %s\n", argv[1], strerror(errno));
    return 127;
}
