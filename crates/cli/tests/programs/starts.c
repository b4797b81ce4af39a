/* Starts other programs in ways that a recorder must see through: starts HOW PROGRAM. */
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "again")) {
        puts("again");
        return 7;
    }
    if (!strcmp(how, "self"))
        execl("/proc/self/exe", "starts", "again", (char *)NULL);
    if (!strcmp(how, "drop")) {
        /* As runuser, su and sshd do. */
        if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
            return 2;
        execl("/bin/sh", "sh", "-c", "/bin/echo dropped; exit 7", (char *)NULL);
    }
    if (!strcmp(how, "run")) {
        int status = 0;
        fflush(stdout);
        if (fork() == 0) {
            execl(argv[2], argv[2], "again", (char *)NULL);
            _exit(9);
        }
        wait(&status);
        return WEXITSTATUS(status);
    }
    if (!strcmp(how, "abort")) {
        int status = 0;
        if (fork() == 0)
            abort();
        wait(&status);
        printf("signal %d\n", WTERMSIG(status));
        return 7;
    }
    return 9;
}
