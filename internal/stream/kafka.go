package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kgo"
)

// MaxRecordBytes is the largest record, and the largest batch before compression, that this project's producers write to its
// own topics. A loop record holds a whole source record with its headers, and a source record that compresses well may be far
// larger than the 1 MiB its topic allows for a batch. The topics are created and checked with this max.message.bytes: a lower
// one would refuse a batch that a producer gathered, and a refused emit stops the processor.
const MaxRecordBytes = 8 << 20

// MaxValueBytes is the largest value to give to Loopback, SetValue or Emit: what is above it must be dead-lettered, because a
// record that cannot be produced would stop the processor again and again. processors.Loop checks it; the states of tables are
// bounded by their codecs (codecs.MaxPurchaseStateSize, a mark has some 40 bytes), and nothing else is emitted.
const MaxValueBytes = MaxRecordBytes - 64<<10

// Bounds of the settings (design, section 3, facts 1, 11 and 12).
const (
	defaultVersion          = "2.8.0"
	defaultSessionTimeout   = 30 * time.Second
	minSessionTimeout       = 10 * time.Second
	defaultRebalanceTimeout = 120 * time.Second
	readTimeoutMargin       = 30 * time.Second
	producerRetries         = 1000
	channelBuffer           = 1024
)

// KafkaConfig is how the brokers are reached, by sarama and by franz-go alike.
type KafkaConfig struct {
	Brokers []string // host:port
	// ClientID must be stable and differ between instances: the broker makes member ids from it, Goka's assignment sorts
	// member ids, and names that change at every start move partitions for nothing.
	ClientID         string
	Version          string        // protocol of sarama's clients; default 2.8.0, the oldest with topic ids
	SessionTimeout   time.Duration // default 30 s, at least 10 s
	RebalanceTimeout time.Duration // default 120 s
	TLS              *tls.Config   // nil: plain text
	SASL             SASL
}

// Validate returns what is wrong, in words for the operator, or nil.
func (k KafkaConfig) Validate() error {
	var errs []error
	if len(k.Brokers) == 0 {
		errs = append(errs, errors.New("kafka.brokers is empty: name at least one broker as host:port"))
	}
	if k.ClientID == "" {
		errs = append(errs, errors.New("the Kafka client id is empty: it must be a stable name of this instance"))
	}
	if _, err := k.version(); err != nil {
		errs = append(errs, err)
	}
	// Goka sleeps 5 s after a session's end without heartbeats: with less than 10 s every rebalance ends in the next one.
	if k.SessionTimeout != 0 && k.SessionTimeout < minSessionTimeout {
		errs = append(errs, fmt.Errorf("the session timeout is %s: below %s every rebalance ends in the next one", k.SessionTimeout, minSessionTimeout))
	}
	if k.rebalanceTimeout() < k.sessionTimeout() {
		errs = append(errs, fmt.Errorf("the rebalance timeout (%s) must not lie below the session timeout (%s)", k.rebalanceTimeout(), k.sessionTimeout()))
	}
	return errors.Join(append(errs, k.SASL.validate())...)
}

func (k KafkaConfig) version() (sarama.KafkaVersion, error) {
	name := k.Version
	if name == "" {
		name = defaultVersion
	}
	v, err := sarama.ParseKafkaVersion(name)
	if err != nil {
		return v, fmt.Errorf("kafka.version %q is no Kafka version: write it as %s", name, defaultVersion)
	}
	if !v.IsAtLeast(sarama.V2_8_0_0) {
		return v, fmt.Errorf("kafka.version %s is too old: 2.8.0 is the first with topic ids, by which a recreated topic is noticed", name)
	}
	return v, nil
}

func (k KafkaConfig) sessionTimeout() time.Duration {
	if k.SessionTimeout > 0 {
		return k.SessionTimeout
	}
	return defaultSessionTimeout
}

func (k KafkaConfig) rebalanceTimeout() time.Duration {
	if k.RebalanceTimeout > 0 {
		return k.RebalanceTimeout
	}
	return max(defaultRebalanceTimeout, k.sessionTimeout())
}

// Sarama returns a fresh configuration: Goka's builders change the one they are given, so every builder needs its own. The
// context bounds the fetching of OAUTHBEARER tokens.
func (k KafkaConfig) Sarama(ctx context.Context) (*sarama.Config, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	version, err := k.version()
	if err != nil {
		return nil, err
	}
	cfg := goka.DefaultConfig() // brings Goka's copartitioning strategy, without which tables and inputs part
	cfg.ClientID = k.ClientID
	cfg.Version = version
	cfg.ChannelBufferSize = channelBuffer

	// A joiner waits for members that are busy; with sarama's defaults its request dies after 30 s.
	cfg.Consumer.Group.Rebalance.Timeout = k.rebalanceTimeout()
	cfg.Net.ReadTimeout = k.rebalanceTimeout() + readTimeoutMargin
	cfg.Net.DialTimeout = 10 * time.Second
	cfg.Consumer.Group.Session.Timeout = k.sessionTimeout()
	cfg.Consumer.Group.Heartbeat.Interval = min(3*time.Second, k.sessionTimeout()/4)
	// No Group.InstanceId: a static member does not leave when it closes, and its partitions would stand still for a whole
	// session timeout after every SIGTERM. A stable client id is enough for a stable assignment.

	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest // Goka's default, newest, loses what came before the first start
	cfg.Consumer.Offsets.AutoCommit.Enable = true      // Goka never calls Commit
	// Events of a transaction that was aborted never happened. Tables are read the same way: nobody writes them in
	// transactions (a recovery whose topic ends in a transaction's marker would never end).
	cfg.Consumer.IsolationLevel = sarama.ReadCommitted

	cfg.Producer.RequiredAcks = sarama.WaitForAll // Goka's default, local, loses what a failed leader acknowledged
	cfg.Producer.Idempotent = true
	cfg.Net.MaxOpenRequests = 1 // needed by Idempotent: retries must not overtake
	// High, so that an outage of the broker does not end the processor, but never MaxInt: sarama allocates that many slots
	// for every partition.
	cfg.Producer.Retry.Max = producerRetries
	cfg.Producer.MaxMessageBytes = MaxRecordBytes
	cfg.Producer.Compression = sarama.CompressionLZ4

	if k.TLS != nil {
		cfg.Net.TLS.Enable = true
		cfg.Net.TLS.Config = k.TLS.Clone()
	}
	k.SASL.sarama(ctx, cfg)
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("settings of the Kafka client: %w", err)
	}
	return cfg, nil
}

// KgoOpts returns the connection options of a franz-go client. A producer made with them is idempotent, waits for all in-sync
// replicas and retries without end, which are franz-go's defaults.
func (k KafkaConfig) KgoOpts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.Brokers...),
		kgo.ClientID(k.ClientID),
		kgo.DialTimeout(10 * time.Second),
	}
	if k.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(k.TLS.Clone()))
	}
	if m := k.SASL.franz(); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts
}
