package telemetry

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lagHold is how long a caught-up partition still shows the lag of its last record: long enough for a scrape to see it,
// short enough that a topic gone quiet does not keep an alert firing.
const lagHold = 45 * time.Second

// Lag is a *_lag_seconds gauge with a label partition. A gauge set only on success would stand still exactly when it
// matters, while a database is away, so this one is computed when it is scraped: while records of a partition are in
// flight it grows with the clock, from the time of the last finished one.
type Lag struct {
	desc  *prometheus.Desc
	clock func() time.Time

	mu         sync.Mutex
	partitions map[int32]*lagPartition
}

type lagPartition struct {
	mu        sync.Mutex
	inFlight  int
	reference time.Time     // event time from which work in flight is counted
	last      time.Duration // lag of the last finished record
	lastAt    time.Time     // when it finished
}

// NewLag returns the gauge; register it with a prometheus.Registerer. It shows partition 0 at 0 until one is known.
func NewLag(name, help string, clock func() time.Time) *Lag {
	return &Lag{
		desc:       prometheus.NewDesc(name, help, []string{"partition"}, nil),
		clock:      clock,
		partitions: make(map[int32]*lagPartition),
	}
}

// LagMark is one record in flight. It must be ended by Done or Abandon, once. The zero value's methods do nothing.
type LagMark struct {
	lag  *Lag
	part *lagPartition
	at   time.Time
}

// Start notes that a record of a partition was received; at is the record's own time (CreatedAt, EventTime), zero when
// it has none.
func (l *Lag) Start(partition int32, at time.Time) LagMark {
	l.mu.Lock()
	part, ok := l.partitions[partition]
	if !ok {
		part = &lagPartition{}
		l.partitions[partition] = part
	}
	l.mu.Unlock()
	if at.IsZero() {
		at = l.clock()
	}
	part.mu.Lock()
	if part.inFlight == 0 {
		part.reference = at
	}
	part.inFlight++
	part.mu.Unlock()
	return LagMark{lag: l, part: part, at: at}
}

// Done notes that the record's effect is durable now.
func (m LagMark) Done(now time.Time) { m.end(true, now) }

// Abandon notes that the record was given up and will come again: it says nothing about the lag.
func (m LagMark) Abandon() { m.end(false, time.Time{}) }

func (m LagMark) end(applied bool, now time.Time) {
	if m.part == nil {
		return
	}
	m.part.mu.Lock()
	defer m.part.mu.Unlock()
	m.part.inFlight--
	if applied {
		m.part.reference = m.at
		m.part.last, m.part.lastAt = max(0, now.Sub(m.at)), now
	}
}

// Retain forgets every partition but those: call it when partitions are assigned or given up, so that an instance does
// not report what another one owns.
func (l *Lag) Retain(partitions ...int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := make(map[int32]*lagPartition, len(partitions))
	for _, p := range partitions {
		if part, ok := l.partitions[p]; ok {
			kept[p] = part
		} else {
			kept[p] = &lagPartition{}
		}
	}
	l.partitions = kept
}

// Seconds is the present lag of each partition.
func (l *Lag) Seconds() map[int32]float64 {
	l.mu.Lock()
	parts := maps.Clone(l.partitions)
	l.mu.Unlock()
	now := l.clock()
	out := make(map[int32]float64, len(parts))
	for p, part := range parts {
		out[p] = part.seconds(now)
	}
	return out
}

func (p *lagPartition) seconds(now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.inFlight > 0:
		return max(0, now.Sub(p.reference).Seconds())
	case !p.lastAt.IsZero() && now.Sub(p.lastAt) < lagHold:
		return p.last.Seconds()
	default:
		return 0
	}
}

// Describe is part of prometheus.Collector.
func (l *Lag) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect is part of prometheus.Collector.
func (l *Lag) Collect(ch chan<- prometheus.Metric) {
	seconds := l.Seconds()
	if len(seconds) == 0 {
		seconds[0] = 0
	}
	for _, p := range slices.Sorted(maps.Keys(seconds)) {
		ch <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, seconds[p], strconv.Itoa(int(p)))
	}
}
