package tablestore

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are shared by all stores of a process. The label store tells the processor's own table from a view's copy of it.
type metrics struct {
	flushSeconds *prometheus.HistogramVec
	unflushed    *prometheus.GaugeVec
	pinned       *prometheus.GaugeVec
	filterBytes  *prometheus.GaugeVec
	keys         *prometheus.GaugeVec
	dropped      *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	labels := []string{"topic", "partition", "store"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		flushSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "vitrina_table_flush_duration_seconds",
			Help:    "Time of one flush of a table store to disk, the sync included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, labels),
		unflushed:   gauge("vitrina_table_unflushed_writes", "Keys written to a table store that are in memory only."),
		pinned:      gauge("vitrina_table_offset_pinned", "1 while a table store's offset stands still because another writer's record lies in between."),
		filterBytes: gauge("vitrina_table_filter_bytes", "Memory of a table store's key filter."),
		keys:        gauge("vitrina_table_keys", "Keys of a table store, approximately; deleted keys count until the filter is built anew."),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vitrina_table_store_dropped_total",
			Help: "Directories of table stores dropped because they were damaged, to be rebuilt from the changelog.",
		}, labels),
	}
	if reg == nil {
		return m, nil
	}
	var errs [6]error
	m.flushSeconds, errs[0] = register(reg, m.flushSeconds)
	m.unflushed, errs[1] = register(reg, m.unflushed)
	m.pinned, errs[2] = register(reg, m.pinned)
	m.filterBytes, errs[3] = register(reg, m.filterBytes)
	m.keys, errs[4] = register(reg, m.keys)
	m.dropped, errs[5] = register(reg, m.dropped)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("registering the table stores' metrics: %w", err)
	}
	return m, nil
}

// register returns the collector that is registered already, if any: several builders share one registry.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	return c, err
}

// storeMetrics are one store's children.
type storeMetrics struct {
	all          *metrics
	labels       []string
	flushSeconds prometheus.Observer
	unflushed    prometheus.Gauge
	pinned       prometheus.Gauge
	filterBytes  prometheus.Gauge
	keys         prometheus.Gauge
}

func (m *metrics) of(labels []string) *storeMetrics {
	return &storeMetrics{
		all:          m,
		labels:       labels,
		flushSeconds: m.flushSeconds.WithLabelValues(labels...),
		unflushed:    m.unflushed.WithLabelValues(labels...),
		pinned:       m.pinned.WithLabelValues(labels...),
		filterBytes:  m.filterBytes.WithLabelValues(labels...),
		keys:         m.keys.WithLabelValues(labels...),
	}
}

// forget removes the gauges of a partition that this process gave up: another instance reports them now.
func (m *storeMetrics) forget() {
	for _, vec := range []*prometheus.GaugeVec{m.all.unflushed, m.all.pinned, m.all.filterBytes, m.all.keys} {
		vec.DeleteLabelValues(m.labels...)
	}
}
