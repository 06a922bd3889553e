/* BLAKE2b with 32 bytes of result (RFC 7693), for manifests: fast without special instructions. */
#include "sandbox.h"

#include <string.h>

static const uint64_t start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotate(uint64_t value, int by) { return value >> by | value << (64 - by); }

static inline __attribute__((always_inline)) void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 63);
}

static void compress(struct hash *hash, const unsigned char *block, int last)
{
    uint64_t v[16], m[16];
    memcpy(m, block, sizeof m); /* both architectures are little-endian */
    memcpy(v, hash->state, 64);
    memcpy(v + 8, start, 64);
    v[12] ^= hash->total;
    v[14] ^= last ? ~0ull : 0;
#pragma GCC unroll 12 /* so that the order is known beforehand: twice as fast */
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = order[round % 10];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++)
        hash->state[i] ^= v[i] ^ v[8 + i];
}

void hash_begin(struct hash *hash)
{
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, start, sizeof start);
    hash->state[0] ^= 0x01010000 ^ 32;
}

void hash_add(struct hash *hash, const void *data, size_t size)
{
    for (const unsigned char *at = data; size;) {
        if (hash->held == sizeof hash->block) { /* only now, since the last block is compressed otherwise */
            hash->total += sizeof hash->block;
            compress(hash, hash->block, 0);
            hash->held = 0;
        }
        size_t part = sizeof hash->block - hash->held < size ? sizeof hash->block - hash->held : size;
        memcpy(hash->block + hash->held, at, part);
        hash->held += part;
        at += part;
        size -= part;
    }
}

void hash_end(struct hash *hash, unsigned char into[32])
{
    memset(hash->block + hash->held, 0, sizeof hash->block - hash->held);
    hash->total += hash->held;
    compress(hash, hash->block, 1);
    memcpy(into, hash->state, 32);
}
