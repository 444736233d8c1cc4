/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A daemon that behaves outwardly as nvidia-persistenced: it fails where no driver is loaded, leaves a PID file, and
 * holds every GPU's device node open until it is told to stop. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/run/nvidia-persistenced"

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("nvidia-persistenced:  version " VERSION);
        return 0;
    }
    int held = 0;
    for (int i = 0; i < 64; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        held += open(path, O_RDWR) >= 0;
    }
    if (!held || access("/proc/driver/nvidia/version", R_OK)) {
        fputs("nvidia-persistenced failed to initialize: no NVIDIA device can be opened.\n", stderr);
        return 1;
    }
    mkdir(FOLDER, 0755);
    if (daemon(0, 0)) return 1;
    FILE *pid = fopen(FOLDER "/nvidia-persistenced.pid", "w");
    if (!pid) return 1;
    fprintf(pid, "%d\n", getpid());
    fclose(pid);
    for (;;) pause();
}
