/* A load on one connection that costs little itself, so that the broker is what is measured.
 *
 *   load produce   HOST PORT TOPIC PARTITIONS SIZE PER_BATCH IN_FLIGHT ACKS SECONDS
 *   load consume   HOST PORT TOPIC PARTITIONS FETCH_BYTES RECORDS SECONDS
 *   load roundtrip HOST PORT TOPIC SIZE COUNT ACKS
 *
 * produce    sends one prepared batch again and again (Produce 7), to the partitions in turn, with
 *            IN_FLIGHT requests unanswered. PARTITIONS is their number, or, where HOST leads some
 *            of them only, those themselves: "0,3,5"; "2," is one.
 * consume    reads RECORDS records from the beginning (Fetch 11), looks at batch headers only, and
 *            begins again until SECONDS are over.
 * roundtrip  keeps a Fetch waiting at the broker, produces a record and takes the time until the
 *            Fetch comes back with it.
 *
 * Prints one JSON object. Exits with 1 on any error of the broker or the network.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, BATCH_HEADER = 61, LATENCIES_MAX = 8000000 };

static void fail(const char *what) {
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Big-endian fields, written at *at, which moves on. */
static void put(uint8_t **at, uint64_t value, int size) {
    for (int shift = (size - 1) * 8; shift >= 0; shift -= 8) *(*at)++ = (uint8_t)(value >> shift);
}

static void put_text(uint8_t **at, const char *text) {
    size_t length = strlen(text);
    put(at, length, 2);
    memcpy(*at, text, length);
    *at += length;
}

static void put_varint(uint8_t **at, int64_t value) {
    uint64_t zigzag = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; zigzag >= 0x80; zigzag >>= 7) *(*at)++ = (uint8_t)(zigzag | 0x80);
    *(*at)++ = (uint8_t)zigzag;
}

static uint64_t get(const uint8_t *at, int size) {
    uint64_t value = 0;
    while (size-- > 0) value = value << 8 | *at++;
    return value;
}

static uint32_t crc32c(const uint8_t *data, size_t size) {
    uint32_t table[256], crc = ~0u;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
        table[byte] = value;
    }
    while (size--) crc = table[(crc ^ *data++) & 0xff] ^ crc >> 8;
    return ~crc;
}

/* A connection that reads ahead: many small answers cost one system call. */
struct wire {
    int fd;
    uint8_t *buffer;
    size_t capacity, start, end;
};

static struct wire dial(const char *host, int port, size_t capacity) {
    struct wire wire = {.fd = socket(AF_INET, SOCK_STREAM, 0), .capacity = capacity};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1;
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) fail("HOST must be an IPv4 address");
    if (connect(wire.fd, (struct sockaddr *)&to, sizeof to)) fail("cannot connect");
    setsockopt(wire.fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    wire.buffer = malloc(capacity);
    return wire;
}

static void send_all(struct wire *wire, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t sent = write(wire->fd, data, size);
        if (sent <= 0) fail("the broker closed the connection");
        data += sent;
        size -= (size_t)sent;
    }
}

/* Make `size` bytes available at the start of the buffer. */
static void need(struct wire *wire, size_t size) {
    if (size > wire->capacity) fail("an answer is larger than expected");
    if (wire->start + size > wire->capacity) {
        memmove(wire->buffer, wire->buffer + wire->start, wire->end - wire->start);
        wire->end -= wire->start;
        wire->start = 0;
    }
    while (wire->end - wire->start < size) {
        ssize_t got = read(wire->fd, wire->buffer + wire->end, wire->capacity - wire->end);
        if (got <= 0) fail("the broker closed the connection");
        wire->end += (size_t)got;
    }
}

/* The next answer without its length; valid until the next call. */
static const uint8_t *receive(struct wire *wire, size_t *size) {
    need(wire, 4);
    *size = (size_t)get(wire->buffer + wire->start, 4);
    need(wire, 4 + *size);
    const uint8_t *answer = wire->buffer + wire->start + 4;
    wire->start += 4 + *size;
    if (wire->start == wire->end) wire->start = wire->end = 0;
    return answer;
}

static uint8_t *request_header(uint8_t *at, int api, int version) {
    at += 4; /* the length comes last */
    put(&at, (uint64_t)api, 2);
    put(&at, (uint64_t)version, 2);
    put(&at, 0, 4); /* correlation id, at byte 8 of the frame */
    put_text(&at, "load");
    return at;
}

static size_t close_frame(uint8_t *frame, const uint8_t *end) {
    uint8_t *at = frame;
    put(&at, (uint64_t)(end - frame - 4), 4);
    return (size_t)(end - frame);
}

static uint8_t *put_batch(uint8_t *at, int size, int count) {
    uint8_t *batch = at, *mark;
    uint64_t timestamp = (uint64_t)time(NULL) * 1000;
    put(&at, 0, 8);           /* base offset */
    at += 4;                  /* batch length */
    put(&at, (uint32_t)-1, 4); /* partition leader epoch */
    put(&at, 2, 1);           /* magic */
    at += 4;                  /* crc */
    put(&at, 0, 2);           /* attributes */
    put(&at, (uint64_t)count - 1, 4);
    put(&at, timestamp, 8);
    put(&at, timestamp, 8);
    put(&at, (uint64_t)-1, 8); /* producer id, epoch and sequence: none */
    put(&at, (uint64_t)-1, 2);
    put(&at, (uint64_t)-1, 4);
    put(&at, (uint64_t)count, 4);
    uint32_t noise = 12345;
    for (int index = 0; index < count; index++) {
        uint8_t head[32], *h = head;
        put(&h, 0, 1);
        put_varint(&h, 0);
        put_varint(&h, index);
        put_varint(&h, -1);
        put_varint(&h, size);
        put_varint(&at, (h - head) + size + 1);
        memcpy(at, head, (size_t)(h - head));
        at += h - head;
        for (int byte = 0; byte < size; byte++) {
            noise = noise * 1664525u + 1013904223u;
            *at++ = (uint8_t)('a' + (noise >> 24) % 26);
        }
        put(&at, 0, 1); /* no headers */
    }
    mark = batch + 8;
    put(&mark, (uint64_t)(at - batch - 12), 4);
    mark = batch + 17;
    put(&mark, crc32c(batch + 21, (size_t)(at - batch - 21)), 4);
    return at;
}

/* A whole Produce frame; *partition points at its partition number. */
static uint8_t *produce_frame(const char *topic, int size, int count, int acks, uint8_t **partition,
                              size_t *length) {
    uint8_t *frame = malloc((size_t)(size + 64) * (size_t)count + 4096), *at, *records, *mark;
    at = request_header(frame, PRODUCE, 7);
    put(&at, (uint64_t)-1, 2); /* no transactional id */
    put(&at, (uint64_t)acks, 2);
    put(&at, 30000, 4);
    put(&at, 1, 4);
    put_text(&at, topic);
    put(&at, 1, 4);
    *partition = at;
    put(&at, 0, 4);
    mark = at;
    records = at + 4;
    at = put_batch(records, size, count);
    put(&mark, (uint64_t)(at - records), 4);
    *length = close_frame(frame, at);
    return frame;
}

static void check_produced(const uint8_t *answer, const char *topic) {
    int error = (int16_t)get(answer + 4 + 4 + 2 + strlen(topic) + 4 + 4, 2);
    if (error) {
        fprintf(stderr, "load: produce was answered with error %d\n", error);
        exit(1);
    }
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print_latencies(double *latencies, size_t count) {
    qsort(latencies, count, sizeof *latencies, ascending);
    printf("\"p50_ms\":%.4f,\"p99_ms\":%.4f", latencies[count / 2] * 1e3,
           latencies[(size_t)((double)count * 0.99)] * 1e3);
}

/* The partitions that an argument names, see the head of the file. */
static int *parse_partitions(const char *text, size_t *count) {
    int *partitions = malloc((strlen(text) + 1) * sizeof *partitions);
    char *after;
    *count = 0;
    if (strchr(text, ',')) {
        for (; *text; text = *after == ',' ? after + 1 : after) {
            partitions[(*count)++] = (int)strtol(text, &after, 10);
            if (after == text) fail("PARTITIONS is a number, or numbers with commas");
        }
    } else {
        size_t wanted = (size_t)strtoul(text, NULL, 10);
        partitions = realloc(partitions, (wanted + 1) * sizeof *partitions);
        for (; *count < wanted; ++*count) partitions[*count] = (int)*count;
    }
    if (!*count) fail("PARTITIONS names none");
    return partitions;
}

static int run_produce(char **argument) {
    const char *topic = argument[4];
    size_t partition_count;
    int *partitions = parse_partitions(argument[5], &partition_count);
    int size = atoi(argument[6]), count = atoi(argument[7]);
    size_t in_flight = (size_t)atoi(argument[8]);
    int acks = atoi(argument[9]);
    double seconds = atof(argument[10]);
    size_t length, ignored, sent = 0, answered = 0;
    uint8_t *partition, *frame = produce_frame(topic, size, count, acks, &partition, &length);
    struct wire wire = dial(argument[2], atoi(argument[3]), 1 << 16);
    double *began = calloc(in_flight, sizeof *began);
    double *latencies = malloc(LATENCIES_MAX * sizeof *latencies);
    double start = now(), end = start + seconds, at = start;
    if (acks == 0) fail("acks=0 has no answers to count");
    while (at < end || answered < sent) {
        while (at < end && sent - answered < in_flight) {
            uint8_t *mark = partition;
            put(&mark, (uint64_t)partitions[sent % partition_count], 4);
            began[sent % in_flight] = at;
            send_all(&wire, frame, length);
            sent++;
            at = now();
        }
        if (answered == sent) break;
        check_produced(receive(&wire, &ignored), topic);
        at = now();
        if (answered < LATENCIES_MAX) latencies[answered] = at - began[answered % in_flight];
        answered++;
    }
    double took = now() - start;
    printf("{\"records\":%zu,\"seconds\":%.4f,\"requests_per_second\":%.1f,"
           "\"records_per_second\":%.1f,\"mb_per_second\":%.3f,",
           answered * (size_t)count, took, (double)answered / took,
           (double)answered * count / took, (double)answered * count * size / took / 1e6);
    print_latencies(latencies, answered < LATENCIES_MAX ? answered : LATENCIES_MAX);
    printf("}\n");
    return 0;
}

/* A Fetch of one partition; *where points at partition number, followed by epoch and offset. */
static uint8_t *fetch_frame(const char *topic, int bytes, int wait_ms, uint8_t **where,
                            size_t *length) {
    uint8_t *frame = malloc(4096), *at = request_header(frame, FETCH, 11);
    put(&at, (uint64_t)-1, 4); /* a consumer */
    put(&at, (uint64_t)wait_ms, 4);
    put(&at, 1, 4); /* min bytes */
    put(&at, (uint64_t)bytes, 4);
    put(&at, 0, 1);            /* read uncommitted */
    put(&at, 0, 4);            /* no session */
    put(&at, (uint64_t)-1, 4);
    put(&at, 1, 4);
    put_text(&at, topic);
    put(&at, 1, 4);
    *where = at;
    put(&at, 0, 4);            /* partition */
    put(&at, (uint64_t)-1, 4); /* current leader epoch */
    put(&at, 0, 8);            /* fetch offset */
    put(&at, (uint64_t)-1, 8); /* log start offset */
    put(&at, (uint64_t)bytes, 4);
    put(&at, 0, 4); /* no forgotten topics */
    put(&at, 0, 2); /* no rack */
    *length = close_frame(frame, at);
    return frame;
}

static void aim(uint8_t *where, int partition, uint64_t offset) {
    put(&where, (uint64_t)partition, 4);
    where += 4;
    put(&where, offset, 8);
}

/* Count the records of a Fetch answer at and after *offset, which moves behind the last one. */
static size_t take(const uint8_t *answer, const char *topic, uint64_t *offset, size_t *bytes) {
    const uint8_t *at = answer + 4 + 4 + 2 + 4 + 4 + 2 + strlen(topic) + 4 + 4;
    int error = (int16_t)get(at, 2);
    if (error) {
        fprintf(stderr, "load: fetch was answered with error %d\n", error);
        exit(1);
    }
    at += 2 + 8 + 8 + 8;
    int32_t aborted = (int32_t)get(at, 4);
    at += 4 + (aborted > 0 ? (size_t)aborted * 16 : 0) + 4;
    int32_t size = (int32_t)get(at, 4);
    const uint8_t *end = at + 4 + (size > 0 ? size : 0);
    size_t records = 0;
    for (at += 4; at + BATCH_HEADER <= end;) {
        const uint8_t *next = at + 12 + get(at + 8, 4);
        if (next > end) break; /* the last batch may be cut off */
        uint64_t first = get(at, 8), last = first + get(at + 23, 4);
        if (last >= *offset) records += (size_t)(last + 1 - (first > *offset ? first : *offset));
        *offset = last + 1;
        *bytes += (size_t)(next - at);
        at = next;
    }
    return records;
}

static int run_consume(char **argument) {
    const char *topic = argument[4];
    int partitions = atoi(argument[5]), fetch_bytes = atoi(argument[6]);
    size_t wanted = (size_t)atoll(argument[7]), length, size, records = 0, bytes = 0, requests = 0;
    uint8_t *where, *frame = fetch_frame(topic, fetch_bytes, 500, &where, &length);
    struct wire wire = dial(argument[2], atoi(argument[3]), (size_t)fetch_bytes + (4 << 20));
    uint64_t *offsets = calloc((size_t)partitions, sizeof *offsets);
    size_t pass = 0;
    double start = now(), end = start + atof(argument[8]);
    for (size_t empty = 0; records < wanted || now() < end; requests++) {
        int partition = (int)(requests % (size_t)partitions);
        if (pass >= wanted) {
            memset(offsets, 0, (size_t)partitions * sizeof *offsets);
            pass = 0;
        }
        aim(where, partition, offsets[partition]);
        send_all(&wire, frame, length);
        size_t got = take(receive(&wire, &size), topic, &offsets[partition], &bytes);
        empty = got ? 0 : empty + 1;
        if (empty > 4 * (size_t)partitions) fail("the topic holds fewer records");
        records += got;
        pass += got;
    }
    double took = now() - start;
    printf("{\"records\":%zu,\"seconds\":%.4f,\"requests_per_second\":%.1f,"
           "\"records_per_second\":%.1f,\"mb_per_second\":%.3f}\n",
           records, took, (double)requests / took, (double)records / took,
           (double)bytes / took / 1e6);
    return 0;
}

static int run_roundtrip(char **argument) {
    const char *topic = argument[4];
    int size = atoi(argument[5]), count = atoi(argument[6]), acks = atoi(argument[7]);
    size_t produce_length, fetch_length, ignored, bytes = 0;
    uint8_t *partition, *where;
    uint8_t *produce = produce_frame(topic, size, 1, acks, &partition, &produce_length);
    uint8_t *fetch = fetch_frame(topic, 1 << 20, 5000, &where, &fetch_length);
    struct wire writer = dial(argument[2], atoi(argument[3]), 1 << 16);
    struct wire reader = dial(argument[2], atoi(argument[3]), 4 << 20);
    double *latencies = malloc((size_t)count * sizeof *latencies);
    uint64_t offset = 0;
    double start = now();
    for (int index = 0; index < count; index++) {
        struct timespec pause = {.tv_nsec = 500000};
        aim(where, 0, offset);
        send_all(&reader, fetch, fetch_length);
        nanosleep(&pause, NULL); /* until the Fetch waits at the broker */
        double began = now();
        send_all(&writer, produce, produce_length);
        while (!take(receive(&reader, &ignored), topic, &offset, &bytes)) {
            send_all(&reader, fetch, fetch_length);
        }
        latencies[index] = now() - began;
        check_produced(receive(&writer, &ignored), topic);
    }
    double took = now() - start;
    printf("{\"records\":%d,\"seconds\":%.4f,", count, took);
    print_latencies(latencies, (size_t)count);
    printf("}\n");
    return 0;
}

int main(int count, char **argument) {
    if (count == 11 && !strcmp(argument[1], "produce")) return run_produce(argument);
    if (count == 9 && !strcmp(argument[1], "consume")) return run_consume(argument);
    if (count == 8 && !strcmp(argument[1], "roundtrip")) return run_roundtrip(argument);
    fprintf(stderr, "usage: see the head of load.c\n");
    return 2;
}
