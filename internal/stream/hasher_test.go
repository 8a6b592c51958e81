package stream

import (
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func TestHasherVectors(t *testing.T) {
	// Check value of CRC-32/ISO-HDLC.
	require.Equal(t, int32(0xCBF43926%1000), CRC32.Partition([]byte("123456789"), 1000))
	// Vectors of Kafka's own UtilsTest.testMurmur2.
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		require.Equal(t, want, int32(murmur2([]byte(key))), key)
	}
	// Vectors of the authors of FNV.
	for key, want := range map[string]uint32{"": 0x811c9dc5, "a": 0xe40c292c, "foobar": 0xbf9cf968} {
		require.Equal(t, want, fnv1a([]byte(key)), key)
	}
}

// TestHashersAgree: for any key and partition count, sarama with the hasher that Goka gets (the group's producer), Goka's own
// hash, sarama's and franz-go's native partitioners of that kind, and Partition all say the same.
func TestHashersAgree(t *testing.T) {
	native := map[Hasher]sarama.PartitionerConstructor{
		CRC32: sarama.NewConsistentCRCHashPartitioner, Murmur2: sarama.NewMurmur2Partitioner, FNV1a: sarama.NewHashPartitioner,
	}
	franz := map[Hasher]kgo.PartitionerHasher{
		CRC32:   func(b []byte, n int) int { return int(crc32.ChecksumIEEE(b) % uint32(n)) },
		Murmur2: franzMurmur2,
		FNV1a: kgo.SaramaCompatHasher(func(b []byte) uint32 {
			h := fnv.New32a()
			_, _ = h.Write(b)
			return h.Sum32()
		}),
	}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		n := rapid.Int32Range(1, 400).Draw(t, "partitions")
		for _, h := range Hashers() {
			want := h.Partition(key, n)
			require.True(t, want >= 0 && want < n)
			require.Equal(t, want, PartitionOf(string(h), key, n))
			build, err := h.New(n)
			require.NoError(t, err)
			msg := &sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}
			goka := sarama.NewCustomHashPartitioner(build)("t")
			for range 2 { // a partitioner is used again and again
				got, err := goka.Partition(msg, n)
				require.NoError(t, err)
				require.Equal(t, want, got, "%s through sarama with Goka's hasher", h)
			}
			got, err := native[h]("t").Partition(msg, n)
			require.NoError(t, err)
			require.Equal(t, want, got, "%s in sarama", h)
			require.Equal(t, int(want), franz[h](key, int(n)), "%s in franz-go", h)
			require.Equal(t, want, gokaHash(t, build(), key, n), "%s in Goka", h)
		}
	})
}

// gokaHash is what goka's Processor.hash and View.hash do with a hasher (goka v1.1.16, processor.go).
func gokaHash(t require.TestingT, h interface {
	Write([]byte) (int, error)
	Sum32() uint32
}, key []byte, n int32) int32 {
	_, err := h.Write(key)
	require.NoError(t, err)
	hash := int32(h.Sum32())
	if hash < 0 {
		hash = -hash
	}
	return hash % n
}

// franzMurmur2 asks franz-go's default partitioner, which does not export its hash.
func franzMurmur2(key []byte, n int) int {
	if key == nil {
		key = []byte{} // a null key would go anywhere
	}
	return kgo.StickyKeyPartitioner(nil).ForTopic("t").Partition(&kgo.Record{Key: key}, n)
}

// TestTheOneNumberWithoutAbsoluteValue: Goka alone would compute a negative partition for a key whose FNV-1a hash is 2^31.
func TestTheOneNumberWithoutAbsoluteValue(t *testing.T) {
	require.Equal(t, int32(2147483648%7), abs(1<<31, 7))
	require.Equal(t, int32(1), abs(^uint32(0), 7))
}

func TestParseHasher(t *testing.T) {
	for _, h := range Hashers() {
		got, err := ParseHasher(string(h))
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
	_, err := ParseHasher("md5")
	require.ErrorContains(t, err, "crc32, murmur2, fnv1a")
	_, err = Hasher("md5").New(3)
	require.Error(t, err)
	_, err = CRC32.New(0)
	require.ErrorContains(t, err, "0 partitions")
	require.Equal(t, int32(-1), PartitionOf("md5", nil, 3))
	require.Equal(t, int32(-1), PartitionOf("crc32", nil, 0))
}

func TestHasherSum(t *testing.T) {
	build, err := CRC32.New(1 << 20)
	require.NoError(t, err)
	h := build()
	_, _ = h.Write([]byte("1234"))
	_, _ = h.Write([]byte("56789"))
	want := uint32(0xCBF43926) % (1 << 20)
	require.Equal(t, want, h.Sum32())
	require.Equal(t, []byte{'x', byte(want >> 24), byte(want >> 16), byte(want >> 8), byte(want)}, h.Sum([]byte("x")))
	require.Equal(t, 4, h.Size())
	require.Equal(t, 1, h.BlockSize())
	h.Reset()
	require.Zero(t, h.Sum32(), "crc32 of nothing")
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
	for _, h := range Hashers() {
		b.Run(fmt.Sprint(h), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.Partition(key, 12)
			}
		})
	}
}
