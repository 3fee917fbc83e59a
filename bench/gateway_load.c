/* Streaming HTTP clients that cost next to nothing: one thread, epoll.
 *
 * Compiled and run by gateway_load.py. Keeps STREAMS connections busy, each with one request at a time, for SECONDS; then leaves
 * and writes one JSON object to standard output. Any answer but a stream with status 200 ends the run with an error. Times are from
 * just before a request is written to the first byte of its first event.
 *
 * It looks for what has come every LOOK_US and does not wait for it: a client that slept on its connections would have to be woken by
 * each write, and on one machine it is the writer who pays for that.
 *
 *   gateway_load HOST PORT STREAMS STAGGER_US SECONDS REQUEST_FILE
 *
 * STAGGER_US lies between the first requests of two streams, so that a paced run does not start them all in one instant.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TAIL 64
#define LOOK_US 250
#define MAX_SAMPLES 4000000

static const char BODY_END[] = "data: [DONE]\n\n\r\n0\r\n\r\n";

struct stream {
    int fd;
    long long start_us; /* of the request in progress */
    int began;          /* its first event is here */
    int ok;             /* its status was 200 */
    char tail[TAIL];    /* the last bytes read, for marks that two reads share */
    int tail_size;
};

static char *request;
static size_t request_size;
static long long requests, events, bytes;
static unsigned *ttft_us;
static size_t samples;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void load_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    request = malloc(1 << 20);
    request_size = fread(request, 1, 1 << 20, file);
    fclose(file);
}

static int connected(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) die("address");
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(struct stream *stream) {
    stream->began = stream->ok = stream->tail_size = 0;
    stream->start_us = now_us();
    /* A request is small and the socket idle: a short write does not happen. */
    if (write(stream->fd, request, request_size) != (ssize_t)request_size) die("write");
}

static void count_events(const char *data, size_t size) {
    const char *end = data + size;
    while ((data = memmem(data, end - data, "data: ", 6))) {
        events++;
        data += 6;
    }
}

/* Take what was read; true where it ends the answer. */
static int take(struct stream *stream, const char *data, size_t size) {
    static char joined[TAIL + (1 << 16)];
    memcpy(joined, stream->tail, stream->tail_size);
    memcpy(joined + stream->tail_size, data, size);
    size_t whole = stream->tail_size + size;
    if (!stream->ok && !stream->began) {
        if (whole >= 12 && memcmp(joined, "HTTP/1.1 200", 12) == 0) stream->ok = 1;
        else if (whole >= 12) return 1;
    }
    /* All but the last 5 of the old bytes were searched before. */
    size_t old = stream->tail_size > 5 ? stream->tail_size - 5 : 0;
    long long before = events;
    count_events(joined + old, whole - old);
    if (!stream->began && events > before) {
        stream->began = 1;
        if (samples < MAX_SAMPLES) ttft_us[samples++] = (unsigned)(now_us() - stream->start_us);
    }
    stream->tail_size = whole < TAIL ? whole : TAIL;
    memcpy(stream->tail, joined + whole - stream->tail_size, stream->tail_size);
    size_t mark = sizeof BODY_END - 1;
    return (size_t)stream->tail_size >= mark && memcmp(stream->tail + stream->tail_size - mark, BODY_END, mark) == 0;
}

static void report(long long elapsed_us) {
    printf("{\"requests\": %lld, \"events\": %lld, \"bytes\": %lld, \"elapsed_s\": %.6f, \"ttft_us\": [",
           requests, events, bytes, elapsed_us / 1e6);
    for (size_t i = 0; i < samples; i++) printf(i ? ",%u" : "%u", ttft_us[i]);
    printf("]}\n");
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: gateway_load HOST PORT STREAMS STAGGER_US SECONDS REQUEST_FILE\n");
        return 2;
    }
    int count = atoi(argv[3]), started = 0, poll_fd = epoll_create1(0);
    long long stagger_us = atoll(argv[4]), run_us = (long long)(atof(argv[5]) * 1e6);
    load_request(argv[6]);
    ttft_us = malloc(MAX_SAMPLES * sizeof *ttft_us);
    struct stream *streams = calloc(count, sizeof *streams);
    for (int i = 0; i < count; i++) {
        streams[i].fd = connected(argv[1], atoi(argv[2]));
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = &streams[i]};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, streams[i].fd, &wanted)) die("epoll_ctl");
    }
    static char data[1 << 16];
    struct epoll_event ready[256];
    long long begin_us = now_us();
    for (;;) {
        long long elapsed_us = now_us() - begin_us;
        if (elapsed_us >= run_us) break;
        while (started < count && elapsed_us >= started * stagger_us) ask(&streams[started++]);
        int found = epoll_wait(poll_fd, ready, 256, 0);
        if (found < 0 && errno != EINTR) die("epoll_wait");
        if (found <= 0) usleep(LOOK_US);
        for (int i = 0; i < found; i++) {
            struct stream *stream = ready[i].data.ptr;
            ssize_t size = read(stream->fd, data, sizeof data);
            if (size <= 0) {
                fprintf(stderr, "the gateway closed a connection\n");
                return 1;
            }
            bytes += size;
            if (!take(stream, data, size)) continue;
            if (!stream->ok) {
                fprintf(stderr, "%.*s\n", (int)size, data);
                return 1;
            }
            requests++;
            ask(stream);
        }
    }
    report(now_us() - begin_us);
    return 0;
}
