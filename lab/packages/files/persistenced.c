/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A daemon that behaves outwardly as nvidia-persistenced: it fails where no driver is loaded, leaves a PID file, and
 * holds every GPU's device node open until it is told to stop. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"

#define FOLDER "/run/nvidia-persistenced"
/* The vendor's libraries have the nodes made that are not there. */
#define MAKE_NODES "[ ! -x /usr/bin/nvidia-modprobe ] || for gpu in /proc/driver/nvidia/gpus/*/information; do" \
    " /usr/bin/nvidia-modprobe -c$(sed -n 's/^Device Minor:[^0-9]*//p' \"$gpu\"); done"

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        puts("nvidia-persistenced:  version " VERSION);
        return 0;
    }
    int held = 0;
    if (!access("/proc/driver/nvidia/gpus", R_OK) && system(MAKE_NODES)) return 1;
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
    if (become_daemon(FOLDER "/nvidia-persistenced.pid")) return 1;
    for (;;) pause();
}
