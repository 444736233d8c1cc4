/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "state.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char error_text[256];

const char *state_error(void) { return error_text; }

const char *state_path(void) {
    const char *path = getenv("GPUSIM_STATE");
    return path && *path ? path : DEFAULT_STATE;
}

static int bad(const char *what, const char *line) {
    snprintf(error_text, sizeof error_text, "%s: cannot read the %s line \"%.120s\"", state_path(), what, line);
    return EINVAL;
}

static int optional_number(const char *word) { return strcmp(word, "-") == 0 ? -1 : atoi(word); }

static int parse_gpu(State *s, const char *line) {
    unsigned index, unknown[2] = {0, 0};
    Gpu *g = &s->gpus[s->gpu_count];
    if (s->gpu_count == MAX_GPUS) return bad("gpu (too many)", line);
    memset(g, 0, sizeof *g);
    if (sscanf(line, "gpu %u|%95[^|]|%95[^|]|%31[^|]|%29[^|]|%u|%u|%u|%u|%u|%u|%u", &index, g->name, g->uuid, g->pci, g->serial,
               &g->minor, &g->memory_mib, &g->mig_capable, &g->mig_current, &g->mig_pending, &unknown[0], &unknown[1]) < 10)
        return bad("gpu", line);
    g->persistence = unknown[0];
    g->swapped = unknown[1];
    g->board = board_by_name(g->name);
    if (index != s->gpu_count || !g->board) return bad(g->board ? "gpu (index out of order)" : "gpu (unknown name)", line);
    gpu_default_settings(g);
    g->ecc_current = g->ecc_pending = 1;
    s->gpu_count++;
    return 0;
}

static int parse_settings(State *s, const char *line) {
    unsigned gpu;
    Gpu g = {0};
    if (sscanf(line, "settings %u %u %u %u %u %u %u %u %u %u %u", &gpu, &g.power_limit_mw, &g.memory_application, &g.graphics_application,
               &g.graphics_lock[0], &g.graphics_lock[1], &g.memory_lock[0], &g.memory_lock[1], &g.compute_mode, &g.ecc_current,
               &g.ecc_pending) != 11 || gpu >= s->gpu_count)
        return bad("settings", line);
    Gpu *to = &s->gpus[gpu];
    to->power_limit_mw = g.power_limit_mw;
    to->memory_application = g.memory_application;
    to->graphics_application = g.graphics_application;
    memcpy(to->graphics_lock, g.graphics_lock, sizeof g.graphics_lock);
    memcpy(to->memory_lock, g.memory_lock, sizeof g.memory_lock);
    to->compute_mode = g.compute_mode;
    to->ecc_current = g.ecc_current;
    to->ecc_pending = g.ecc_pending;
    return 0;
}

static int parse_instance(State *s, const char *line) {
    unsigned gpu, gi;
    Ci c;
    if (line[0] == 'g') {
        Gi n = {0};
        if (sscanf(line, "gi %u %u %u %u %u", &gpu, &n.id, &n.profile, &n.start, &n.size) != 5 || gpu >= s->gpu_count ||
            s->gpus[gpu].gi_count == MAX_GIS || !profile_by_enum(s->gpus[gpu].board, n.profile))
            return bad("gi", line);
        s->gpus[gpu].gis[s->gpus[gpu].gi_count++] = n;
        return 0;
    }
    if (sscanf(line, "ci %u %u %u %u %u %u", &gpu, &gi, &c.id, &c.profile, &c.start, &c.size) != 6 || gpu >= s->gpu_count)
        return bad("ci", line);
    for (unsigned i = 0; i < s->gpus[gpu].gi_count; i++) {
        Gi *g = &s->gpus[gpu].gis[i];
        if (g->id == gi && g->ci_count < MAX_CIS) {
            g->cis[g->ci_count++] = c;
            return 0;
        }
    }
    return bad("ci (no such GPU instance)", line);
}

static int parse_client(State *s, const char *line) {
    Client *c = &s->clients[s->client_count];
    char gi[12], ci[12], life[8];
    if (s->client_count == MAX_CLIENTS ||
        sscanf(line, "client %u %d %11s %11s %u %c %7s %95[^\n]", &c->pid, &c->gpu, gi, ci, &c->memory_mib, &c->kind, life, c->name) != 8)
        return bad("client", line);
    c->gi = optional_number(gi);
    c->ci = optional_number(ci);
    c->live = strcmp(life, "live") == 0;
    s->client_count++;
    return 0;
}

static int parse_fault(State *s, const char *line) {
    Fault *f = &s->faults[s->fault_count];
    char gpu[12];
    f->value = f->code = 0;
    if (s->fault_count == MAX_FAULTS || sscanf(line, "fault %31s %11s %ld %ld", f->name, gpu, &f->value, &f->code) < 2)
        return bad("fault", line);
    f->gpu = optional_number(gpu);
    s->fault_count++;
    return 0;
}

int state_cluster(State *s, const char *digits) {
    if (strlen(digits) != 2 * sizeof s->cluster || strspn(digits, "0123456789abcdef") != strlen(digits)) return EINVAL;
    for (size_t i = 0; i < sizeof s->cluster; i++) sscanf(digits + 2 * i, "%2hhx", &s->cluster[i]);
    return 0;
}

static int parse_fabric(State *s, const char *line) {
    char digits[40];
    int words = sscanf(line, "fabric %u %39s %u", &s->fabric, digits, &s->clique);
    return words == 1 || (words == 3 && !state_cluster(s, digits)) ? 0 : bad("fabric", line);
}

static int parse_line(State *s, const char *line) {
    char word[16] = "";
    sscanf(line, "%15s", word);
    if (!strcmp(word, "gpu")) return parse_gpu(s, line);
    if (!strcmp(word, "settings")) return parse_settings(s, line);
    if (!strcmp(word, "gi") || !strcmp(word, "ci")) return parse_instance(s, line);
    if (!strcmp(word, "client")) return parse_client(s, line);
    if (!strcmp(word, "fault")) return parse_fault(s, line);
    if (!strcmp(word, "driver")) {
        if (sscanf(line, "driver %31s", s->driver) != 1 || !strcmp(s->driver, "none")) s->driver[0] = 0;
        return 0;
    }
    if (!strcmp(word, "fabric")) return parse_fabric(s, line);
    if (!strcmp(word, "generation")) return sscanf(line, "generation %lu", &s->generation) == 1 ? 0 : bad("generation", line);
    if (!strcmp(word, "nvswitch")) {
        NvSwitch *n = &s->nvswitches[s->nvswitch_count];
        if (s->nvswitch_count == MAX_NVSWITCHES || sscanf(line, "nvswitch %31s %x", n->pci, &n->device) != 2) return bad("nvswitch", line);
        s->nvswitch_count++;
        return 0;
    }
    /* Captured states also name their NVML and CUDA versions: both follow from the driver here. */
    if (!*word || *word == '#' || !strcmp(word, "nvml") || !strcmp(word, "cuda")) return 0;
    return bad("unknown", line);
}

int state_parse(State *s, char *text) {
    memset(s, 0, sizeof *s);
    s->fabric = 3;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strcmp(line, "end")) break;   /* what follows is the tail of a longer, older state */
        int rc = parse_line(s, line);
        if (rc) return rc;
    }
    return 0;
}

static int load(State *s, int fd) {
    struct stat st;
    if (fstat(fd, &st)) return errno;
    char *text = malloc((size_t)st.st_size + 1);
    if (!text) return ENOMEM;
    ssize_t n = pread(fd, text, (size_t)st.st_size, 0);
    int rc = n < 0 ? errno : 0;
    if (!rc) {
        text[n] = 0;
        rc = state_parse(s, text);
    }
    free(text);
    return rc;
}

static int open_error(void) {
    int rc = errno;
    snprintf(error_text, sizeof error_text, "%s: %s", state_path(), strerror(rc));
    return rc;
}

int state_read(State *s) {
    char head[40];
    uint64_t generation;
    int fd = open(state_path(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return open_error();
    flock(fd, LOCK_SH);
    ssize_t n = pread(fd, head, sizeof head - 1, 0);
    int rc = n < 0 ? errno : 0;
    if (!rc) {
        head[n] = 0;
        if (sscanf(head, "generation %lu\n", &generation) != 1 || generation != s->generation) rc = load(s, fd);
    }
    close(fd);
    return rc;
}

int state_edit(State *s, int *fd) {
    *fd = open(state_path(), O_RDWR | O_CLOEXEC);
    if (*fd < 0) return open_error();
    flock(*fd, LOCK_EX);
    int rc = load(s, *fd);
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

void state_abandon(int fd) { close(fd); }

static int write_out(State *s, int fd) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t stamp = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    s->generation = stamp > s->generation ? stamp : s->generation + 1;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return ENOMEM;
    state_print(s, out);
    fclose(out);
    /* In place, so that the lock stays with the file. The text ends with "end": cut off between the two calls
     * below, the file still reads as the new state. */
    int rc = pwrite(fd, text, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0 ? 0 : errno;
    free(text);
    return rc;
}

int state_commit(State *s, int fd) {
    int rc = write_out(s, fd);
    close(fd);
    return rc;
}

int state_create(State *s) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s", state_path());
    if (strrchr(folder, '/')) *strrchr(folder, '/') = 0;
    if (*folder) mkdir(folder, 0755);   /* if that fails, open says why */
    int fd = open(state_path(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return open_error() == ENOENT ? EIO : errno;
    flock(fd, LOCK_EX);
    return state_commit(s, fd);
}

static void print_optional(FILE *out, int number) {
    if (number < 0)
        fputs(" -", out);
    else
        fprintf(out, " %d", number);
}

/* Only if a program has set something, so that states without it stay as they were. */
static void print_settings(FILE *out, unsigned i, const Gpu *g) {
    Gpu plain = {.board = g->board};
    gpu_default_settings(&plain);
    if (g->ecc_current && g->ecc_pending && g->power_limit_mw == plain.power_limit_mw && g->memory_application == plain.memory_application &&
        g->graphics_application == plain.graphics_application && !g->graphics_lock[1] && !g->memory_lock[1] && !g->compute_mode)
        return;
    fprintf(out, "settings %u %u %u %u %u %u %u %u %u %u %u\n", i, g->power_limit_mw, g->memory_application, g->graphics_application,
            g->graphics_lock[0], g->graphics_lock[1], g->memory_lock[0], g->memory_lock[1], g->compute_mode, g->ecc_current, g->ecc_pending);
}

void state_print(const State *s, FILE *out) {
    fprintf(out, "generation %lu\ndriver %s\nfabric %u ", s->generation, *s->driver ? s->driver : "none", s->fabric);
    for (size_t i = 0; i < sizeof s->cluster; i++) fprintf(out, "%02x", s->cluster[i]);
    fprintf(out, " %u\n", s->clique);
    for (unsigned i = 0; i < s->nvswitch_count; i++) fprintf(out, "nvswitch %s %04x\n", s->nvswitches[i].pci, s->nvswitches[i].device);
    for (unsigned i = 0; i < s->gpu_count; i++) {
        const Gpu *g = &s->gpus[i];
        fprintf(out, "gpu %u|%s|%s|%s|%s|%u|%u|%u|%u|%u|%u|%u\n", i, g->name, g->uuid, g->pci, g->serial, g->minor, g->memory_mib,
                g->mig_capable, g->mig_current, g->mig_pending, g->persistence, g->swapped);
        print_settings(out, i, g);
        for (unsigned j = 0; j < g->gi_count; j++) {
            const Gi *gi = &g->gis[j];
            fprintf(out, "gi %u %u %u %u %u\n", i, gi->id, gi->profile, gi->start, gi->size);
            for (unsigned k = 0; k < gi->ci_count; k++)
                fprintf(out, "ci %u %u %u %u %u %u\n", i, gi->id, gi->cis[k].id, gi->cis[k].profile, gi->cis[k].start, gi->cis[k].size);
        }
    }
    for (unsigned i = 0; i < s->client_count; i++) {
        const Client *c = &s->clients[i];
        fprintf(out, "client %u %d", c->pid, c->gpu);
        print_optional(out, c->gi);
        print_optional(out, c->ci);
        fprintf(out, " %u %c %s %s\n", c->memory_mib, c->kind, c->live ? "live" : "fixed", c->name);
    }
    for (unsigned i = 0; i < s->fault_count; i++) {
        fprintf(out, "fault %s", s->faults[i].name);
        print_optional(out, s->faults[i].gpu);
        fprintf(out, " %ld %ld\n", s->faults[i].value, s->faults[i].code);
    }
    fputs("end\n", out);
}

const Fault *fault_find(const State *s, const char *name, int gpu) {
    for (unsigned i = 0; i < s->fault_count; i++) {
        const Fault *f = &s->faults[i];
        if (!strcmp(f->name, name) && (f->gpu == ALL_GPUS || gpu == ALL_GPUS || f->gpu == gpu)) return f;
    }
    return NULL;
}

void fault_remove(State *s, const Fault *fault) {
    unsigned i = (unsigned)(fault - s->faults);
    memmove(&s->faults[i], &s->faults[i + 1], (--s->fault_count - i) * sizeof *fault);
}

bool client_alive(const Client *c) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%u", c->pid);
    return !c->live || access(path, F_OK) == 0;
}

bool is_busy(const State *s, int gpu, int gi, int ci) {
    for (unsigned i = 0; i < s->client_count; i++) {
        const Client *c = &s->clients[i];
        if (c->gpu == gpu && (gi < 0 || c->gi == gi) && (ci < 0 || c->ci == ci) && client_alive(c)) return true;
    }
    return false;
}

void gpu_default_settings(Gpu *g) {
    g->power_limit_mw = g->board->power_limit_w * 1000;
    g->memory_application = g->board->memory_application;
    g->graphics_application = g->board->graphics_application;
    memset(g->graphics_lock, 0, sizeof g->graphics_lock);
    memset(g->memory_lock, 0, sizeof g->memory_lock);
    g->compute_mode = 0;
}

void gpu_reset(State *s, int gpu) {
    Gpu *g = &s->gpus[gpu];
    const Fault *fault;
    g->gi_count = 0;
    g->mig_current = g->mig_pending;
    g->ecc_current = g->ecc_pending;
    gpu_default_settings(g);
    static const char *const healed[] = {"reset-required", "remap-pending", "pages-pending", "recovery"};
    for (unsigned i = 0; i < sizeof healed / sizeof *healed; i++)
        while ((fault = fault_find(s, healed[i], gpu))) fault_remove(s, fault);
}

void module_reload(State *s) {
    for (unsigned i = 0; i < s->gpu_count; i++) {
        Gpu *g = &s->gpus[i];
        /* Ampere keeps the mode in its InfoROM; later ones forget it with the module. */
        if (g->board->architecture >= ARCH_HOPPER) g->mig_pending = 0;
        gpu_reset(s, (int)i);
        g->persistence = 0;
    }
}
