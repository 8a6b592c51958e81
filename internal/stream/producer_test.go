package stream

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	brokerEnv   = "VITRINA_STREAM_BROKER"
	marksTopic  = "marks-table"
	marksRate   = 70_000 // a second, about what one process reaches end to end
	marksTick   = time.Millisecond
	marksInTick = marksRate / int(time.Second/marksTick)
)

// serveBroker is a broker in a process of its own, so that a benchmark's CPU time is the client's alone. It ends with its standard input.
func serveBroker() int {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(6, marksTopic))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer cluster.Close()
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func startBroker(b *testing.B) []string {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), brokerEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, in.Close())
		require.NoError(b, cmd.Wait())
	})
	addresses, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.Split(strings.TrimSpace(addresses), ",")
}

// BenchmarkProducer sends the marks of popularity: a view's id, 31 bytes, and what Goka does with the promise. Paced it is the real
// work, with the batches that come of it. Run it with -benchtime 300000x.
func BenchmarkProducer(b *testing.B) {
	brokers := startBroker(b)
	for _, paced := range []bool{true, false} {
		b.Run(fmt.Sprintf("paced=%t", paced), func(b *testing.B) {
			p, err := newFranzProducer(b.Context(), KafkaConfig{Brokers: brokers, ClientID: "bench"}, CRC32)
			require.NoError(b, err)
			var acked sync.WaitGroup
			send := func(key string, mark []byte) {
				acked.Add(1)
				p.EmitWithHeaders(marksTopic, key, mark, nil).ThenWithMessage(func(msg *sarama.ProducerMessage, err error) {
					if err != nil || msg.Offset < 0 {
						b.Errorf("offset %v, error %v", msg, err)
					}
					acked.Done()
				})
			}
			send("warm up", nil)
			acked.Wait()
			keys, marks := make([]string, b.N), make([][]byte, b.N)
			for i := range keys {
				id, object := uuid.Must(uuid.NewV7()), uuid.New()
				keys[i], marks[i] = id.String(), append([]byte("\x01\x00\x00\x00\x01\x66\x66\x66\x66\x02\x80\x80\x01\x00\x00"), object[:]...)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var before, after syscall.Rusage
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
			begin := time.Now()
			for i, key := range keys {
				if paced && i%marksInTick == 0 {
					<-time.After(time.Until(begin.Add(marksTick * time.Duration(i/marksInTick))))
				}
				send(key, marks[i])
			}
			acked.Wait()
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
			cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			require.NoError(b, p.Close())
		})
	}
}
