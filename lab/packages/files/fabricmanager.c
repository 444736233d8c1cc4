/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A daemon that behaves outwardly as nv-fabricmanager: it refuses to run without NVSwitches, and with a driver of another
 * version than its own (NVIDIA Fabric Manager User Guide). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"

#define FOLDER "/run/nvidia-fabricmanager"

int main(int argc, char **argv) {
    if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-v"))) {
        puts("Fabric Manager version is : " VERSION);
        return 0;
    }
    char text[4096] = "";
    FILE *version = fopen("/proc/driver/nvidia/version", "r");
    if (version) {
        text[fread(text, 1, sizeof text - 1, version)] = 0;
        fclose(version);
    }
    if (!strstr(text, " " VERSION " ")) {
        fputs("fabric manager NVIDIA GPU driver interface version " VERSION " does not match the driver that is loaded.\n", stderr);
        return 1;
    }
    /* NVLink 5: NVLSM manages the switches through InfiniBand's management datagrams, found by ibstat. */
    int newer = !access("/usr/sbin/nvlsm", X_OK) && !access("/usr/sbin/ibstat", X_OK) && !access("/sys/module/ib_umad", F_OK);
    if (open("/dev/nvidia-nvswitchctl", O_RDWR) < 0 && !newer) {
        fputs("NV_WARN_NOTHING_TO_DO: this system has no NVSwitch device.\n", stderr);
        return 1;
    }
    mkdir(FOLDER, 0755);
    if (become_daemon(FOLDER "/nv-fabricmanager.pid")) return 1;
    for (;;) pause();
}
