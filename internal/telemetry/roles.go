package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Roles is what the process as a whole reports: which roles run, what was dead-lettered why, how often a runtime restarted.
type Roles struct {
	up       *prometheus.GaugeVec
	restarts *prometheus.CounterVec
	letters  *prometheus.CounterVec
	lost     *prometheus.CounterVec

	mu   sync.Mutex
	gaps map[partition]gap // the last one counted
}

type partition struct {
	topic string
	id    int32
}

type gap struct{ from, to int64 }

// NewRoles registers the metrics, with every role, every topic that is consumed and every dead-letter code of every consumer at 0.
func NewRoles(reg prometheus.Registerer, roles, consumers, codes, topics []string) *Roles {
	r := &Roles{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vitrina_role_ready",
			Help: "1 while a role runs and has recovered its state, else 0.",
		}, []string{"role"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vitrina_role_restarts_total",
			Help: "How often a role failed and tried again: its processor (log event processor-failed) or the role itself (role-failed).",
		}, []string{"role"}),
		letters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vitrina_dead_letters_total",
			Help: "Dead letters written, by consumer and code.",
		}, []string{"consumer", "code"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vitrina_records_lost_total",
			Help: "Offsets that the broker deleted before their consumer group had read them (log event records-lost), by topic.",
		}, []string{"topic"}),
		gaps: make(map[partition]gap),
	}
	reg.MustRegister(r.up, r.restarts, r.letters, r.lost)
	for _, topic := range topics {
		r.lost.WithLabelValues(topic)
	}
	for _, role := range roles {
		r.up.WithLabelValues(role)
		r.restarts.WithLabelValues(role)
	}
	for _, consumer := range consumers {
		for _, code := range codes {
			r.letters.WithLabelValues(consumer, code)
		}
	}
	return r
}

// SetReady says whether a role runs and has recovered.
func (r *Roles) SetReady(role string, ready bool) {
	value := 0.0
	if ready {
		value = 1
	}
	r.up.WithLabelValues(role).Set(value)
}

// Restarted counts a failure of a role, or of its processor, that is tried again.
func (r *Roles) Restarted(role string) { r.restarts.WithLabelValues(role).Inc() }

// DeadLetter counts one dead letter.
func (r *Roles) DeadLetter(consumer, code string) { r.letters.WithLabelValues(consumer, code).Inc() }

// Lost counts the offsets [from, to) of a partition. A gap that is told again, because nothing behind it was finished since, counts once,
// and with what it has grown by.
func (r *Roles) Lost(topic string, id int32, from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := partition{topic, id}
	n := to - from
	if before, ok := r.gaps[p]; ok && before.from == from {
		n = max(0, to-before.to)
	}
	r.gaps[p] = gap{from, to}
	r.lost.WithLabelValues(topic).Add(float64(n))
}
