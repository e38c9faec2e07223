// The bench's upstream: one thread, one epoll loop, recorded answers. It is not what is measured.
//
//     upstream PORT RECORDING PACE_MS
//
// RECORDING is written by bench/recording.py: records of `KIND METHOD PATH TAKES GIVES\n`, TAKES bytes of a request's
// body, GIVES bytes of an answer. Kind `exact` answers one request, byte for byte. Kinds `whole.*` and `large.*` are
// chat answers, `open.*`, `token.*` and `finish.*` the events of a chat stream; each of them `.plain` or `.injected`.
// A stream gets its first event at once, then one every PACE_MS (or what a message says: `pace=200`), as many tokens as
// its `max_tokens` says.
// GET /bench/stats counts what came.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define LARGE 100000  // bytes of a body: from here on it is the long prompt
#define MAX_HEAD 65536
#define MAX_BODY (64 << 20)
#define DONE "data: [DONE]\n\n"

typedef struct { char *at; size_t len; } Bytes;
typedef struct { char kind[24], method[8], path[64]; Bytes takes, gives; } Record;
typedef struct { Bytes *items; size_t count; } Events;

typedef struct Connection {
    int fd;
    char *in; size_t in_len, in_room;
    char *out; size_t out_at, out_len, out_room;
    int writing, closing;
    // A stream under way: `left` tokens, the next one due at `due` (ns).
    int streaming, injected, left, sent;
    uint64_t due, pace;
    struct Connection *next, *previous;  // of the list of streams
} Connection;

static Record *records; static size_t record_count;
static Events opens[2], tokens[2], finishes[2];
static Bytes whole[2], large[2];
static Connection *streams;
static int epoll, timer;
static uint64_t pace_ns;
static struct { uint64_t requests, injected, streams, events, open, abandoned; } stats;
static char date[64];

static void die(const char *what) { perror(what); exit(1); }

static void *sure(void *memory) { if (!memory) die("memory"); return memory; }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// --- the recording ---------------------------------------------------------------------------------------------

static void keep(Events *events, Bytes one) {
    events->items = sure(realloc(events->items, (events->count + 1) * sizeof *events->items));
    events->items[events->count++] = one;
}

static void file_away(const Record *record) {
    char kind[24];
    strcpy(kind, record->kind);
    char *dot = strchr(kind, '.');
    if (!dot) return;
    *dot = 0;
    int injected = !strcmp(dot + 1, "injected");
    if (!strcmp(kind, "whole")) whole[injected] = record->gives;
    else if (!strcmp(kind, "large")) large[injected] = record->gives;
    else keep(!strcmp(kind, "open") ? opens + injected : !strcmp(kind, "token") ? tokens + injected : finishes + injected,
              record->gives);
}

static Bytes read_bytes(FILE *file, size_t len) {
    Bytes one = {sure(malloc(len + 1)), len};
    if (fread(one.at, 1, len, file) != len) { fprintf(stderr, "the recording is cut off\n"); exit(1); }
    one.at[len] = 0;
    return one;
}

static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    Record record;
    size_t takes, gives;
    while (fscanf(file, "%23s %7s %63s %zu %zu", record.kind, record.method, record.path, &takes, &gives) == 5) {
        fgetc(file);
        record.takes = read_bytes(file, takes);
        record.gives = read_bytes(file, gives);
        records = sure(realloc(records, (record_count + 1) * sizeof *records));
        records[record_count++] = record;
        file_away(&record);
    }
    fclose(file);
    for (int i = 0; i < 2; i++)
        if (!opens[i].count || !tokens[i].count || !finishes[i].count || !whole[i].at || !large[i].at) {
            fprintf(stderr, "the recording lacks answers\n");
            exit(1);
        }
}

// --- writing ---------------------------------------------------------------------------------------------------

static void watch(Connection *one, int op, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = one};
    epoll_ctl(epoll, op, one->fd, &event);
}

static void put(Connection *one, const char *bytes, size_t len) {
    if (one->out_len + len > one->out_room) {
        one->out_room = (one->out_len + len) * 2;
        one->out = sure(realloc(one->out, one->out_room));
    }
    memcpy(one->out + one->out_len, bytes, len);
    one->out_len += len;
}

static void put_chunk(Connection *one, const char *prefix, Bytes event, const char *suffix) {
    char head[32];
    size_t before = strlen(prefix), after = strlen(suffix);
    put(one, head, (size_t)snprintf(head, sizeof head, "%zx\r\n", before + event.len + after));
    put(one, prefix, before);
    put(one, event.at, event.len);
    put(one, suffix, after);
    put(one, "\r\n", 2);
}

static void put_head(Connection *one, int status, const char *type, long length) {
    char head[400];
    const char *reason = status == 200 ? "OK" : status == 404 ? "Not Found" : "Bad Request";
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\ndate: %s\r\nserver: uvicorn\r\n", status, reason, date);
    if (type) n += snprintf(head + n, sizeof head - (size_t)n, "content-type: %s\r\n", type);
    if (length >= 0) n += snprintf(head + n, sizeof head - (size_t)n, "content-length: %ld\r\n\r\n", length);
    else n += snprintf(head + n, sizeof head - (size_t)n, "transfer-encoding: chunked\r\n\r\n");
    put(one, head, (size_t)n);
}

static void answer(Connection *one, int status, Bytes body) {
    put_head(one, status, body.len ? "application/json" : NULL, (long)body.len);
    put(one, body.at, body.len);
}

static int flush(Connection *one) {  // 0 where the other end has gone
    while (one->out_at < one->out_len) {
        ssize_t n = send(one->fd, one->out + one->out_at, one->out_len - one->out_at, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!one->writing) watch(one, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            one->writing = 1;
            return 1;
        }
        if (n < 0) return 0;
        one->out_at += (size_t)n;
    }
    one->out_at = one->out_len = 0;
    if (one->writing) watch(one, EPOLL_CTL_MOD, EPOLLIN);
    one->writing = 0;
    return !one->closing;
}

// --- streams ---------------------------------------------------------------------------------------------------

static void unlink_stream(Connection *one) {
    if (!one->streaming) return;
    if (one->previous) one->previous->next = one->next; else streams = one->next;
    if (one->next) one->next->previous = one->previous;
    one->streaming = 0;
    stats.open--;
}

static void begin_stream(Connection *one, int injected, int count, uint64_t pace) {
    put_head(one, 200, "text/event-stream; charset=utf-8", -1);
    put_chunk(one, "data: ", opens[injected].items[0], "\n\n");
    one->streaming = 1, one->injected = injected, one->left = count, one->sent = 0;
    one->pace = pace, one->due = now_ns() + pace;
    one->previous = NULL, one->next = streams;
    if (streams) streams->previous = one;
    streams = one;
    stats.streams++, stats.open++, stats.events++;
}

static void step_stream(Connection *one) {
    int i = one->injected;
    stats.events++;
    if (--one->left > 0) {
        put_chunk(one, "data: ", tokens[i].items[(size_t)one->sent++ % tokens[i].count], "\n\n");
        one->due += one->pace;
        return;
    }
    put_chunk(one, "data: ", finishes[i].items[0], "\n\n");
    put_chunk(one, DONE, (Bytes){"", 0}, "");
    put(one, "0\r\n\r\n", 5);
    unlink_stream(one);
}

static void forget(Connection *one) {
    if (one->streaming) stats.abandoned++;
    unlink_stream(one);
    close(one->fd);
    free(one->in);
    free(one->out);
    free(one);
}

// --- reading ---------------------------------------------------------------------------------------------------

static const char *value_of(Bytes body, const char *key) {  // of a top-level member, as far as the bench writes them
    char *found = memmem(body.at, body.len, key, strlen(key));
    if (!found) return "";
    for (found += strlen(key); *found == ' ' || *found == ':';) found++;
    return found;
}

static void chat(Connection *one, Bytes body) {
    int injected = *value_of(body, "\"return_token_ids\"") == 't';
    stats.requests++;
    stats.injected += (uint64_t)injected;
    if (*value_of(body, "\"stream\"") == 't') {
        int count = atoi(value_of(body, "\"max_tokens\""));
        double pace = atof(value_of(body, "pace="));
        begin_stream(one, injected, count > 0 ? count : 16, pace > 0 ? (uint64_t)(pace * 1e6) : pace_ns);
    } else answer(one, 200, body.len > LARGE ? large[injected] : whole[injected]);
}

static void route(Connection *one, const char *method, const char *path, Bytes body) {
    if (!strcmp(path, "/health")) { answer(one, 200, (Bytes){"", 0}); return; }
    if (!strcmp(path, "/bench/stats")) {
        char text[300];
        int n = snprintf(text, sizeof text,
                         "{\"requests\":%lu,\"injected\":%lu,\"streams\":%lu,\"events\":%lu,\"open\":%lu,\"abandoned\":%lu}",
                         stats.requests, stats.injected, stats.streams, stats.events, stats.open, stats.abandoned);
        answer(one, 200, (Bytes){text, (size_t)n});
        return;
    }
    if (!strcmp(path, "/v1/chat/completions") && !strcmp(method, "POST")) { chat(one, body); return; }
    for (size_t i = 0; i < record_count; i++) {
        const Record *r = records + i;
        if (!strcmp(r->kind, "exact") && !strcmp(r->method, method) && !strcmp(r->path, path)
            && r->takes.len == body.len && !memcmp(r->takes.at, body.at, body.len)) {
            answer(one, 200, r->gives);
            return;
        }
    }
    static char nothing[] = "{\"detail\":\"Not Found\"}";
    answer(one, 404, (Bytes){nothing, sizeof nothing - 1});
}

static const char *header(const char *head, const char *name) {  // its value, "" where there is none
    size_t len = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, len) && line[2 + len] == ':') {
            for (line += 3 + len; *line == ' ';) line++;
            return line;
        }
    return "";
}

static int serve_one(Connection *one) {  // 1 where a whole request was taken off the buffer
    char *end = one->in_len ? memmem(one->in, one->in_len < MAX_HEAD ? one->in_len : MAX_HEAD, "\r\n\r\n", 4) : NULL;
    if (!end) { one->closing |= one->in_len >= MAX_HEAD; return 0; }
    size_t head = (size_t)(end - one->in) + 4;
    char kept = *end;
    *end = 0;
    size_t length = strtoul(header(one->in, "content-length"), NULL, 10);
    int chunked = *header(one->in, "transfer-encoding") != 0;
    int closes = !strncasecmp(header(one->in, "connection"), "close", 5);
    char method[8] = "", path[256] = "";
    sscanf(one->in, "%7s %255s", method, path);
    *end = kept;
    if (chunked || length > MAX_BODY) {  // nobody in this bench sends one
        static char refused[] = "{\"detail\":\"a body with a length was expected\"}";
        answer(one, 400, (Bytes){refused, sizeof refused - 1});
        one->in_len = 0, one->closing = 1;
        return 0;
    }
    if (one->in_len < head + length) return 0;
    one->closing |= closes;
    char *query = strchr(path, '?');
    if (query) *query = 0;
    char after = one->in[head + length];  // `take` leaves room for it
    one->in[head + length] = 0;
    route(one, method, path, (Bytes){one->in + head, length});
    one->in[head + length] = after;
    one->in_len -= head + length;
    memmove(one->in, one->in + head + length, one->in_len);
    return 1;
}

static int take(Connection *one) {  // 0 where the other end has gone
    for (;;) {
        if (one->in_room - one->in_len < 65536) {
            one->in_room = one->in_room ? one->in_room * 2 : 131072;
            one->in = sure(realloc(one->in, one->in_room + 1));
        }
        ssize_t n = recv(one->fd, one->in + one->in_len, one->in_room - one->in_len, 0);
        if (n == 0) return 0;
        if (n < 0) { if (errno != EAGAIN && errno != EWOULDBLOCK) return 0; break; }
        one->in_len += (size_t)n;
    }
    while (!one->streaming && !one->closing && serve_one(one)) {}
    return flush(one);
}

static void welcome(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Connection *one = sure(calloc(1, sizeof *one));
        one->fd = fd;
        watch(one, EPOLL_CTL_ADD, EPOLLIN);
    }
}

static void turn_streams(void) {  // what is due, then the timer for what is due next
    uint64_t now = now_ns(), first = UINT64_MAX;
    for (Connection *one = streams, *next; one; one = next) {
        next = one->next;
        if (one->due <= now) {
            step_stream(one);
            if (!flush(one)) { forget(one); continue; }
        }
        if (one->streaming && one->due < first) first = one->due;
    }
    struct itimerspec at = {0};
    if (first != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(first / 1000000000u);
        at.it_value.tv_nsec = (long)(first % 1000000000u);
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) die("listen");
    return listener;
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: upstream PORT RECORDING PACE_MS\n"); return 2; }
    struct rlimit most;
    if (!getrlimit(RLIMIT_NOFILE, &most)) { most.rlim_cur = most.rlim_max; setrlimit(RLIMIT_NOFILE, &most); }
    signal(SIGPIPE, SIG_IGN);
    time_t began = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&began));
    load(argv[2]);
    pace_ns = (uint64_t)(atof(argv[3]) * 1e6);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    Connection listening = {.fd = listen_on(atoi(argv[1]))}, ticking = {.fd = timer};
    watch(&listening, EPOLL_CTL_ADD, EPOLLIN);
    watch(&ticking, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        struct epoll_event events[512];
        int n = epoll_wait(epoll, events, 512, -1);
        for (int i = 0; i < n; i++) {
            Connection *one = events[i].data.ptr;
            uint64_t ticks;
            if (one == &listening) welcome(listening.fd);
            else if (one == &ticking) { if (read(timer, &ticks, sizeof ticks) < 0) continue; }
            else {
                int alive = events[i].events & (EPOLLERR | EPOLLHUP) ? 0 : 1;
                if (alive && events[i].events & EPOLLIN) alive = take(one);
                else if (alive && events[i].events & EPOLLOUT) alive = flush(one);
                if (!alive) forget(one);
            }
        }
        turn_streams();
    }
}
