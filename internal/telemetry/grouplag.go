package telemetry

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// GroupTopic names one input of one consumer group.
type GroupTopic struct{ Group, Topic string }

// GroupLag is vitrina_consumer_group_lag{group,topic,partition}: the broker's end offset minus the group's committed one,
// in records. Goka's own statistics are wrong about it (design, section 3, fact 9), so it is fed from the broker.
type GroupLag struct {
	vec   *prometheus.GaugeVec
	held  *prometheus.GaugeVec
	mu    sync.Mutex
	known map[GroupTopic]int32 // partitions shown
}

// NewGroupLag registers the gauge, with partition 0 of each input at 0.
func NewGroupLag(reg prometheus.Registerer, inputs ...GroupTopic) *GroupLag {
	g := &GroupLag{
		vec: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vitrina_consumer_group_lag",
			Help: "Records of an input topic that its consumer group has not committed yet, as the broker sees it.",
		}, []string{"group", "topic", "partition"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vitrina_consumer_group_held",
			Help: "1 while a group is kept from consuming on purpose, by its feature flag, a rebuild or a replay, else 0.",
		}, []string{"group"}),
		known: make(map[GroupTopic]int32),
	}
	reg.MustRegister(g.vec, g.held)
	for _, in := range inputs {
		g.SetHeld(in.Group, false)
		g.Set(in, []int64{0})
	}
	return g
}

// Set shows the lag of every partition of an input: lags[p] is partition p's. Partitions beyond it disappear. Several
// goroutines may call it.
func (g *GroupLag) Set(in GroupTopic, lags []int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, lag := range lags {
		g.vec.WithLabelValues(in.Group, in.Topic, strconv.Itoa(p)).Set(float64(max(0, lag)))
	}
	for p := len(lags); p < int(g.known[in]); p++ {
		g.vec.DeleteLabelValues(in.Group, in.Topic, strconv.Itoa(p))
	}
	g.known[in] = int32(len(lags))
}

// SetHeld says whether a group is kept from consuming on purpose.
func (g *GroupLag) SetHeld(group string, held bool) {
	value := 0.0
	if held {
		value = 1
	}
	g.held.WithLabelValues(group).Set(value)
}
