/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * gpusim: the hand that sets up and disturbs the simulated machine. */
#include "gpusim.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "gpusim: the simulated GPUs of this host. State: $GPUSIM_STATE, or " DEFAULT_STATE ".\n"
    "  init [--driver VERSION|none] [--seed TEXT] MODEL[:swapped]=COUNT...   a new machine\n"
    "  load FILE|-            a machine from a state file\n"
    "  show                   the state\n"
    "  pci                    a line for each GPU and NVSwitch, tab-separated: address, vendor, device, class,\n"
    "                         subsystem vendor, subsystem device, gpu|nvswitch, minor, UUID, VBIOS, name\n"
    "  caps                   the contents of /proc/driver/nvidia-caps/mig-minors\n"
    "  kmsg                   the records of the faults xid, as /dev/kmsg has them\n"
    "  driver VERSION|none    the module that counts as loaded where GPUSIM_STATE is set\n"
    "  fabric STATE [CLUSTER CLIQUE]  NVLink fabric of all GPUs that have one: 1 not started, 2 in progress, 3 completed;\n"
    "                         CLUSTER: its UUID as 32 digits, zero where it ends at the machine\n"
    "  fault set NAME [GPU|all] [VALUE] [CODE] | fault clear [NAME [GPU|all]] | fault list\n"
    "  client add [--pid PID] [--gpu GPU] [--gi ID --ci ID] [--memory MIB] [--kind C|G|M] [--live] NAME\n"
    "                         a process on a GPU; --live: only while that PID exists\n"
    "  client remove PID|all | client list     (list: exit status 1 when there is none)\n"
    "  reset GPU              what a GPU reset does; refused (status 3) while clients use it\n"
    "  reload                 what a reload of the module or a reboot does; refused (status 3) while clients use a GPU\n";

/* Name, the NVML call it shows in, what VALUE means. */
static const struct { const char *name, *text; bool needs_value; } faults[] = {
    {"init-unknown", "nvmlInit gives UNKNOWN (999)", false},
    {"driver-not-loaded", "nvmlInit gives DRIVER_NOT_LOADED (9)", false},
    {"lib-mismatch", "nvmlInit gives LIB_RM_VERSION_MISMATCH (18)", false},
    {"gpu-lost", "all calls of the GPU give GPU_IS_LOST (15)", false},
    {"off-bus", "the GPU is missing from the count and from PCI", false},
    {"timeout", "all calls of the GPU give TIMEOUT (10)", false},
    {"slow", "every call takes VALUE ms", true},
    {"reset-required", "all calls of the GPU give RESET_REQUIRED (16) until a reset or reload", false},
    {"corrupted-inforom", "all calls of the GPU give CORRUPTED_INFOROM (14)", false},
    {"lost-reading", "the next call of the GPU gives UNKNOWN (999), then it works again", false},
    {"in-use", "a MIG mode change stays pending, activation IN_USE (19)", false},
    {"mode-pending", "a MIG mode change stays pending until a reset, activation RESET_REQUIRED (16)", false},
    {"reboot-only", "a MIG mode change stays pending until a reload or reboot; a reset gives NOT_SUPPORTED (3)", false},
    {"profile-counts", "nvmlDeviceGetGpuInstanceProfileInfo gives VALUE as the instance count of each profile", true},
    {"destroy-in-use", "destroying instances gives IN_USE (19)", false},
    {"reset-fails", "a reset is refused: IN_USE (19)", false},
    {"no-permission", "privileged calls give NO_PERMISSION (4)", false},
    {"insufficient-resources", "creating instances gives INSUFFICIENT_RESOURCES (23)", false},
    {"create-fails-at", "the VALUEth creation of an instance gives CODE (23 unless named), later ones work", true},
    {"ecc-errors", "VALUE uncorrected ECC errors", true},
    {"ecc-aggregate", "VALUE uncorrected ECC errors, all before the driver was loaded", true},
    {"pages-pending", "a memory page waits for its retirement (GPUs before Ampere)", false},
    {"rows-remapped", "VALUE rows are remapped after uncorrectable errors (Ampere and later, as the next two)", true},
    {"remap-pending", "a row waits for its remapping until a reset or reload", false},
    {"remap-failed", "a row could not be remapped", false},
    {"nvlink-down", "NVLink number VALUE is inactive", true},
    {"pcie-width", "the PCIe link has VALUE lanes", true},
    {"pcie-generation", "the PCIe link has generation VALUE, also while the GPU is busy", true},
    {"slowdown", "VALUE, a bit mask, is added to the reasons of the clocks: 32 SW thermal, 64 HW thermal, 128 power brake", true},
    {"recovery", "the driver recommends recovery action VALUE: 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset", true},
    {"fabric-failed", "the GPU's registration with the NVLink fabric has ended with error VALUE", true},
    {"xid", "the kernel log has Xid VALUE of the GPU, CODE times (once unless named)", true},
    {"memory-not-supported", "memory information gives NOT_SUPPORTED (3)", false},
};

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("gpusim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

void check(int rc) {
    if (rc == ENOENT) fail("%s: no machine is simulated here; make one with: gpusim init a100-80=8", state_path());
    if (rc) fail("%s", *state_error() ? state_error() : strerror(rc));
}

unsigned number(const char *text, const char *what) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (!*text || *end) fail("\"%s\" is not a number (%s)", text, what);
    return (unsigned)n;
}

static int gpu_number(const State *s, const char *text) {
    if (!strcmp(text, "all")) return ALL_GPUS;
    unsigned gpu = number(text, "a GPU's place in the state");
    if (gpu >= s->gpu_count) fail("there is no GPU %u: this host has %u", gpu, s->gpu_count);
    return (int)gpu;
}

static void clear_faults(State *s, const char *name, int gpu) {
    for (unsigned i = s->fault_count; i-- > 0;)
        if ((!name || !strcmp(s->faults[i].name, name)) && (gpu == ALL_GPUS || s->faults[i].gpu == gpu)) fault_remove(s, &s->faults[i]);
}

static void command_fault(State *s, int argc, char **argv) {
    const char *verb = argc ? argv[0] : "list", *name = argc > 1 ? argv[1] : NULL;
    int gpu = argc > 2 ? gpu_number(s, argv[2]) : ALL_GPUS;
    if (!strcmp(verb, "list")) {
        for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) printf("%-23s %s\n", faults[i].name, faults[i].text);
        return;
    }
    unsigned kind = 0, count = sizeof faults / sizeof *faults;
    while (name && kind < count && strcmp(faults[kind].name, name)) kind++;
    if (kind == count) fail("there is no fault \"%s\"; see: gpusim fault list", name);
    if (!strcmp(verb, "clear")) {
        clear_faults(s, name, gpu);
    } else if (!strcmp(verb, "set") && name) {
        if (faults[kind].needs_value && argc < 4) fail("fault %s needs a VALUE: %s", name, faults[kind].text);
        if (s->fault_count == MAX_FAULTS) fail("more than %d faults", MAX_FAULTS);
        clear_faults(s, name, gpu);
        Fault *f = &s->faults[s->fault_count++];
        *f = (Fault){.gpu = gpu, .value = argc > 3 ? (long)number(argv[3], "VALUE") : 0, .code = argc > 4 ? (long)number(argv[4], "CODE") : 0};
        snprintf(f->name, sizeof f->name, "%s", name);
    } else {
        fail("fault set NAME, fault clear [NAME] or fault list");
    }
}

static void add_client(State *s, int argc, char **argv) {
    static unsigned fake_pid = 40000;
    Client c = {.gpu = 0, .gi = -1, .ci = -1, .memory_mib = 512, .kind = 'C'};
    int i = 0;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--live")) {
            c.live = true;
            continue;
        }
        if (++i == argc) fail("%s needs a value", option);
        if (!strcmp(option, "--pid"))
            c.pid = number(argv[i], option);
        else if (!strcmp(option, "--gpu"))
            c.gpu = (int)number(argv[i], option);
        else if (!strcmp(option, "--gi"))
            c.gi = (int)number(argv[i], option);
        else if (!strcmp(option, "--ci"))
            c.ci = (int)number(argv[i], option);
        else if (!strcmp(option, "--memory"))
            c.memory_mib = number(argv[i], option);
        else if (!strcmp(option, "--kind") && strlen(argv[i]) == 1 && strchr("CGM", argv[i][0]))
            c.kind = argv[i][0];
        else
            fail("client add does not know %s %s", option, argv[i]);
    }
    if (i != argc - 1) fail("client add [OPTIONS] NAME");
    if ((unsigned)c.gpu >= s->gpu_count) fail("there is no GPU %d: this host has %u", c.gpu, s->gpu_count);
    if (s->client_count == MAX_CLIENTS) fail("more than %d clients", MAX_CLIENTS);
    for (unsigned k = 0; k < s->client_count; k++)
        if (s->clients[k].pid >= fake_pid) fake_pid = s->clients[k].pid + 1;
    if (!c.pid) c.pid = fake_pid;
    snprintf(c.name, sizeof c.name, "%s", argv[i]);
    s->clients[s->client_count++] = c;
    printf("%u\n", c.pid);
}

static void command_client(State *s, int argc, char **argv) {
    if (argc >= 1 && !strcmp(argv[0], "add")) {
        add_client(s, argc - 1, argv + 1);
    } else if (argc == 2 && !strcmp(argv[0], "remove")) {
        unsigned kept = 0, pid = strcmp(argv[1], "all") ? number(argv[1], "PID") : 0;
        for (unsigned i = 0; i < s->client_count; i++)
            if (pid && s->clients[i].pid != pid) s->clients[kept++] = s->clients[i];
        s->client_count = kept;
    } else {
        fail("client add [OPTIONS] NAME, client remove PID|all or client list");
    }
}

static int list_clients(const State *s) {
    int status = 1;
    for (unsigned i = 0; i < s->client_count; i++) {
        if (!client_alive(&s->clients[i])) continue;
        printf("%u\t%d\t%s\n", s->clients[i].pid, s->clients[i].gpu, s->clients[i].name);
        status = 0;
    }
    return status;
}

static int refuse_busy(const State *s, int first, int last) {
    for (int gpu = first; gpu <= last; gpu++)
        if (is_busy(s, gpu, -1, -1)) {
            fprintf(stderr, "gpusim: GPU %d is in use; see: gpusim client list\n", gpu);
            return 3;
        }
    return 0;
}

static int change(State *s, const char *command, int argc, char **argv) {
    if (!strcmp(command, "driver") && argc == 1) {
        snprintf(s->driver, sizeof s->driver, "%s", strcmp(argv[0], "none") ? argv[0] : "");
    } else if (!strcmp(command, "fabric") && argc == 1) {
        s->fabric = number(argv[0], "fabric state");
    } else if (!strcmp(command, "fabric") && argc == 3) {
        s->fabric = number(argv[0], "fabric state");
        if (state_cluster(s, argv[1])) fail("\"%s\" is not a UUID as 32 hexadecimal digits", argv[1]);
        s->clique = number(argv[2], "clique id");
    } else if (!strcmp(command, "fault")) {
        command_fault(s, argc, argv);
    } else if (!strcmp(command, "client")) {
        command_client(s, argc, argv);
    } else if (!strcmp(command, "reset") && argc == 1) {
        int gpu = gpu_number(s, argv[0]), first = gpu < 0 ? 0 : gpu, last = gpu < 0 ? (int)s->gpu_count - 1 : gpu;
        int rc = refuse_busy(s, first, last);
        for (int i = first; !rc && i <= last; i++) gpu_reset(s, i);
        return rc;
    } else if (!strcmp(command, "reload") && argc == 0) {
        int rc = refuse_busy(s, 0, (int)s->gpu_count - 1);
        if (!rc) module_reload(s);
        return rc;
    } else {
        fail("there is no command \"%s\" of this form\n%s", command, usage);
    }
    return 0;
}

int main(int argc, char **argv) {
    static State s;
    int fd;
    const char *command = argc > 1 ? argv[1] : "help";
    if (!strcmp(command, "help") || !strcmp(command, "--help")) {
        fputs(usage, stdout);
        return 0;
    }
    if (!strcmp(command, "init") && argc > 2) {
        command_init(argc - 2, argv + 2);
        return 0;
    }
    if (!strcmp(command, "load") && argc == 3) {
        command_load(argv[2]);
        return 0;
    }
    if (!strcmp(command, "caps")) {
        command_caps();
        return 0;
    }
    bool list = argc == 3 && !strcmp(command, "client") && !strcmp(argv[2], "list");
    if (list || !strcmp(command, "show") || !strcmp(command, "pci") || !strcmp(command, "kmsg")) {
        check(state_read(&s));
        if (list) return list_clients(&s);
        if (!strcmp(command, "kmsg")) {
            command_kmsg(&s);
            return 0;
        }
        if (!strcmp(command, "show"))
            state_print(&s, stdout);
        else
            command_pci(&s);
        return 0;
    }
    check(state_edit(&s, &fd));
    int rc = change(&s, command, argc - 2, argv + 2);
    if (rc)
        state_abandon(fd);
    else
        check(state_commit(&s, fd));
    return rc;
}
