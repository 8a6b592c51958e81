package tablestore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lovoo/goka/storage"
	"github.com/prometheus/client_golang/prometheus"
	ldbstorage "github.com/syndtr/goleveldb/leveldb/storage"
)

// Tables builds the stores of one directory and knows those that are open. It is safe for concurrent use.
type Tables struct {
	cfg     Config
	logger  *slog.Logger
	metrics *metrics

	mu   sync.Mutex
	open map[*Store]struct{}

	// openFiles is LevelDB's file storage; tests put faults between.
	openFiles func(dir string) (ldbstorage.Storage, error)
}

// New checks the configuration and registers the metrics; a nil registerer means none. It touches no file.
func New(cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Tables, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		return nil, errors.New("table store: no logger")
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &Tables{
		cfg:     cfg.withDefaults(),
		logger:  logger,
		metrics: m,
		open:    make(map[*Store]struct{}),
		openFiles: func(dir string) (ldbstorage.Storage, error) {
			return ldbstorage.OpenFile(dir, false)
		},
	}, nil
}

// Builder is New for callers that need Goka's builder only; a fault of the configuration is returned by the builder.
func Builder(cfg Config, logger *slog.Logger, reg prometheus.Registerer) storage.Builder {
	tables, err := New(cfg, logger, reg)
	if err != nil {
		return func(string, int32) (storage.Storage, error) { return nil, err }
	}
	return tables.Build
}

// Build is a Goka storage.Builder. The store's files are opened by its Open, which Goka calls next.
func (t *Tables) Build(topic string, partition int32) (storage.Storage, error) {
	return t.build(topic, partition)
}

func (t *Tables) build(topic string, partition int32) (*Store, error) {
	if topic == "" || partition < 0 {
		return nil, fmt.Errorf("table store: cannot keep topic %q partition %d", topic, partition)
	}
	use := "processor"
	if t.cfg.Follow {
		use = "view"
	}
	s := &Store{
		cfg:        t.cfg,
		topic:      topic,
		partition:  partition,
		dir:        filepath.Join(t.cfg.Dir, topic+"."+strconv.FormatInt(int64(partition), 10)),
		log:        t.logger.With("topic", topic, "partition", partition),
		allMetrics: t.metrics,
		labels:     []string{topic, strconv.FormatInt(int64(partition), 10), use},
		openFiles:  t.openFiles,
		pending:    new(writes),
		flushing:   new(writes),
		offset:     offsetState{follow: t.cfg.Follow},
		kick:       make(chan struct{}, 1),
		tasks:      make(chan task),
		quit:       make(chan struct{}),
		stopped:    make(chan struct{}),
		closed:     make(chan error, 1),
		iterators:  make(map[*iterator]struct{}),
	}
	s.space = sync.NewCond(&s.mu)
	s.onOpen = func() { t.track(s, true) }
	s.onClose = func() { t.track(s, false) }
	return s, nil
}

func (t *Tables) track(s *Store, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open {
		t.open[s] = struct{}{}
		return
	}
	delete(t.open, s)
}

// Stats is what one open store knows about itself.
type Stats struct {
	Topic       string
	Partition   int32
	Keys        int64 // approximately; deleted keys count until the filter is built anew
	Offset      int64 // the offset the store reports; -1 when it has none
	OnDisk      int64 // the offset that is on disk; -1 when it has none
	Recovered   bool
	Pinned      bool      // the offset stands still because another writer's record lies in between
	Unflushed   int       // keys in memory only
	FilterBytes int64     // memory of the filter
	LastFlush   time.Time // zero before the first one
	Scanned     bool      // the filter had to be built by a scan when the store was opened
	Err         error     // what made the store unusable; nil while it works
}

// Stats returns the open stores' numbers, ordered by topic and partition.
func (t *Tables) Stats() []Stats {
	t.mu.Lock()
	stores := make([]*Store, 0, len(t.open))
	for s := range t.open {
		stores = append(stores, s)
	}
	t.mu.Unlock()
	stats := make([]Stats, 0, len(stores))
	for _, s := range stores {
		stats = append(stats, s.Stats())
	}
	slices.SortFunc(stats, func(a, b Stats) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return stats
}
