/* Copyright: gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 * A daemon that behaves outwardly as dcgm-exporter: it serves /metrics and /health, asks nv-hostengine for each scrape,
 * and shows the fields that its file of counters names (lines FIELD, type, help). Without an engine it does not start. */
#include <arpa/inet.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char engine[256], address[256] = ":9400", counters[512] = "/etc/dcgm-exporter/default-counters.csv", jobs[512];

/* A socket of HOST:PORT, connected or listening; -1 where that fails. */
static int tcp(const char *where, int listening) {
    char host[256];
    snprintf(host, sizeof host, "%s", where);
    char *port = strrchr(host, ':');
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    if (!port) return -1;
    *port++ = 0;
    if (getaddrinfo(*host ? host : listening ? NULL : "localhost", port, &hints, &found)) return -1;
    int handle = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int rc = listening ? bind(handle, found->ai_addr, found->ai_addrlen) || listen(handle, 8)
                       : connect(handle, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (rc) close(handle);
    return rc ? -1 : handle;
}

/* What the engine says now, in one text; NULL where it does not answer. */
static char *ask(void) {
    static char text[1 << 18];
    int handle = tcp(engine, 0);
    if (handle < 0) return NULL;
    size_t length = 0;
    for (ssize_t got; (got = read(handle, text + length, sizeof text - 1 - length)) > 0;) length += (size_t)got;
    text[length] = 0;
    close(handle);
    return text;
}

/* The label with the first job of a GPU, from the file of the folder of jobs that has its index as name. */
static const char *job_label(unsigned gpu) {
    static char label[128];
    char path[600], id[64] = "";
    snprintf(path, sizeof path, "%s/%u", jobs, gpu);
    FILE *file = *jobs ? fopen(path, "r") : NULL;
    *label = 0;
    if (file && fscanf(file, "%63s", id) == 1) snprintf(label, sizeof label, ",hpc_job=\"%s\"", id);
    if (file) fclose(file);
    return label;
}

static void metrics(FILE *out) {
    FILE *file = fopen(counters, "r");
    char *all = ask(), row[512], name[128], type[32], help[256], host[64] = "";
    gethostname(host, sizeof host - 1);
    while (file && all && fgets(row, sizeof row, file)) {
        if (sscanf(row, " %127[A-Z0-9_] , %31[a-z] , %255[^\n]", name, type, help) != 3) continue;
        int shown = 0;
        for (char *line = all; line && *line; line = strchr(line, '\n'), line += line != NULL) {
            char field[128], uuid[96], device[32], model[96];
            unsigned gpu;
            double value;
            if (sscanf(line, "%127s %u %95s %31s %95[^|]|%lf", field, &gpu, uuid, device, model, &value) != 6 ||
                strcmp(field, name)) continue;
            if (!shown++) fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
            fprintf(out, "%s{gpu=\"%u\",UUID=\"%s\",device=\"%s\",modelName=\"%s\",Hostname=\"%s\"%s} %f\n", name, gpu, uuid, device,
                    model, host, job_label(gpu), value);
        }
    }
    if (file) fclose(file);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strncmp(flag, "--collect-interval=", 19)) { i--; continue; }
        if (!strcmp(flag, "-a") || !strcmp(flag, "--address")) snprintf(address, sizeof address, "%s", value);
        else if (!strcmp(flag, "-f") || !strcmp(flag, "--collectors")) snprintf(counters, sizeof counters, "%s", value);
        else if (!strcmp(flag, "-r") || !strcmp(flag, "--remote-hostengine-info")) snprintf(engine, sizeof engine, "%s", value);
        else if (!strcmp(flag, "--hpc-job-mapping-dir")) snprintf(jobs, sizeof jobs, "%s", value);
        else if (!strcmp(flag, "--web-config-file")) {
            if (access(value, R_OK)) return fprintf(stderr, "level=ERROR msg=\"open %s: no such file\"\n", value), 1;
        }
        else return fprintf(stderr, "flag provided but not defined: %s\n", flag), 1;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!*engine) strcpy(engine, "localhost:5555");
    char *first = NULL;
    for (int i = 0; i < 50 && !(first = ask()); i++) usleep(100000);
    if (!first || !*first) {
        fprintf(stderr, "level=ERROR msg=\"%s\"\n", first ? "no GPU: could not find any supported devices" :
                "error connecting to nv-hostengine: the connection to the host engine is not valid any longer");
        return 1;
    }
    if (access(counters, R_OK)) return fprintf(stderr, "level=ERROR msg=\"could not read metrics file '%s'\"\n", counters), 1;
    int listener = tcp(address, 1);
    if (listener < 0) return fprintf(stderr, "level=ERROR msg=\"listen tcp %s: bind: address already in use\"\n", address), 1;
    for (;;) {
        int client = accept(listener, 0, 0);
        if (client < 0) continue;
        FILE *in = fdopen(client, "r"), *out = fdopen(dup(client), "w");
        char request[512] = "";
        if (fgets(request, sizeof request, in)) {
            int known = !strncmp(request, "GET /metrics ", 13), health = !strncmp(request, "GET /health ", 12);
            for (char row[512]; fgets(row, sizeof row, in) && strcspn(row, "\r\n");) {}
            fprintf(out, "HTTP/1.0 %s\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n", known || health ? "200 OK" : "404 Not Found");
            if (known) metrics(out);
            if (health) fputs("OK\n", out);
        }
        fclose(out);
        fclose(in);
    }
}
