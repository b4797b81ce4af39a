// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The program replaces itself: the new one is started under the emulator again. Part of plugin.c.
 *
 * The emulator, the plugin and the recorder's memory are found by their paths. A program that gives
 * up its user, its root directory or its namespaces may not reach them afterwards, so descriptors
 * of plugin and memory are kept from before.
 */
/* Out of the way of numbers that scripts choose; half the limit where that is lower. */
#define FIRST_SAVED_FD 700

static int area_fd = -1, plugin_fd = -1;
static dev_t root_device;
static ino_t root_inode;

static void know_root(void)
{
    struct stat status;
    if (stat("/", &status) == 0) {
        root_device = status.st_dev;
        root_inode = status.st_ino;
    }
}

static bool same_root(void)
{
    struct stat status;
    return stat("/", &status) == 0 && status.st_dev == root_device && status.st_ino == root_inode;
}

static int keep_for_us(int fd)
{
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

static int open_high(const char *path, int flags)
{
    struct rlimit limit = { 0 };
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fd;
    int from = limit.rlim_cur > FIRST_SAVED_FD + 8 ? FIRST_SAVED_FD : (int)limit.rlim_cur / 2;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, from);
    close(fd);
    return high;
}

/* Whether a descriptor is still that of the recorder's memory: programs close and reuse those that
   they do not know. */
static bool is_area(int fd)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == area_device &&
           status.st_ino == area_inode;
}

static bool is_file_at(int fd)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

/* Calls after which paths may lead elsewhere or nowhere. */
static bool gives_up_access(int64_t number, uint64_t flags)
{
    switch (number) {
    case SYS_clone:
        return flags & (CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID);
    case SYS_setuid: case SYS_setgid: case SYS_setreuid: case SYS_setregid:
    case SYS_setresuid: case SYS_setresgid: case SYS_setfsuid: case SYS_setfsgid:
    case SYS_setgroups: case SYS_capset: case SYS_unshare: case SYS_setns:
        return true;
    default:
        return false;
    }
}

static void save_descriptors(void)
{
    if (!is_area(area_fd))
        area_fd = open_high(control->area, O_RDWR);
    if (!is_file_at(plugin_fd))
        plugin_fd = open_high(control->plugin, O_RDONLY);
}

/* Whether plugin and memory can be opened by their paths, and are the same. */
static bool found_by_path(void)
{
    int area = open(control->area, O_RDWR | O_CLOEXEC);
    int plugin = open(control->plugin, O_RDONLY | O_CLOEXEC);
    bool found = is_area(area) && plugin >= 0;
    if (area >= 0)
        close(area);
    if (plugin >= 0)
        close(plugin);
    return found;
}

/* The first bytes of a file that begin a program for x86-64, of 64 bits. */
static bool is_ours(const char *path, bool *other)
{
    unsigned char head[20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, head, sizeof head);
    if (fd >= 0)
        close(fd);
    bool elf = n == sizeof head && !memcmp(head, "\177ELF", 4);
    bool ours = elf && head[4] == 2 && head[5] == 1 && head[18] == 62 && head[19] == 0;
    *other = elf && !ours;
    return ours;
}

/* Whether the kernel gives the program other rights than its caller has, which it does not give to
   an emulator. */
static bool gains_rights(const char *path, const struct stat *status)
{
    return ((status->st_mode & S_ISUID) && status->st_uid != geteuid()) ||
           ((status->st_mode & S_ISGID) && (status->st_mode & S_IXGRP) &&
            status->st_gid != getegid()) ||
           (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

static void report_unrecorded(const char *path, const char *why)
{
    char text[2048];
    snprintf(text, sizeof text, "%.1800s (%s)", path, why);
    put_text(M_UNRECORDED, NULL, 0, text);
}

/* The path of a program that the caller names; `/proc/self/exe` would be the emulator's. */
static bool read_path(uint64_t at, char *path, size_t room)
{
    char own[64];
    if (!read_string(at, path, room))
        return false;
    snprintf(own, sizeof own, "/proc/%d/exe", (int)getpid());
    if (strcmp(path, "/proc/self/exe") && strcmp(path, "/proc/thread-self/exe") &&
        strcmp(path, own))
        return true;
    snprintf(path, room, "%s", own_program);
    return own_program[0];
}

/* Splits a script's first line into its interpreter and the option; false where it has none. */
static bool read_interpreter(const char *path, char *line, size_t room, char **interpreter,
                             char **option)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, line, room - 1);
    if (fd >= 0)
        close(fd);
    if (n < 4 || line[0] != '#' || line[1] != '!')
        return false;
    line[n] = 0;
    line[strcspn(line, "\n")] = 0;
    *interpreter = line + 2 + strspn(line + 2, " \t");
    *option = *interpreter + strcspn(*interpreter, " \t");
    if (**option)
        *(*option)++ = 0;
    *option += strspn(*option, " \t");
    return true;
}

/* Why a program cannot be followed though the caller can start it, or NULL. */
static const char *why_not_followed(const char *path, const struct stat *status, bool by_path)
{
    int fd = -1;
    if (gains_rights(path, status))
        return "it has set-user-ID or set-group-ID bits, or capabilities";
    if (sscanf(path, "/proc/self/fd/%d", &fd) == 1 && (fcntl(fd, F_GETFD) & FD_CLOEXEC))
        return "it is started by a descriptor that closes on exec";
    if (!same_root() || access(control->emulator, X_OK) != 0)
        return "the emulator cannot be reached from its root directory";
    if (!by_path && !(is_area(area_fd) && is_file_at(plugin_fd)))
        return "it may not open the recorder's memory";
    return NULL;
}

/*
 * QEMU would hand the new program to the kernel, and it would not be recorded; so it is started
 * under the emulator here, before QEMU sees the call. A program that cannot be followed is left to
 * QEMU, unrecorded, and the recorder learns of it.
 */
static void follow_exec(uint64_t path_at, uint64_t argv_at, uint64_t envp_at)
{
    char path[4096], line[256] = "", *interpreter = NULL, *option = NULL;
    struct stat status;
    bool other = false;
    if (recorder_gone() || !read_path(path_at, path, sizeof path) || access(path, X_OK) != 0)
        return;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return;
    if (!is_ours(path, &other)) {
        bool script = !other && read_interpreter(path, line, sizeof line, &interpreter, &option);
        if (script && !is_ours(interpreter, &other) && access(interpreter, X_OK) != 0)
            return;
        if (other || (script && !is_ours(interpreter, &other))) {
            report_unrecorded(path, "it is not for x86-64");
            return;
        }
        if (!script)
            return;
    }
    bool by_path = found_by_path();
    const char *why = why_not_followed(path, &status, by_path);
    char **argv = read_list(argv_at), **envp = read_list(envp_at);
    char **all = calloc(MOST_WORDS + 24, sizeof *all);
    if (!why && (!argv || !envp || !all))
        why = "its arguments cannot be read";
    if (why) {
        report_unrecorded(path, why);
        return;
    }
    char plugin[4096];
    if (by_path)
        snprintf(plugin, sizeof plugin, "%s,area=%s", control->plugin, control->area);
    else
        snprintf(plugin, sizeof plugin, "/proc/self/fd/%d,area=/proc/self/fd/%d,plugin=%d",
                 plugin_fd, area_fd, plugin_fd);
    size_t n = 0;
    all[n++] = control->emulator;
    all[n++] = "-plugin";
    all[n++] = plugin;
    if (interpreter) {
        all[n++] = interpreter;
        if (*option)
            all[n++] = option;
        all[n++] = path;
    } else {
        all[n++] = "-0";
        all[n++] = argv[0] ? argv[0] : path;
        all[n++] = path;
    }
    for (size_t i = 1; argv[0] && argv[i]; i++)
        all[n++] = argv[i];
    put_text(M_EXEC, NULL, 0, path);
    if (me.slot && !me.dropping) {
        write_out();
        atomic_store(&me.slot->state, 2);
    }
    if (!by_path) {
        fcntl(area_fd, F_SETFD, 0);
        fcntl(plugin_fd, F_SETFD, 0);
    }
    execve(control->emulator, all, envp);
    if (!by_path) {
        keep_for_us(area_fd);
        keep_for_us(plugin_fd);
    }
    /* Not started: this thread takes a new slot and QEMU tries in its own way. */
    memset(&me, 0, sizeof me);
}
