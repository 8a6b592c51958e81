package stream

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// phases in the order of the metric.
func phases() []Phase {
	return []Phase{PhaseStarting, PhaseRecovering, PhaseRunning, PhaseStalled, PhaseBackoff, PhasePaused, PhaseStopping, PhaseStopped}
}

// Collector shows the state of runtimes when it is scraped: vitrina_processor_state{group,state} (1 for the present one),
// vitrina_processor_restarts_total{group}, vitrina_unfinished_records{group,topic,partition} and
// vitrina_oldest_unfinished_seconds{group,topic,partition} of the partitions this instance owns.
type Collector struct {
	runtimes                             []*Runtime
	state, restarts, unfinished, longest *prometheus.Desc
}

// NewCollector returns a collector of the given runtimes; register it once.
func NewCollector(runtimes ...*Runtime) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"group"}, labels...), nil)
	}
	return &Collector{
		runtimes:   runtimes,
		state:      desc("vitrina_processor_state", "1 for what the consumer is doing now.", "state"),
		restarts:   desc("vitrina_processor_restarts_total", "Processors that failed and were built anew."),
		unfinished: desc("vitrina_unfinished_records", "Records delivered and not finished yet, of the partitions owned here.", "topic", "partition"),
		longest:    desc("vitrina_oldest_unfinished_seconds", "How long the oldest unfinished record of a partition has been the oldest.", "topic", "partition"),
	}
}

// Describe is part of prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.restarts, c.unfinished, c.longest} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.runtimes {
		group := r.spec.Group
		s := r.State()
		for _, p := range phases() {
			value := 0.0
			if p == s.Phase {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, value, group, string(p))
		}
		ch <- prometheus.MustNewConstMetric(c.restarts, prometheus.CounterValue, float64(s.Restarts), group)
		run := r.run.Load()
		if run == nil {
			continue
		}
		now := r.clock()
		for _, p := range run.guard.Status() {
			age := 0.0
			if !p.Since.IsZero() {
				age = max(0, now.Sub(p.Since).Seconds())
			}
			partition := strconv.Itoa(int(p.Partition))
			ch <- prometheus.MustNewConstMetric(c.unfinished, prometheus.GaugeValue, float64(p.Window), group, p.Topic, partition)
			ch <- prometheus.MustNewConstMetric(c.longest, prometheus.GaugeValue, age, group, p.Topic, partition)
		}
	}
}
