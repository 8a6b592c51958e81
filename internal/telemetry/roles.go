package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Roles is what the process as a whole reports: which roles run, what was dead-lettered why, how often a runtime restarted.
type Roles struct {
	up       *prometheus.GaugeVec
	restarts *prometheus.CounterVec
	letters  *prometheus.CounterVec
}

// NewRoles registers the metrics, with every role and every dead-letter code of every consumer at 0.
func NewRoles(reg prometheus.Registerer, roles, consumers, codes []string) *Roles {
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
	}
	reg.MustRegister(r.up, r.restarts, r.letters)
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
