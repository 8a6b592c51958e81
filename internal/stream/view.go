package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"

	"github.com/pin-marketplace/vitrina/internal/backoff"
)

// ViewOptions describe a local copy of a whole group table.
type ViewOptions struct {
	Kafka    KafkaConfig
	Admin    *Admin
	Group    string     // whose table it is
	Codec    goka.Codec // of the table's values
	Hasher   Hasher     // the group's
	StateDir string     // the copy lies in <state dir>/<group>-view
	// Store makes the builder of local stores: tablestore.Builder with Follow.
	Store   func(dir string) storage.Builder
	Backoff backoff.Config
	Logger  *slog.Logger
	Check   time.Duration // how often the topic's id is compared; default 5 s
}

// View keeps a copy of a group's whole table, whoever owns its partitions. Goka's view ends at the first error unless it
// reconnects by itself, leaks its clients when it is rebuilt, and goes on with what it has when its topic is recreated; this
// one reconnects, closes its clients, and starts anew on a fresh copy when the topic is another one (design, section 3, facts 6
// and 10). All methods are safe for concurrent use; Run may be called once.
type View struct {
	opts   ViewOptions
	log    *slog.Logger
	stores *stores
	count  atomic.Int32 // partitions of the topic; 0 before it is known
	ran    atomic.Bool
	failed atomic.Pointer[error] // why the copy is not followed now; nil while it is
}

// Err is why the copy is not followed now, and nil while it is.
func (v *View) Err() error {
	if err := v.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// NewView checks the options. It touches neither broker nor disk.
func NewView(opts ViewOptions) (*View, error) {
	errs := []error{opts.Kafka.Validate(), opts.Backoff.Validate()}
	if opts.Hasher == "" {
		opts.Hasher = CRC32
	}
	if _, err := ParseHasher(string(opts.Hasher)); err != nil {
		errs = append(errs, err)
	}
	if opts.Admin == nil || opts.Logger == nil || opts.Codec == nil || opts.Store == nil || opts.Group == "" || opts.StateDir == "" {
		errs = append(errs, errors.New("a view needs an admin client, a logger, a codec, a store, a group and a state directory"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.Check <= 0 {
		opts.Check = 5 * time.Second
	}
	return &View{opts: opts, stores: newStores(), log: opts.Logger.With(slog.String("view", TableTopic(opts.Group)))}, nil
}

// Ready says whether every partition was read to its end once.
func (v *View) Ready() bool {
	n := v.count.Load()
	return n > 0 && v.stores.partitions() == int(n)
}

// Get reads a key, decoded; nil when there is none. It returns a *NotHereError while its partition is being read for the
// first time.
func (v *View) Get(key string) (any, error) {
	partition := v.opts.Hasher.Partition([]byte(key), v.count.Load())
	data, known, err := v.stores.get(partition, key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read key %s of the view of group %s: %w", key, v.opts.Group, err)
	case !known:
		return nil, &NotHereError{Partition: partition}
	case data == nil:
		return nil, nil
	}
	value, err := v.opts.Codec.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("decode key %s of the view of group %s: %w", key, v.opts.Group, err)
	}
	return value, nil
}

// Run keeps the copy up to date until ctx ends. It returns an error only when the state directory is in use.
func (v *View) Run(ctx context.Context) error {
	if v.ran.Swap(true) {
		return errors.New("the view was run before")
	}
	dir, err := openStateDir(v.opts.StateDir, v.opts.Group+"-view")
	if err != nil {
		v.failed.Store(&err)
		return err
	}
	build := v.stores.builder(v.opts.Store(dir.table()))
	wait := backoff.New(v.opts.Backoff)
	for ctx.Err() == nil {
		started := time.Now()
		err := v.follow(ctx, dir, build)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the view ended by itself")
		}
		if time.Since(started) > time.Minute {
			wait.Reset()
		}
		v.failed.Store(&err)
		v.log.LogAttrs(ctx, slog.LevelWarn, "the view starts anew", slog.String("event", "view-failed"), slog.String("error", err.Error()))
		if wait.Wait(ctx) != nil {
			break
		}
	}
	return dir.close()
}

// follow runs one Goka view until it ends, ctx ends, or the topic is another one.
func (v *View) follow(ctx context.Context, dir *stateDir, build storage.Builder) (err error) {
	name := TableTopic(v.opts.Group)
	topic, err := v.topic(ctx, name)
	if err != nil {
		return err
	}
	if err := dir.prepare(ctx, Meta{Group: v.opts.Group, TableTopic: name, TableTopicID: topic.ID, Partitions: topic.Partitions, Hasher: v.opts.Hasher}, v.log); err != nil {
		return err
	}
	options, closers, err := v.gokaOptions(ctx, topic, build)
	defer func() {
		for _, c := range *closers {
			err = errors.Join(err, c.Close())
		}
	}()
	if err != nil {
		return err
	}
	view, err := goka.NewView(v.opts.Kafka.Brokers, goka.Table(name), v.opts.Codec, options...)
	if err != nil {
		return fmt.Errorf("make the view: %w", err)
	}
	v.count.Store(topic.Partitions)
	v.failed.Store(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	var comparing sync.WaitGroup
	comparing.Go(func() { v.compare(ctx, cancel, topic) })
	defer comparing.Wait() // it asks the shared admin client, which its owner closes after Run
	defer cancel(nil)
	if err := view.Run(ctx); err != nil {
		return fmt.Errorf("run the view: %w", err)
	}
	return context.Cause(ctx)
}

func (v *View) topic(ctx context.Context, name string) (Topic, error) {
	topics, err := v.opts.Admin.Topics(ctx, name)
	if err != nil {
		return Topic{}, err
	}
	topic, ok := topics[name]
	if !ok {
		return topic, fmt.Errorf("topic %s does not exist: the consumer of group %s creates it, or vitrina topics apply", name, v.opts.Group)
	}
	return topic, nil
}

// compare ends the view when the topic is not the one it was made for.
func (v *View) compare(ctx context.Context, cancel context.CancelCauseFunc, topic Topic) {
	tick := time.NewTicker(v.opts.Check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := v.opts.Admin.Topics(ctx, topic.Name)
		if err != nil {
			continue // the broker is away: the view waits for it as well
		}
		if got := now[topic.Name]; got.ID != topic.ID || got.Partitions != topic.Partitions {
			cancel(&topicChangedError{before: topic, now: got})
			return
		}
	}
}

func (v *View) gokaOptions(ctx context.Context, topic Topic, build storage.Builder) ([]goka.ViewOption, *[]io.Closer, error) {
	closers := new([]io.Closer)
	hasher, err := v.opts.Hasher.New(topic.Partitions)
	consumer, err1 := v.opts.Kafka.Sarama(ctx)
	manager, err2 := v.opts.Kafka.Sarama(ctx)
	if err := errors.Join(err, err1, err2); err != nil {
		return nil, closers, err
	}
	managerConfig := goka.NewTopicManagerConfig()
	managerConfig.NoCreate = true
	managers := goka.TopicManagerBuilderWithConfig(manager, managerConfig)
	consumers := goka.SaramaConsumerBuilderWithConfig(consumer)
	return []goka.ViewOption{
		goka.WithViewAutoReconnect(),
		goka.WithViewHasher(hasher),
		goka.WithViewClientID(v.opts.Kafka.ClientID + "-view"),
		goka.WithViewStorageBuilder(build),
		goka.WithViewLogger(gokaLog{ctx: ctx, log: v.log}),
		goka.WithViewBackoffBuilder(func() (goka.Backoff, error) {
			return goka.NewSimpleBackoff(v.opts.Backoff.Min, v.opts.Backoff.Max), nil
		}),
		// Goka's view closes neither of its clients.
		goka.WithViewConsumerSaramaBuilder(func(brokers []string, id string) (sarama.Consumer, error) {
			c, err := consumers(brokers, id)
			if err == nil {
				*closers = append(*closers, c)
			}
			return c, err
		}),
		goka.WithViewTopicManagerBuilder(onceClosed(managers, closers)),
	}, closers, nil
}

// onceClosed remembers the topic managers that a view makes; Goka closes one of the two itself.
func onceClosed(inner goka.TopicManagerBuilder, closers *[]io.Closer) goka.TopicManagerBuilder {
	return func(brokers []string) (goka.TopicManager, error) {
		tm, err := inner(brokers)
		if err != nil {
			return nil, err
		}
		m := &managerOnce{TopicManager: tm}
		*closers = append(*closers, m)
		return m, nil
	}
}

type managerOnce struct {
	goka.TopicManager
	closed atomic.Bool
}

func (m *managerOnce) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.TopicManager.Close()
}
