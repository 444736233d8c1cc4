/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Goes on as a daemon. The parent leaves the PID file before it ends, so that systemd need not watch for it: watches are
 * scarce where many hosts share a kernel. */
static int become_daemon(const char *file) {
    pid_t child = fork();
    if (child < 0) return -1;
    if (child > 0) {
        FILE *pid = fopen(file, "w");
        if (!pid) _exit(1);
        fprintf(pid, "%d\n", child);
        _exit(fclose(pid) != 0);
    }
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    return setsid() < 0 ? -1 : 0;
}
