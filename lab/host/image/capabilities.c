/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gpusim show | capabilities: makes /dev/nvidia-caps and /proc/driver/nvidia/capabilities agree with the MIG instances
 * that exist, as the kernel module does (NVIDIA MIG User Guide, "Device nodes and capabilities"). */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MAX_MINOR = 8192, MAJOR = 238 };
static const char minors_file[] = "/proc/driver/nvidia-caps/mig-minors", nodes[] = "/dev/nvidia-caps",
                  tree[] = "/proc/driver/nvidia/capabilities";
static char names[MAX_MINOR][48];
static bool wanted[MAX_MINOR], there[MAX_MINOR];

static void want(const char *name) {
    for (unsigned minor = 1; minor < MAX_MINOR; minor++)
        if (!strcmp(names[minor], name)) wanted[minor] = true;
}

static void parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0555);
        *slash = '/';
    }
}

/* gpu0/gi1/access lies in gpu0/mig/gi1/access, config and monitor in mig. */
static void entry_path(char *path, size_t size, const char *name) {
    const char *slash = strchr(name, '/');
    if (slash)
        snprintf(path, size, "%s/%.*s/mig%s", tree, (int)(slash - name), name, slash);
    else
        snprintf(path, size, "%s/mig/%s", tree, name);
}

static void show(unsigned minor) {
    char node[64], path[160];
    snprintf(node, sizeof node, "%s/nvidia-cap%u", nodes, minor);
    entry_path(path, sizeof path, names[minor]);
    if (!wanted[minor]) {
        unlink(node);
        if (!unlink(path))
            for (char *slash = strrchr(path, '/'); slash && strlen(path) > sizeof tree; slash = strrchr(path, '/')) {
                *slash = 0;
                if (rmdir(path)) break;
            }
        return;
    }
    if (mknod(node, S_IFCHR | 0444, makedev(MAJOR, minor)) && errno != EEXIST) perror(node);
    chmod(node, 0444);
    parents(path);
    FILE *f = fopen(path, "we");
    if (!f) {
        perror(path);
        return;
    }
    fprintf(f, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    fclose(f);
}

int main(void) {
    char line[512], name[48];
    unsigned minor, gpu, gi, ci;
    FILE *f = fopen(minors_file, "re");
    if (!f) {
        perror(minors_file);
        return 1;
    }
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%47s %u", name, &minor) == 2 && minor < MAX_MINOR) strcpy(names[minor], name);
    fclose(f);
    want("config");
    want("monitor");
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "gi %u %u", &gpu, &gi) == 2)
            snprintf(name, sizeof name, "gpu%u/gi%u/access", gpu, gi);
        else if (sscanf(line, "ci %u %u %u", &gpu, &gi, &ci) == 3)
            snprintf(name, sizeof name, "gpu%u/gi%u/ci%u/access", gpu, gi, ci);
        else
            continue;
        want(name);
    }
    mkdir(nodes, 0755);
    DIR *folder = opendir(nodes);
    if (!folder) {
        perror(nodes);
        return 1;
    }
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
        if (sscanf(entry->d_name, "nvidia-cap%u", &minor) == 1 && minor < MAX_MINOR) there[minor] = true;
    closedir(folder);
    for (minor = 1; minor < MAX_MINOR; minor++)
        if (*names[minor] && (wanted[minor] || there[minor])) show(minor);
    return 0;
}
