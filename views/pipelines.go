package views

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/ops/dlq"
	"github.com/pin-marketplace/vitrina/internal/stream"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
)

// Pipelines are the three consumers as the broker, the database and this instance see them.
type Pipelines struct {
	AsOf      time.Time  `json:"asOf"`
	Instance  string     `json:"instance"` // the one that answers; "here" is about it
	Pipelines []Pipeline `json:"pipelines"`
}

// Pipeline is one consumer. What nobody can tell now is null, and problems says why.
type Pipeline struct {
	Consumer string `json:"consumer"`
	Group    string `json:"group"`
	Topic    string `json:"topic"`
	// State is that of this instance's processor where it runs the role; elsewhere when another instance does; nowhere when none
	// does; unknown.
	State      string             `json:"state"`
	Ready      bool               `json:"ready"`
	Reason     string             `json:"reason,omitempty"`
	Here       bool               `json:"here"`
	Since      *time.Time         `json:"since,omitempty"`
	Restarts   int                `json:"restarts"`
	Recovery   []stream.Recovery  `json:"recovery,omitempty"`
	Stalls     []stream.Stall     `json:"stalls,omitempty"`
	Members    []Member           `json:"members"`
	Lag        *int64             `json:"lag"` // records not finished, all instances
	Partitions []PartitionLag     `json:"partitions"`
	Rates      *Rates             `json:"rates"`
	Retries    int64              `json:"retries"` // of this instance, since its start
	DLQ        DeadLetters        `json:"dlq"`
	DLQDepth   *int64             `json:"dlqDepth"`
	Pending    *int64             `json:"pending"`       // views that wait for their card or for its lock, cards that wait for the recompute
	Oldest     *time.Time         `json:"oldestPending"` // since when the oldest view waits
	Projection *ProjectionOfState `json:"projection,omitempty"`
	Problems   []string           `json:"problems,omitempty"`
}

// ProjectionOfState is the epoch under which a consumer writes.
type ProjectionOfState struct {
	Name  string `json:"name"`
	Epoch int64  `json:"epoch"`
	Open  bool   `json:"open"` // false: it is being rebuilt
}

// Member is an instance in the consumer's group.
type Member struct {
	ClientID   string  `json:"clientId"`
	Partitions []int32 `json:"partitions"` // of the input topic
}

// PartitionLag is how far the group is in one partition.
type PartitionLag struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed int64  `json:"committed"` // -1: nothing yet
	End       int64  `json:"end"`
	Lag       int64  `json:"lag"`
}

// Rates are records a second over the last minute, all instances.
type Rates struct {
	ReceivedPerSecond float64 `json:"receivedPerSecond"`
	FinishedPerSecond float64 `json:"finishedPerSecond"`
}

// DeadLetters are those of a consumer.
type DeadLetters struct {
	Topic string `json:"topic"`
	Dead  *int64 `json:"deadViews,omitempty"` // views that gave up waiting for their card
}

// Pipelines describes the three consumers. It never fails: what cannot be told is null.
func (s *Service) Pipelines(ctx context.Context) *Pipelines {
	out := &Pipelines{AsOf: s.clock().UTC(), Instance: s.instance, Pipelines: []Pipeline{}}
	var members map[string][]Member
	var membersErr error
	var wait sync.WaitGroup
	wait.Go(func() { members, membersErr = s.members(ctx) })
	readings := s.ask(ctx, config.RolePromotion, config.RolePopularity, config.RolePrice)
	wait.Wait()
	for _, c := range config.Consumers() {
		p := Pipeline{Consumer: c.Role, Group: c.Group, Topic: c.Topic, Members: []Member{}, Partitions: []PartitionLag{}, DLQ: DeadLetters{Topic: c.DLQ}, Retries: s.host.Retries(c.Role)}
		if membersErr != nil {
			p.problem("the members of the group are unknown: the broker does not say")
		} else {
			p.Members = append(p.Members, members[c.Group]...)
		}
		s.state(&p, membersErr == nil)
		s.positions(ctx, &p, readings[c.Role])
		s.handled(ctx, &p, readings[c.Role])
		s.pending(ctx, &p)
		out.Pipelines = append(out.Pipelines, p)
	}
	return out
}

func (p *Pipeline) problem(text string) { p.Problems = append(p.Problems, text) }

func (s *Service) state(p *Pipeline, known bool) {
	role, here := s.host.Role(p.Consumer)
	if !here {
		switch {
		case !known:
			p.State = "unknown"
		case len(p.Members) > 0:
			p.State, p.Ready = "elsewhere", true
		default:
			p.State, p.Reason = "nowhere", "no instance consumes: start one with the role "+p.Consumer
		}
		return
	}
	p.Here, p.State, p.Ready, p.Reason = true, role.State, role.Ready, role.Reason
	if st := role.Stream; st != nil {
		since := st.Since.UTC()
		p.Since, p.Restarts, p.Recovery, p.Stalls = &since, st.Restarts, st.Recovery, st.Stalls
	}
}

func (s *Service) positions(ctx context.Context, p *Pipeline, at reading) {
	sampler := s.samplers[p.Consumer]
	if at.err != nil {
		p.problem("lag and dead letters are unknown: the broker does not say")
		return
	}
	lag, depth := at.lag(sampler.inputs()...), at.held(sampler.consumer.DLQ)
	p.Lag, p.DLQDepth = &lag, &depth
	for _, topic := range sampler.inputs() {
		if _, ok := at.topics[topic]; !ok && topic == p.Topic {
			p.problem("topic " + topic + " does not exist")
		}
		for i, pos := range at.topics[topic] {
			p.Partitions = append(p.Partitions, PartitionLag{Topic: topic, Partition: int32(i), Committed: pos.Committed, End: pos.End, Lag: pos.Lag()}) //nolint:gosec // a partition number
		}
	}
	if received, finished, ok := sampler.rates(ctx); ok {
		p.Rates = &Rates{ReceivedPerSecond: round(received), FinishedPerSecond: round(finished)}
	}
}

// handled takes the letters that were put back or dropped off the depth: they stay in their topic until its retention ends.
func (s *Service) handled(ctx context.Context, p *Pipeline, at reading) {
	if p.DLQDepth == nil || *p.DLQDepth == 0 {
		return
	}
	err := s.withDatabase(ctx, func() error {
		topics, err := s.admin.Topics(ctx, p.DLQ.Topic)
		if err != nil {
			return err
		}
		var from, to []int64
		for _, pos := range at.topics[p.DLQ.Topic] {
			from, to = append(from, pos.Start), append(to, pos.End)
		}
		n, err := dlq.Handled(ctx, s.pool, topics[p.DLQ.Topic].ID, from, to)
		*p.DLQDepth = max(0, *p.DLQDepth-n)
		return err
	})
	if err != nil {
		p.problem("how many dead letters were put back or dropped is unknown: dlqDepth counts them too")
	}
}

func round(perSecond float64) float64 { return math.Round(perSecond*100) / 100 }

func (s *Service) pending(ctx context.Context, p *Pipeline) {
	name := map[string]string{config.RolePromotion: postgres.PromotionBoost, config.RolePopularity: postgres.Popularity}[p.Consumer]
	if name == "" {
		return
	}
	if known, ok := s.seen().projections[name]; ok {
		p.Projection = &ProjectionOfState{Name: name, Epoch: known.Epoch, Open: known.Open}
	}
	err := s.withDatabase(ctx, func() error {
		if p.Consumer == config.RolePromotion {
			var n int64
			// Bounded: a number that is only looked at need not be exact beyond it.
			err := s.pool.QueryRow(ctx, `SELECT count(*) FROM (
				(SELECT FROM vitrina.dirty_cards LIMIT 100000) UNION ALL (SELECT FROM vitrina.changed_cards LIMIT 100000)) waiting`).Scan(&n)
			if err != nil {
				return fmt.Errorf("count the cards that wait for the recompute: %w", err)
			}
			p.Pending = &n
			return nil
		}
		late, err := postgres.ReadLateViews(ctx, s.pool)
		if err != nil {
			return err
		}
		p.Pending, p.DLQ.Dead = &late.Pending, &late.Dead
		if !late.OldestPending.IsZero() {
			oldest := late.OldestPending.UTC()
			p.Oldest = &oldest
		}
		return nil
	})
	if err != nil {
		detail, _ := outage(err, s.cfg.HTTP.RequestTimeout)
		p.problem("what waits is unknown: " + detail)
	}
}

// members asks the broker who is in the groups.
func (s *Service) members(ctx context.Context) (map[string][]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	topics := make(map[string]string)
	var groups []string
	for _, c := range config.Consumers() {
		topics[c.Group] = c.Topic
		groups = append(groups, c.Group)
	}
	described, err := s.admin.Kadm().DescribeGroups(ctx, groups...)
	if err != nil {
		return nil, fmt.Errorf("describe the consumer groups: %w", err)
	}
	out := make(map[string][]Member)
	for _, g := range described.Sorted() {
		for _, m := range g.Members {
			out[g.Group] = append(out[g.Group], Member{ClientID: m.ClientID, Partitions: assigned(m, topics[g.Group])})
		}
		slices.SortFunc(out[g.Group], func(a, b Member) int { return strings.Compare(a.ClientID, b.ClientID) })
	}
	return out, nil
}

func assigned(m kadm.DescribedGroupMember, topic string) []int32 {
	partitions := []int32{}
	if consumer, ok := m.Assigned.AsConsumer(); ok {
		for _, t := range consumer.Topics {
			if t.Topic == topic {
				partitions = append(partitions, t.Partitions...)
			}
		}
	}
	slices.Sort(partitions)
	return partitions
}
