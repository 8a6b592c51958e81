package stream

import (
	"fmt"
	"hash"
	"hash/crc32"
	"hash/fnv"
)

// Hasher names the way a producer chooses the partition of a key. A table write goes to the partition of its key's hash, not
// to the partition its record came from, so a consumer must hash as the producers of its topic do (design, section 3, fact 2).
type Hasher string

// The hashers.
const (
	CRC32   Hasher = "crc32"   // librdkafka's consistent and consistent_random, so .NET, Python, Node: crc32 % partitions, unsigned
	Murmur2 Hasher = "murmur2" // Java's default: (murmur2 & 0x7fffffff) % partitions
	FNV1a   Hasher = "fnv1a"   // sarama's and Goka's default, librdkafka's fnv1a: |int32(fnv1a)| % partitions
)

// Hashers lists the names.
func Hashers() []Hasher { return []Hasher{CRC32, Murmur2, FNV1a} }

// ParseHasher returns the hasher of a name, or an error that lists the names.
func ParseHasher(name string) (Hasher, error) {
	for _, h := range Hashers() {
		if name == string(h) {
			return h, nil
		}
	}
	return "", fmt.Errorf("hasher %q is not one of %s, %s, %s", name, CRC32, Murmur2, FNV1a)
}

// Partition returns the partition of a key among n, or -1 for an unknown hasher or no partitions. A null key has no
// partition by its key: this treats it as an empty one.
func (h Hasher) Partition(key []byte, n int32) int32 {
	if n <= 0 {
		return -1
	}
	switch h {
	case CRC32:
		return int32(crc32.ChecksumIEEE(key) % uint32(n)) //nolint:gosec // below n
	case Murmur2:
		return int32(murmur2(key)&0x7fffffff) % n //nolint:gosec // 31 bits
	case FNV1a:
		return abs(fnv1a(key), n)
	default:
		return -1
	}
}

// New returns what Goka and sarama are given for a topic of n partitions. They take int32(Sum32()) % n and negate what is
// negative, which is wrong for an unsigned hash, so Sum32 already is the partition: both leave it as it is.
func (h Hasher) New(n int32) (func() hash.Hash32, error) {
	if _, err := ParseHasher(string(h)); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, fmt.Errorf("hasher %s: a topic of %d partitions", h, n)
	}
	return func() hash.Hash32 { return &partitionHash{hasher: h, n: n} }, nil
}

// PartitionOf is Hasher.Partition for a name.
func PartitionOf(name string, key []byte, partitions int32) int32 {
	return Hasher(name).Partition(key, partitions)
}

// partitionHash collects a key; its sum is the key's partition.
type partitionHash struct {
	hasher Hasher
	n      int32
	key    []byte
}

func (p *partitionHash) Write(b []byte) (int, error) {
	p.key = append(p.key, b...)
	return len(b), nil
}
func (p *partitionHash) Reset()         { p.key = p.key[:0] }
func (p *partitionHash) Size() int      { return 4 }
func (p *partitionHash) BlockSize() int { return 1 }
func (p *partitionHash) Sum32() uint32 {
	return uint32(p.hasher.Partition(p.key, p.n)) //nolint:gosec // New has checked hasher and n, so it is not negative
}
func (p *partitionHash) Sum(b []byte) []byte {
	s := p.Sum32()
	return append(b, byte(s>>24), byte(s>>16), byte(s>>8), byte(s)) //nolint:gosec // the bytes of s
}

func fnv1a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key) // cannot fail
	return h.Sum32()
}

// abs is |int32(sum)| % n as sarama and librdkafka compute it. The one number whose absolute value is no int32 counts as 2^31
// there; Goka alone would come out with a negative partition.
func abs(sum uint32, n int32) int32 {
	v := int64(int32(sum)) //nolint:gosec // the sign is the point
	if v < 0 {
		v = -v
	}
	return int32(v % int64(n)) //nolint:gosec // below n
}

// murmur2 is the hash of Java's client (org.apache.kafka.common.utils.Utils).
func murmur2(data []byte) uint32 {
	const (
		seed = uint32(0x9747b28c)
		m    = uint32(0x5bd1e995)
	)
	h := seed ^ uint32(len(data)) //nolint:gosec // as Java does
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	for i := len(data) - 1; i >= 0; i-- {
		h ^= uint32(data[i]) << (8 * i)
	}
	if len(data) > 0 {
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
