/* memcached's own hash table, slabs and LRU, asked in its process from packets in memory: what row packets holds the store to.
 *
 *   memcached-core ITEMS VALUE_BYTES MEMORY_MIB FOLDER
 *
 * memcached itself runs in a thread, as its main() sets it up; its worker waits for sockets all the while, and this thread asks in
 * its place, over a connection's `conn`. Its options are those it is fastest with: large pages, a hash table that need not grow, and
 * no threads that move items between queues, which took a fifth of half GETs, half SETs. Says "ready" when all items are in, then
 * answers each line of standard input, "gets" or "mixed", with nanoseconds a packet, of as many packets as row packets has in a turn.
 * Making the packets is not counted. Parsing is left out but for the key's place: this is the path from key to reply.
 *
 * Linked with memcached's objects, whose main is renamed (see `build`). */

#include "config.h"
#include "memcached.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int memcached_main(int argc, char **argv);

/* As in xtask/src/bench/packets.rs. */
enum { HEADER = 24, KEY = 40, FLAGS = 4, SET_EXTRAS = 8, BURST = 32, RING_BURSTS = 128, RINGS = 256 };
enum { GET = 0x00, SET = 0x01 };

static unsigned long items, value_bytes;
static char memory_mib[16], socket_path[100];

static void fail(const char *what) {
    fprintf(stderr, "memcached-core: %s\n", what);
    exit(1);
}

static void *serve(void *unused) {
    (void)unused;
    char *argv[] = {"memcached", "-u", "root", "-s", socket_path, "-m", memory_mib, "-t", "1", "-L",
                    "-o", "hashpower=21,no_lru_maintainer,no_lru_crawler", NULL};
    memcached_main(sizeof argv / sizeof *argv - 1, argv);
    fail("memcached ended");
    return NULL;
}

/* A connection that memcached's worker has answered, and leaves alone from then on. */
static conn *connection(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, socket_path);
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int tries = 0; connect(client, (struct sockaddr *)&address, sizeof address) != 0; tries++) {
        if (tries == 1000) fail("memcached does not listen");
        usleep(10000);
    }
    char reply[100];
    if (write(client, "version\r\n", 9) != 9 || read(client, reply, sizeof reply) <= 0) fail("memcached does not answer");
    for (int fd = 0; fd < settings.maxconns; fd++)
        if (conns[fd] != NULL && conns[fd]->thread != NULL && conns[fd]->state != conn_listening) return conns[fd];
    fail("memcached has no connection");
    return NULL;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Writes a packet; its bytes. */
static size_t packet(char *at, int opcode, unsigned long item) {
    size_t extras = opcode == SET ? SET_EXTRAS : 0, value = opcode == SET ? value_bytes : 0;
    uint32_t body = htonl((uint32_t)(extras + KEY + value));
    char digits[21];
    memset(at, 0, HEADER + extras);
    at[0] = (char)0x80, at[1] = (char)opcode, at[3] = KEY, at[4] = (char)extras;
    memcpy(at + 8, &body, 4);
    char *key = at + HEADER + extras;
    snprintf(digits, sizeof digits, "%020lu", item);
    memset(key, 'k', KEY - 20);
    memcpy(key + KEY - 20, digits, 20);
    for (size_t byte = 0; byte < value; byte++) key[KEY + byte] = (char)(item * 31 + byte);
    return HEADER + extras + KEY + value;
}

/* Answers what lies in a burst; bytes of the replies. */
static size_t take(conn *c, const char *packets, size_t bytes, char *out) {
    size_t sent = 0;
    for (size_t at = 0; at < bytes;) {
        const char *header = packets + at;
        uint32_t body;
        memcpy(&body, header + 8, 4);
        size_t extras = (size_t)header[4], key_bytes = (size_t)header[3], length = ntohl(body) - extras - key_bytes;
        const char *key = header + HEADER + extras;
        char *reply = out + sent;
        memset(reply, 0, HEADER);
        if (header[1] == GET) {
            item *it = item_get(key, key_bytes, c, DO_UPDATE);
            if (it == NULL) fail("an item is not there: give more memory");
            size_t found = (size_t)it->nbytes - 2;
            memset(reply + HEADER, 0, FLAGS);
            memcpy(reply + HEADER + FLAGS, ITEM_data(it), found);
            item_remove(it);
            sent += HEADER + FLAGS + found;
        } else {
            item *it = item_alloc((char *)key, key_bytes, 0, 0, (int)length + 2);
            if (it == NULL) fail("no memory for an item: give more");
            memcpy(ITEM_data(it), key + key_bytes, length);
            memcpy(ITEM_data(it) + length, "\r\n", 2);
            store_item(it, NREAD_SET, c);
            item_remove(it);
            sent += HEADER;
        }
        at += HEADER + ntohl(body);
    }
    return sent;
}

static double turn(conn *c, int second) {
    size_t most = HEADER + SET_EXTRAS + KEY + value_bytes;
    static char *ring[RING_BURSTS], *out;
    static size_t bytes[RING_BURSTS];
    if (out == NULL) {
        out = malloc(BURST * (most + FLAGS));
        for (int burst = 0; burst < RING_BURSTS; burst++) ring[burst] = malloc(BURST * most);
    }
    double ns = 0;
    for (int round = 0; round < RINGS; round++) {
        for (int burst = 0; burst < RING_BURSTS; burst++) {
            bytes[burst] = 0;
            for (int number = 0; number < BURST; number++)
                bytes[burst] += packet(ring[burst] + bytes[burst], number % 2 ? second : GET, next_random() % items);
        }
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int burst = 0; burst < RING_BURSTS; burst++) take(c, ring[burst], bytes[burst], out);
        clock_gettime(CLOCK_MONOTONIC, &to);
        ns += (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    }
    return ns / ((double)RINGS * RING_BURSTS * BURST);
}

int main(int argc, char **argv) {
    if (argc != 5) fail("memcached-core ITEMS VALUE_BYTES MEMORY_MIB FOLDER");
    items = strtoul(argv[1], NULL, 10);
    value_bytes = strtoul(argv[2], NULL, 10);
    snprintf(memory_mib, sizeof memory_mib, "%s", argv[3]);
    if ((size_t)snprintf(socket_path, sizeof socket_path, "%s/memcached-core", argv[4]) >= sizeof socket_path)
        fail("the folder's name is too long for a socket");
    unlink(socket_path);
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, NULL) != 0) fail("no thread");
    conn *c = connection();
    char *one = malloc(HEADER + SET_EXTRAS + KEY + value_bytes), out[HEADER];
    for (unsigned long item = 0; item < items; item++) take(c, one, packet(one, SET, item), out);
    puts("ready");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%f\n", turn(c, strcmp(line, "mixed\n") == 0 ? SET : GET));
        fflush(stdout);
    }
    unlink(socket_path);
    return 0;
}
